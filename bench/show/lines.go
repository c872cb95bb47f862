package show

import (
	"fmt"
	"html/template"
	"slices"
	"strings"

	"github.com/tapestore/tapestore/bench"
)

// Size of a line chart in its own units; the page scales it.
const (
	width, height           = 380.0, 252.0
	left, right, top, below = 50.0, 14.0, 10.0, 42.0
)

// chart is a line chart, ready to be drawn.
type chart struct {
	Alt    string // the text alternative
	W, H   float64
	X0, X1 float64 // the frame
	Y0, Y1 float64
	XLabel string
	YLabel string
	XTicks []mark
	YTicks []mark
	One    *float64 // height of the line at ratio 1
	Series []series
}

type mark struct {
	At    float64
	Label string
}

type series struct {
	Label string
	Color int
	Peer  bool
	Band  string // points of the polygon between the least and the largest samples
	Line  string // points of the medians
	Dots  []dot
}

type dot struct {
	Path  template.HTMLAttr
	Title string
}

func (v *view) lines(p Plot, c column, results []bench.Result, y axis, palette map[string]int) (*chart, []entry) {
	x, ok := paramAxis(p.X, distinct(results, p.X))
	ch := &chart{
		W: width, H: height, X0: left, X1: width - right, Y0: top, Y1: height - below,
		XLabel: x.label(), YLabel: y.label(),
	}
	if !ok {
		return ch, nil
	}
	across := func(at float64) float64 { return round(ch.X0 + 8 + at*(ch.X1-ch.X0-16)) }
	down := func(at float64) float64 { return round(ch.Y1 - at*(ch.Y1-ch.Y0)) }
	for _, t := range x.Ticks {
		ch.XTicks = append(ch.XTicks, mark{across(t.At), t.Label})
	}
	for _, t := range y.Ticks {
		ch.YTicks = append(ch.YTicks, mark{down(t.At), t.Label})
	}
	var legend []entry
	var told []string
	for _, s := range v.sides(results) {
		number := palette[v.label(s)]
		line := series{Label: v.label(s), Color: number % colors, Peer: v.systems[s.System].Peer}
		var upper, lower, middle []string
		of := slices.DeleteFunc(slices.Clone(results), func(r bench.Result) bool { return sideOf(r) != s })
		slices.SortStableFunc(of, func(a, b bench.Result) int { return compareValues(a.Params[p.X], b.Params[p.X]) })
		for _, r := range of {
			m, ok := c.of(r)
			at, isNumber := numeric(r.Params[p.X])
			if !ok || !isNumber {
				continue
			}
			px, py := across(x.at(at)), down(y.at(m.Value()))
			middle = append(middle, point(px, py))
			upper = append(upper, point(px, down(y.at(slices.Max(m.Samples)))))
			lower = append(lower, point(px, down(y.at(slices.Min(m.Samples)))))
			line.Dots = append(line.Dots, dot{marker(number, px, py, 3.4), line.Label + ", " + setting(r.Params) + ": " + spread(m)})
		}
		if len(middle) == 0 {
			continue
		}
		slices.Reverse(lower)
		line.Line, line.Band = strings.Join(middle, " "), strings.Join(append(upper, lower...), " ")
		ch.Series = append(ch.Series, line)
		legend = append(legend, entry{line.Label, line.Color, marker(number, 8, 6, 3.4), line.Peer})
		told = append(told, line.Label)
	}
	ch.Alt = fmt.Sprintf("%s against %s: %s", y.Label, x.Label, strings.Join(told, ", "))
	return ch, legend
}

// spread formats a figure with the range of its samples.
func spread(m bench.Metric) string {
	return fmt.Sprintf("%s (%s)", withUnit(m.Value(), m.Unit), sampleRange(m))
}

func sampleRange(m bench.Metric) string {
	if len(m.Samples) == 1 {
		return "1 sample"
	}
	return fmt.Sprintf("%s to %s, %d samples", number(slices.Min(m.Samples)), number(slices.Max(m.Samples)), len(m.Samples))
}

func point(x, y float64) string { return fmt.Sprintf("%g,%g", x, y) }

func round(v float64) float64 { return float64(int(v*10+0.5)) / 10 }

// marker returns the path of a series' marker. Series of the same color differ by the marker's
// form.
func marker(series int, x, y, r float64) template.HTMLAttr {
	var d string
	switch series % 5 {
	case 0: // a circle
		d = fmt.Sprintf("M%g %ga%g %g 0 1 0 %g 0a%g %g 0 1 0 %g 0z", round(x-r), y, r, r, 2*r, r, r, -2*r)
	case 1: // a square
		d = fmt.Sprintf("M%g %gh%gv%gh%gz", round(x-r), round(y-r), 2*r, 2*r, -2*r)
	case 2: // a triangle
		d = fmt.Sprintf("M%g %gL%g %gL%g %gz", x, round(y-r*1.25), round(x+r*1.2), round(y+r), round(x-r*1.2), round(y+r))
	case 3: // a diamond
		d = fmt.Sprintf("M%g %gL%g %gL%g %gL%g %gz", x, round(y-r*1.35), round(x+r*1.35), y, x, round(y+r*1.35), round(x-r*1.35), y)
	default: // a triangle that points down
		d = fmt.Sprintf("M%g %gL%g %gL%g %gz", x, round(y+r*1.25), round(x+r*1.2), round(y-r), round(x-r*1.2), round(y-r))
	}
	return template.HTMLAttr(`d="` + d + `"`) // consists of numbers only
}
