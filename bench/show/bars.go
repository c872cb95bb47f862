package show

import (
	"slices"

	"github.com/tapestore/tapestore/bench"
)

// bars is a chart of horizontal bars, or of dots where the axis is logarithmic, because a bar has
// no start there. A whisker spans the least and the largest sample.
type bars struct {
	Label string // of the axis
	Dots  bool
	Ticks []tick
	One   *float64
	Rows  []bar
}

type bar struct {
	Label, Setting string
	Color          int
	Peer           bool
	From, To       float64 // the whisker, in percent of the width
	At             float64 // the median
	Value, Title   string
}

func (v *view) bars(c column, results []bench.Result, x axis, palette map[string]int) *bars {
	b := &bars{Label: x.label(), Dots: x.log, Ticks: x.Ticks}
	if x.ratio {
		one := percent(x.at(1))
		b.One = &one
	}
	varying := varyingParams(results)
	for _, r := range v.sorted(results) {
		m, ok := c.of(r)
		if !ok {
			continue
		}
		params := make(map[string]string)
		for name, value := range r.Params {
			if slices.Contains(varying, name) {
				params[name] = value
			}
		}
		label := v.label(sideOf(r))
		b.Rows = append(b.Rows, bar{
			Label: label, Setting: setting(params), Color: palette[label] % colors, Peer: v.systems[r.System].Peer,
			From: percent(x.at(slices.Min(m.Samples))), To: percent(x.at(slices.Max(m.Samples))), At: percent(x.at(m.Value())),
			Value: withUnit(m.Value(), m.Unit), Title: label + ", " + setting(r.Params) + ": " + spread(m),
		})
	}
	return b
}

func percent(part float64) float64 { return round(part * 100) }

// varyingParams returns the parameters that have different values, or that some results lack.
func varyingParams(results []bench.Result) (names []string) {
	for _, r := range results {
		for name := range r.Params {
			if slices.Contains(names, name) {
				continue
			}
			for _, other := range results {
				if value, ok := other.Params[name]; !ok || value != r.Params[name] {
					names = append(names, name)
					break
				}
			}
		}
	}
	slices.Sort(names)
	return names
}
