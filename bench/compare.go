package bench

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// Side is one of the things that a comparison measures in turn.
type Side struct {
	Group, System, Side string
	Params              map[string]string
	// Round works for about d and records what it measured.
	Round func(ctx context.Context, d time.Duration, m *Measured) error
	// Over names, by the metric to record, the side whose Rate this one's is divided by,
	// round by round: {"of hand-written": 1} compares with the second side.
	Over map[string]int
	// Cost is Over turned around: it divides the named side's Rate by this one's, so that 2 is
	// a side whose operations take twice as long.
	Cost map[string]int
	// Verify reads back what the rounds acknowledged, and says what it found. It is called
	// once, after the last round. Nil for a side that writes nothing.
	Verify func(ctx context.Context) (string, error)
}

// Measured collects the metrics of one round.
type Measured struct{ metrics []Metric }

// Add records a metric of the round.
func (m *Measured) Add(name, unit string, better Better, value float64) {
	m.metrics = append(m.metrics, Metric{Name: name, Unit: unit, Better: better, Samples: []float64{value}})
}

// Quantiles records p50, p95, p99 and the maximum of latencies, in milliseconds, as "name p50"
// and so on. It records nothing of none.
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
// of each. A side that fails makes a fault, and the others go on. It returns an error only when
// ctx has ended.
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
		ratio := func(i, j int, name string, better Better) {
			a, _ := results[i].Metric(Rate)
			b, _ := results[j].Metric(Rate)
			if len(a.Samples) <= round || len(b.Samples) <= round || a.Samples[round] == 0 || b.Samples[round] == 0 {
				return
			}
			value, of := a.Samples[round]/b.Samples[round], i
			if better == Less {
				of = j
			}
			results[of].add([]Metric{{Name: name, Better: better, Samples: []float64{value}}})
		}
		for i, side := range sides {
			for _, name := range sortedKeys(side.Over) {
				ratio(i, side.Over[name], name, More)
			}
			for _, name := range sortedKeys(side.Cost) {
				ratio(side.Cost[name], i, name, Less)
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
