package bench

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// Side is one of the alternatives that a comparison measures in turn.
type Side struct {
	Group, System, Side string
	Params              map[string]string
	// Reached is the size that was reached of the one in Params, where the time for reaching it is
	// limited; nil elsewhere.
	Reached *Size
	// Round works for about d and records its metrics in m.
	Round func(ctx context.Context, d time.Duration, m *Measured) error
	// Over maps the name of a metric to the index of a side: the metric is this side's Rate divided
	// by that side's, round by round. {"of hand-written": 1} compares with the second side. Both
	// sides must have passed Verify.
	Over map[string]int
	// Under is the reciprocal of Over: the metric is the named side's Rate divided by this one's.
	// It is the cost of this side in terms of the other.
	Under map[string]int
	// Verify reads back what the rounds acknowledged, and describes what it found. It is called
	// once, after the last round. Nil for a side that writes nothing.
	Verify func(ctx context.Context) (string, error)
}

// Size is a size that was reached: "4,000" "runs".
type Size struct {
	N    int
	Unit string
}

// metric returns the metric of a result that records the size.
func (z Size) metric() Metric {
	return Metric{Name: Reached, Unit: z.Unit, Samples: []float64{float64(z.N)}}
}

// Measured collects the metrics of one round.
type Measured struct{ metrics []Metric }

// Add records a metric of the round. A metric that is added several times has several samples.
func (m *Measured) Add(name, unit string, better Better, value float64) {
	m.metrics = append(m.metrics, Metric{Name: name, Unit: unit, Better: better, Samples: []float64{value}})
}

// AddPeak records the maximum of the round, in milliseconds. The metric's value is the maximum of
// all rounds.
func (m *Measured) AddPeak(name string, better Better, most time.Duration) {
	m.Add(name, "ms", better, milliseconds(most))
	m.metrics[len(m.metrics)-1].Peak = true
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// turns returns the order of n sides in a round. In n rounds each side has each place once. In n
// rounds with an even n, and in 2n with an odd one, each side follows each other side equally often
// (the balanced design of Williams, 1949), so that no side always works in the wake of the same one.
func turns(n, round int) []int {
	order := make([]int, n)
	for k := range order {
		order[k] = (k + 1) / 2 // 0, 1, n-1, 2, n-2, …
		if k%2 == 0 {
			order[k] = (n - k/2) % n
		}
		order[k] = (order[k] + round) % n
	}
	if n%2 == 1 && round/n%2 == 1 {
		slices.Reverse(order)
	}
	return order
}

// Compare runs the sides in turn, round by round, verifies what they wrote, and records a result
// for each. A side that fails records a fault, and the other sides continue. If ctx ends, Compare
// records the rounds that are complete, without reading back, and returns the error of ctx.
func (s *Session) Compare(ctx context.Context, sides ...Side) error {
	c := &comparing{Session: s, sides: sides, results: make([]Result, len(sides)), failed: make([]bool, len(sides))}
	for i, side := range sides {
		c.results[i] = Result{Part: s.Part, Group: side.Group, System: side.System, Side: side.Side, Params: side.Params}
	}
	for c.rounds < s.Scale.Rounds && ctx.Err() == nil {
		if c.round(ctx) {
			c.rounds++
		}
	}
	for i, side := range sides {
		if side.Verify == nil || c.failed[i] || ctx.Err() != nil {
			continue
		}
		found, err := side.Verify(ctx)
		if err != nil && ctx.Err() == nil {
			c.fail(i, fmt.Errorf("reading back: %w", err))
		}
		c.results[i].Verified = found
	}
	if ctx.Err() != nil {
		c.interrupted()
	} else {
		c.ratios()
	}
	for i, r := range c.results {
		if c.failed[i] || len(r.Metrics) == 0 {
			continue
		}
		if z := sides[i].Reached; z != nil {
			r.Metrics = append(r.Metrics, z.metric())
		}
		s.Record(r)
	}
	return ctx.Err()
}

// comparing is a comparison in progress.
type comparing struct {
	*Session
	sides   []Side
	results []Result
	failed  []bool
	rounds  int // that are complete
}

// round runs one round of all sides, and reports whether it is complete. Otherwise ctx has ended,
// and the round leaves no metrics.
func (c *comparing) round(ctx context.Context) bool {
	measured := make([]Measured, len(c.sides))
	for _, i := range turns(len(c.sides), c.rounds) {
		if c.failed[i] {
			continue
		}
		err := c.sides[i].Round(ctx, c.Scale.Slice, &measured[i])
		if ctx.Err() != nil {
			return false
		}
		if err != nil {
			c.fail(i, err)
		}
	}
	for i := range c.sides {
		if !c.failed[i] {
			c.results[i].add(measured[i].metrics)
		}
	}
	return true
}

func (c *comparing) fail(i int, err error) {
	c.failed[i] = true
	c.Fault(c.sides[i].System, fmt.Errorf("%s: %w", c.sides[i].label(), err))
}

// interrupted notes that the comparison is incomplete.
func (c *comparing) interrupted() {
	for i := range c.sides {
		if len(c.results[i].Metrics) > 0 {
			c.results[i].Verified = "not read back: interrupted"
		}
	}
	if c.rounds > 0 && len(c.sides) > 0 {
		c.Note(c.Target.System.Name, "%s: interrupted after %d of %d rounds, and not read back; ratios are left out", c.sides[0].label(), c.rounds, c.Scale.Rounds)
	}
}

// ratios records the metrics of Over and Under, between sides that have not failed.
func (c *comparing) ratios() {
	for i, side := range c.sides {
		for _, name := range sortedKeys(side.Over) {
			c.ratio(i, name, More, i, side.Over[name])
		}
		for _, name := range sortedKeys(side.Under) {
			c.ratio(i, name, Less, side.Under[name], i)
		}
	}
}

// ratio records in result i the rates of side a divided by those of side b, round by round.
func (c *comparing) ratio(i int, name string, better Better, a, b int) {
	if c.failed[a] || c.failed[b] {
		return
	}
	over, _ := c.results[a].Metric(Rate)
	under, _ := c.results[b].Metric(Rate)
	m := Metric{Name: name, Better: better}
	for round := range min(len(over.Samples), len(under.Samples)) {
		if under.Samples[round] > 0 {
			m.Samples = append(m.Samples, over.Samples[round]/under.Samples[round])
		}
	}
	if len(m.Samples) > 0 {
		c.results[i].add([]Metric{m})
	}
}

func (side Side) label() string {
	text := side.Group + ", " + side.Side
	for _, name := range sortedKeys(side.Params) {
		text += ", " + side.Params[name] + " " + name
	}
	return text
}

// add appends the samples of one round to the metrics of the same names.
func (r *Result) add(metrics []Metric) {
	for _, m := range metrics {
		if i := slices.IndexFunc(r.Metrics, func(have Metric) bool { return have.Name == m.Name }); i >= 0 {
			r.Metrics[i].Samples = append(r.Metrics[i].Samples, m.Samples...)
			r.Metrics[i].latencies = append(r.Metrics[i].latencies, m.latencies...)
			continue
		}
		r.Metrics = append(r.Metrics, m)
	}
}
