package bench

import (
	"math"
	"slices"
	"time"
)

// quantiles are those that Quantiles records in addition to the median, each with the least number of
// latencies for which it is not simply the maximum.
var quantiles = []struct {
	name  string
	q     float64
	least int
}{{"p95", 0.95, 20}, {"p99", 0.99, 100}}

// Quantiles records p50, p95, p99 and the maximum of the latencies of a round, in milliseconds, as
// "name p50" and so on, and nothing if there are none. If some round has fewer than 20 latencies for
// a p95, or 100 for a p99, the latencies of all rounds together make one sample; if they are fewer
// than that too, the metric is left out.
func (m *Measured) Quantiles(name string, all []time.Duration) {
	if len(all) == 0 {
		return
	}
	all = slices.Sorted(slices.Values(all))
	m.Add(name+" p50", "ms", Less, milliseconds(middle(all)))
	for _, z := range quantiles {
		m.metrics = append(m.metrics, Metric{Name: name + " " + z.name, Unit: "ms", Better: Less, latencies: [][]time.Duration{all}, q: z.q, least: z.least})
	}
	m.AddPeak(name+" max", Less, all[len(all)-1])
}

// withQuantiles returns the metrics with the samples of the quantiles, without those that have too few
// latencies.
func withQuantiles(all []Metric) (metrics []Metric) {
	for _, m := range all {
		if m.latencies != nil {
			m.Samples = m.ofLatencies()
		}
		if len(m.Samples) > 0 {
			m.latencies = nil
			metrics = append(metrics, m)
		}
	}
	return metrics
}

// ofLatencies returns the samples of a quantile: one for each round, one for all rounds together,
// or none.
func (m *Metric) ofLatencies() (samples []float64) {
	if slices.ContainsFunc(m.latencies, func(round []time.Duration) bool { return len(round) < m.least }) {
		all := slices.Concat(m.latencies...)
		if len(all) < m.least {
			return nil
		}
		slices.Sort(all)
		return []float64{milliseconds(nearestRank(all, m.q))}
	}
	for _, round := range m.latencies {
		samples = append(samples, milliseconds(nearestRank(round, m.q)))
	}
	return samples
}

// nearestRank returns the q-quantile of sorted values: the smallest of them that is at least as
// large as a share q of all.
func nearestRank(sorted []time.Duration, q float64) time.Duration {
	rank := int(math.Ceil(q*float64(len(sorted)) - 1e-9)) // 0.95 times 20 may be slightly more than 19
	return sorted[max(1, rank)-1]
}

// middle returns the median of sorted values: of an even number, the mean of the two in the middle.
func middle(sorted []time.Duration) time.Duration {
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}
