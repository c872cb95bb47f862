package show

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/aclements/go-moremath/stats"

	"github.com/tapestore/tapestore/bench"
)

// falseDiscoveries is the false discovery rate: the expected share of reported changes that are due
// to chance.
const falseDiscoveries = 0.05 // the customary level

// Verdict is the outcome of the comparison of a metric between two reports.
type Verdict string

// The verdicts. A Changed metric has no better direction. A Suspected metric differs by its own
// test, but not once the number of comparisons is taken into account. A metric with TooFew samples
// is not tested.
const (
	Worse     Verdict = "worse"
	Improved  Verdict = "improved"
	Changed   Verdict = "changed"
	Suspected Verdict = "suspected"
	TooFew    Verdict = "too few samples"
	Unchanged Verdict = "unchanged"
)

// Change is the comparison of one metric of one result that both reports have.
type Change struct {
	Result  bench.Result // of the second report
	Metric  string
	Unit    string
	A, B    float64 // medians, also of the maxima of the rounds
	NA, NB  int     // samples
	P       float64 // of the Mann-Whitney U test, two-sided
	Verdict Verdict
}

// Difference is the result of comparing two reports.
type Difference struct {
	Changes []Change // all compared metrics, in the order of the second report
	// Lost are the results that only the first report has, although the second run measured the
	// same part of the same system at the same scale. OnlyA and OnlyB are the other results without
	// a counterpart.
	Lost, OnlyA, OnlyB []bench.Result
	Metrics            []MetricChange
	Warnings           []string // why the reports may not be comparable
	Faults             int      // of the second report
	Interrupted        bool     // the second run was ended early
}

// MetricChange is a metric that cannot be compared, of a result that both reports have.
type MetricChange struct {
	Result bench.Result // of the second report
	Metric string
	Reason string // "only in A", "only in B", "the unit is ms in A and s in B"
}

// Diff compares two reports. It matches results by part, group, system, side, parameters and the
// size that was reached, and compares the samples of each metric that both have by the exact
// Mann-Whitney U test, which assumes nothing about their distribution. It controls the false
// discovery rate of all these tests together at 5 percent, by the procedure of Benjamini and
// Hochberg.
func Diff(a, b bench.Report) Difference {
	d := Difference{Warnings: warnings(a, b), Faults: len(b.Faults), Interrupted: b.Interrupted}
	used := make([]bool, len(a.Results))
	for _, after := range b.Results {
		i := -1
		for k, before := range a.Results {
			if !used[k] && sameResult(before, after) {
				i = k
				break
			}
		}
		if i < 0 {
			d.OnlyB = append(d.OnlyB, after)
			continue
		}
		used[i] = true
		d.metrics(a.Results[i], after)
	}
	for i, before := range a.Results {
		switch {
		case used[i]:
		case a.Scale == b.Scale && measured(b, before, a):
			d.Lost = append(d.Lost, before)
		default:
			d.OnlyA = append(d.OnlyA, before)
		}
	}
	d.judge()
	return d
}

// metrics compares the metrics of a result in both reports.
func (d *Difference) metrics(before, after bench.Result) {
	cannot := func(metric, reason string) {
		d.Metrics = append(d.Metrics, MetricChange{after, metric, reason})
	}
	for _, m := range after.Metrics {
		was, ok := before.Metric(m.Name)
		switch {
		case m.Name == bench.Reached:
		case len(m.Samples) == 0:
			// As if the metric were absent; the next loop reports it.
		case !ok || len(was.Samples) == 0:
			cannot(m.Name, "only in B")
		case was.Unit != m.Unit:
			cannot(m.Name, fmt.Sprintf("the unit is %s in A and %s in B", cmp.Or(was.Unit, "none"), cmp.Or(m.Unit, "none")))
		default:
			d.Changes = append(d.Changes, compare(after, was, m))
		}
	}
	for _, was := range before.Metrics {
		if m, _ := after.Metric(was.Name); len(m.Samples) == 0 && len(was.Samples) > 0 && was.Name != bench.Reached {
			cannot(was.Name, "only in A")
		}
	}
}

// Failures returns the reasons for which the second report is worse than the first, or hides
// whether it is.
func (d Difference) Failures() (all []string) {
	if n := len(d.Of(Worse)); n > 0 {
		all = append(all, fmt.Sprintf("%s became worse", count(n, "metric")))
	}
	if n := len(d.Lost); n > 0 {
		all = append(all, fmt.Sprintf("it lacks %s of the first", count(n, "result")))
	}
	if d.Faults > 0 {
		all = append(all, "it has "+count(d.Faults, "fault"))
	}
	if d.Interrupted {
		all = append(all, "its run was interrupted")
	}
	return all
}

// measured reports whether the run of report b was to measure what produced a result of report a:
// the part was asked for, and so was the system. A system that b could not start was asked for. So
// was a peer, if b could not start some peers.
func measured(b bench.Report, r bench.Result, a bench.Report) bool {
	if !slices.Contains(partsOf(b), r.Part) {
		return false
	}
	peer := slices.ContainsFunc(a.Systems, func(s bench.System) bool { return s.Name == r.System && s.Peer })
	return slices.ContainsFunc(b.Systems, func(s bench.System) bool {
		return s.Name == r.System || peer && s.Peer && s.Missing != ""
	})
}

// partsOf returns the parts that a run was to measure. A report without Parts is older than that
// field; its results, faults and notes name them.
func partsOf(r bench.Report) (parts []string) {
	if len(r.Parts) > 0 {
		return r.Parts
	}
	for _, of := range r.Results {
		parts = append(parts, of.Part)
	}
	for _, of := range r.Faults {
		parts = append(parts, of.Part)
	}
	for _, of := range r.Notes {
		parts = append(parts, of.Part)
	}
	return parts
}

func sameResult(a, b bench.Result) bool {
	return a.Part == b.Part && a.Group == b.Group && sideOf(a) == sideOf(b) && compareParams(a.Params, b.Params) == 0 &&
		len(a.Params) == len(b.Params) && similarSize(a, b)
}

// similarSizes is the factor by which two reached sizes may differ for their results to be
// compared: 2, because costs that grow with the size grow at most about as much.
const similarSizes = 2

// similarSize reports whether the sizes that both results have reached are similar. A result
// without such a size, as in older reports, is similar to all.
func similarSize(a, b bench.Result) bool {
	x, okA := a.Metric(bench.Reached)
	y, okB := b.Metric(bench.Reached)
	if !okA || !okB {
		return true
	}
	return max(x.Value(), y.Value()) <= similarSizes*min(x.Value(), y.Value())
}

// compare compares the samples of one metric by the Mann-Whitney U test. The verdict does not yet
// take the number of comparisons into account; see judge.
func compare(r bench.Result, a, b bench.Metric) Change {
	c := Change{
		Result: r, Metric: b.Name, Unit: b.Unit, A: a.Median(), B: b.Median(), NA: len(a.Samples), NB: len(b.Samples),
		P: 1, Verdict: Unchanged,
	}
	test, err := stats.MannWhitneyUTest(a.Samples, b.Samples, stats.LocationDiffers)
	if err == nil { // the only possible error is that all samples are equal
		c.P = test.P
	}
	if leastP(c.NA, c.NB) > falseDiscoveries {
		c.Verdict = TooFew
	}
	switch up := c.B > c.A; {
	case c.Verdict == TooFew || c.P > falseDiscoveries || c.A == c.B:
	case b.Better == "":
		c.Verdict = Changed
	case up == (b.Better == bench.More):
		c.Verdict = Improved
	default:
		c.Verdict = Worse
	}
	return c
}

// leastP returns the smallest p-value that samples of these sizes can have: all of one are above
// all of the other, in one of two directions.
func leastP(a, b int) float64 {
	ways := 1.0
	for i := 1; i <= a; i++ {
		ways = ways * float64(b+i) / float64(i)
	}
	return min(1, 2/ways)
}

// roundsFor returns the number of samples on each side with which a test can reach a p-value of p.
func roundsFor(p float64) int {
	n := 1
	for leastP(n, n) > p {
		n++
	}
	return n
}

// judge applies the procedure of Benjamini and Hochberg. With the p-values in ascending order, it
// accepts the changes up to the last one whose p-value is at most its rank's share of the level.
// The other changes that would be significant alone become suspected.
func (d *Difference) judge() {
	var order []int
	for i, c := range d.Changes {
		if c.Verdict != TooFew {
			order = append(order, i)
		}
	}
	slices.SortStableFunc(order, func(i, k int) int { return cmp.Compare(d.Changes[i].P, d.Changes[k].P) })
	found := 0
	for rank, i := range order {
		if d.Changes[i].P <= falseDiscoveries*float64(rank+1)/float64(len(order)) {
			found = rank + 1
		}
	}
	for _, i := range order[found:] {
		if d.Changes[i].Verdict != Unchanged {
			d.Changes[i].Verdict = Suspected
		}
	}
}

// Of returns the changes with the given verdict.
func (d Difference) Of(v Verdict) (all []Change) {
	for _, c := range d.Changes {
		if c.Verdict == v {
			all = append(all, c)
		}
	}
	return all
}

// tested returns the number of comparisons that had enough samples.
func (d Difference) tested() int { return len(d.Changes) - len(d.Of(TooFew)) }

// warnings returns the reasons for which two reports may not be comparable.
func warnings(a, b bench.Report) (all []string) {
	differ := func(what, x, y string) {
		if x != y {
			all = append(all, fmt.Sprintf("%s differs: %s and %s", what, cmp.Or(x, "unknown"), cmp.Or(y, "unknown")))
		}
	}
	x, y := a.Machine, b.Machine
	differ("the CPU", x.CPU, y.CPU)
	differ("the number of cores", fmt.Sprint(x.Cores), fmt.Sprint(y.Cores))
	differ("the memory", memory(x.Memory), memory(y.Memory))
	differ("the operating system", x.OS, y.OS)
	differ("the version of Go", x.Go, y.Go)
	if x.SyncMS > 0 && y.SyncMS > 0 && max(x.SyncMS, y.SyncMS) > 2*min(x.SyncMS, y.SyncMS) {
		all = append(all, fmt.Sprintf("the disk differs: a synced write takes %s ms and %s ms", number(x.SyncMS), number(y.SyncMS)))
	}
	differ("the scale", a.Scale, b.Scale)
	for _, s := range a.Systems {
		for _, t := range b.Systems {
			if s.Name == t.Name && s.Missing == "" && t.Missing == "" {
				differ("the version of "+s.Name, s.Version, t.Version)
				differ("the topology of "+s.Name, s.Topology, t.Topology)
				differ("the tier of "+s.Name, s.Tier, t.Tier)
			}
		}
	}
	for _, r := range []struct {
		name   string
		report bench.Report
	}{{"A", a}, {"B", b}} {
		if n := len(r.report.Faults); n > 0 {
			all = append(all, fmt.Sprintf("%s has %s", r.name, count(n, "fault")))
		}
	}
	return all
}
