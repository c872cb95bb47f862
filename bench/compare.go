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
	// Round works for about d and records its metrics in m.
	Round func(ctx context.Context, d time.Duration, m *Measured) error
	// Over maps the name of a metric to the index of a side: the metric is this side's Rate divided
	// by that side's, round by round. {"of hand-written": 1} compares with the second side.
	Over map[string]int
	// Under is the reciprocal of Over: the metric is the named side's Rate divided by this one's.
	// It is the cost of this side in terms of the other.
	Under map[string]int
	// Verify reads back what the rounds acknowledged, and describes what it found. It is called
	// once, after the last round. Nil for a side that writes nothing.
	Verify func(ctx context.Context) (string, error)
}

// Measured collects the metrics of one round.
type Measured struct{ metrics []Metric }

// Add records a metric of the round.
func (m *Measured) Add(name, unit string, better Better, value float64) {
	m.metrics = append(m.metrics, Metric{Name: name, Unit: unit, Better: better, Samples: []float64{value}})
}

// Quantiles records p50, p95, p99 and the maximum of latencies, in milliseconds, as "name p50" and
// so on. It records nothing if there are no latencies.
func (m *Measured) Quantiles(name string, all []time.Duration) {
	if len(all) == 0 {
		return
	}
	all = slices.Sorted(slices.Values(all))
	at := func(q float64) float64 {
		return float64(all[min(len(all)-1, int(q*float64(len(all))))]) / float64(time.Millisecond)
	}
	for _, q := range []struct {
		name string
		at   float64
	}{{"p50", 0.50}, {"p95", 0.95}, {"p99", 0.99}, {"max", 1}} {
		m.Add(name+" "+q.name, "ms", Less, at(q.at))
	}
}

// Compare runs the sides in turn, round by round, verifies what they wrote, and records a result
// for each. A side that fails records a fault, and the other sides continue. Compare returns an
// error only when ctx has ended.
func (s *Session) Compare(ctx context.Context, sides ...Side) error {
	results := make([]Result, len(sides))
	failed := make([]bool, len(sides))
	for i, side := range sides {
		results[i] = Result{Part: s.Part, Group: side.Group, System: side.System, Side: side.Side, Params: side.Params}
	}
	for round := range s.Scale.Rounds {
		for k := range sides {
			i := (k + round) % len(sides)
			if failed[i] {
				continue
			}
			var m Measured
			if err := sides[i].Round(ctx, s.Scale.Slice, &m); err != nil {
				if ctx.Err() != nil {
					return ctx.Err()
				}
				failed[i] = true
				s.Fault(sides[i].System, fmt.Errorf("%s: %w", sides[i].label(), err))
				continue
			}
			results[i].add(m.metrics)
		}
		for i, side := range sides {
			for _, name := range sortedKeys(side.Over) {
				if q, ok := quotient(results[i], results[side.Over[name]], round); ok {
					results[i].add([]Metric{{Name: name, Better: More, Samples: []float64{q}}})
				}
			}
			for _, name := range sortedKeys(side.Under) {
				if q, ok := quotient(results[side.Under[name]], results[i], round); ok {
					results[i].add([]Metric{{Name: name, Better: Less, Samples: []float64{q}}})
				}
			}
		}
	}
	for i, side := range sides {
		if failed[i] {
			continue
		}
		if side.Verify != nil {
			found, err := side.Verify(ctx)
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if err != nil {
				s.Fault(side.System, fmt.Errorf("%s: reading back: %w", side.label(), err))
				continue
			}
			results[i].Verified = found
		}
		s.Record(results[i])
	}
	return ctx.Err()
}

// quotient divides the rates of two results in a round; ok is false if one of them has none.
func quotient(a, b Result, round int) (q float64, ok bool) {
	over, _ := a.Metric(Rate)
	under, _ := b.Metric(Rate)
	if len(over.Samples) <= round || len(under.Samples) <= round || under.Samples[round] <= 0 {
		return 0, false
	}
	return over.Samples[round] / under.Samples[round], true
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
			continue
		}
		r.Metrics = append(r.Metrics, m)
	}
}
