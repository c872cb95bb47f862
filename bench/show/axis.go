package show

import (
	"math"
	"slices"
	"strings"

	"github.com/tapestore/tapestore/bench"
)

// axis maps figures to the range 0 to 1.
type axis struct {
	Label  string
	log    bool
	lo, hi float64
	Ticks  []tick
	ratio  bool // has a line at 1
}

type tick struct {
	At    float64 // 0 to 1
	Label string
}

// logBeyond is the ratio of the largest to the smallest median above which an axis is logarithmic:
// 20, because a line at a twentieth of the height cannot be read.
const logBeyond = 20

// axisFor makes an axis for all samples of a metric. It is linear and begins at zero, unless the
// figures differ by more than logBeyond.
func axisFor(c column, results []bench.Result) axis {
	a := axis{Label: header(c.Name, c.Unit), ratio: strings.HasPrefix(c.Name, "of ")}
	least, most := math.Inf(1), math.Inf(-1)
	leastMedian, mostMedian := math.Inf(1), math.Inf(-1)
	for _, r := range results {
		m, ok := c.of(r)
		if !ok {
			continue
		}
		least, most = min(least, slices.Min(m.Samples)), max(most, slices.Max(m.Samples))
		leastMedian, mostMedian = min(leastMedian, m.Value()), max(mostMedian, m.Value())
	}
	if math.IsInf(least, 0) || math.IsNaN(least) || math.IsInf(most, 0) || math.IsNaN(most) {
		least, most, leastMedian, mostMedian = 0, 1, 0, 1
	}
	if a.ratio {
		most = max(most, 1)
	}
	if least > 0 && !a.ratio && mostMedian/leastMedian > logBeyond {
		a.log = true
		a.logTicks(least, most)
	} else {
		a.linearTicks(min(0, least), most)
	}
	return a
}

// linearTicks sets the range of a linear axis and its ticks, at steps of 1, 2 or 5 times a power of
// ten.
func (a *axis) linearTicks(least, most float64) {
	if most <= least {
		most = least + 1
	}
	step := niceStep((most - least) / 5)
	a.lo, a.hi = math.Floor(least/step)*step, math.Ceil(most/step-1e-9)*step
	for i := 0; ; i++ {
		at := a.lo + float64(i)*step
		if at > a.hi+step/2 {
			return
		}
		if math.Abs(at) < step/1e6 {
			at = 0
		}
		a.Ticks = append(a.Ticks, tick{a.at(at), short(at)})
	}
}

// niceStep returns the smallest of 1, 2 or 5 times a power of ten that is at least least.
func niceStep(least float64) float64 {
	power := math.Pow(10, math.Floor(math.Log10(least)))
	for _, n := range []float64{1, 2, 5} {
		if n*power >= least*0.999 {
			return n * power
		}
	}
	return 10 * power
}

// logTicks sets the range of a logarithmic axis and its ticks, at most seven.
func (a *axis) logTicks(least, most float64) {
	from, to := math.Floor(math.Log10(least)), math.Ceil(math.Log10(most))
	steps := []float64{1}
	if to-from <= 2 {
		steps = []float64{1, 2, 5}
	}
	var at []float64
	for power := from; power <= to; power++ {
		for _, n := range steps {
			at = append(at, n*math.Pow(10, power))
		}
	}
	// The axis begins at the last tick below the figures, and ends at the first above them.
	for len(at) > 2 && at[1] <= least {
		at = at[1:]
	}
	for len(at) > 2 && at[len(at)-2] >= most {
		at = at[:len(at)-1]
	}
	a.lo, a.hi = at[0], at[len(at)-1]
	every := (len(at) + 6) / 7
	for i, v := range at {
		if i%every == 0 {
			a.Ticks = append(a.Ticks, tick{a.at(v), short(v)})
		}
	}
}

// at returns the position of a figure, from 0 at the start of the axis to 1 at its end.
func (a axis) at(v float64) float64 {
	var part float64
	if a.log {
		part = math.Log(max(v, a.lo)/a.lo) / math.Log(a.hi/a.lo)
	} else {
		part = (v - a.lo) / (a.hi - a.lo)
	}
	return min(1, max(0, part))
}

// paramAxis maps the values of a parameter, which grow by factors, to the range 0 to 1.
func paramAxis(name string, values []string) (axis, bool) {
	a := axis{Label: name}
	var at []float64
	for _, text := range values {
		v, ok := numeric(text)
		if !ok {
			return a, false
		}
		at = append(at, v)
	}
	a.lo, a.hi = at[0], at[len(at)-1]
	a.log = a.lo > 0
	for i, v := range at {
		place := a.at(v)
		// A label needs a tenth of the width.
		if n := len(a.Ticks); n > 0 && place-a.Ticks[n-1].At < 0.1 && i < len(at)-1 {
			continue
		} else if n > 0 && place-a.Ticks[n-1].At < 0.1 {
			a.Ticks = a.Ticks[:n-1]
		}
		a.Ticks = append(a.Ticks, tick{place, short(v)})
	}
	return a, true
}

// label returns the axis's name, and says if its steps are factors.
func (a axis) label() string {
	if a.log {
		return a.Label + " (log scale)"
	}
	return a.Label
}
