package show

import (
	"bytes"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/tapestore/tapestore/bench"
)

// reportOf returns a report with a result for each set of samples.
func reportOf(better bench.Better, samples ...[]float64) bench.Report {
	r := bench.Report{Format: bench.Format, Scale: "standard", Systems: []bench.System{{Name: "sqlite", Version: "3"}}}
	for i, s := range samples {
		r.Results = append(r.Results, bench.Result{
			Part: "cas", Group: "one lease", System: "sqlite", Side: "keeper", Params: map[string]string{"contenders": fmt.Sprint(i)},
			Metrics: []bench.Metric{{Name: bench.Rate, Unit: "wins/s", Better: better, Samples: s}},
		})
	}
	return r
}

var (
	low  = []float64{1, 2, 3, 4, 5}
	high = []float64{11, 12, 13, 14, 15}
)

func TestVerdicts(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		a, b   []float64
		better bench.Better
		want   Verdict
		p      float64
	}{
		"more":          {low, high, bench.More, Improved, 2.0 / 252},
		"less":          {low, high, bench.Less, Worse, 2.0 / 252},
		"fell":          {high, low, bench.More, Worse, 2.0 / 252},
		"a fact":        {low, high, "", Changed, 2.0 / 252},
		"noise":         {low, []float64{2.5, 1.5, 3.5, 4.5, 0.5}, bench.More, Unchanged, -1}, // any p
		"equal":         {[]float64{3, 3, 3, 3}, []float64{3, 3, 3, 3}, bench.More, Unchanged, 1},
		"three samples": {low[:3], high[:3], bench.More, TooFew, 2.0 / 20},
		"four samples":  {low[:4], high[:4], bench.More, Improved, 2.0 / 70},
		"one sample":    {low[:1], high[:1], bench.More, TooFew, 1},
	} {
		d := Diff(reportOf(c.better, c.a), reportOf(c.better, c.b))
		if len(d.Changes) != 1 {
			t.Errorf("%s: got %d comparisons", name, len(d.Changes))
			continue
		}
		if got := d.Changes[0]; got.Verdict != c.want || c.p >= 0 && math.Abs(got.P-c.p) > 1e-9 {
			t.Errorf("%s: got %s with p %v, want %s with %v", name, got.Verdict, got.P, c.want, c.p)
		}
	}
}

// TestFalseDiscoveries checks that one difference among many comparisons is attributed to chance,
// and that many differences are not.
func TestFalseDiscoveries(t *testing.T) {
	t.Parallel()
	run := func(changed int) Difference {
		var a, b [][]float64
		for i := range 20 {
			a, b = append(a, low), append(b, low)
			if i < changed {
				b[i] = high
			}
		}
		return Diff(reportOf(bench.More, a...), reportOf(bench.More, b...))
	}
	if d := run(1); len(d.Of(Improved)) != 0 || len(d.Of(Suspected)) != 1 || len(d.Of(Unchanged)) != 19 {
		t.Errorf("one of 20: got %d improved, %d suspected, %d unchanged", len(d.Of(Improved)), len(d.Of(Suspected)), len(d.Of(Unchanged)))
	}
	// 4 of 20 need p ≤ 0.05·4/20 = 0.01, and have 0.0079.
	if d := run(4); len(d.Of(Improved)) != 4 || len(d.Of(Suspected)) != 0 {
		t.Errorf("four of 20: got %d improved, %d suspected", len(d.Of(Improved)), len(d.Of(Suspected)))
	}
	// 3 of 20 need 0.0075.
	if d := run(3); len(d.Of(Improved)) != 0 || len(d.Of(Suspected)) != 3 {
		t.Errorf("three of 20: got %d improved, %d suspected", len(d.Of(Improved)), len(d.Of(Suspected)))
	}
}

func TestRounds(t *testing.T) {
	t.Parallel()
	for p, want := range map[float64]int{0.05: 4, 0.01: 5, 0.05 / 100: 8} { // 2/70, 2/252, 2/12870
		if got := roundsFor(p); got != want {
			t.Errorf("p %v: got %d rounds, want %d", p, got, want)
		}
	}
}

// TestCompareText checks that the text names what changed, what only one report has, and why the
// two may not be comparable.
func TestCompareText(t *testing.T) {
	t.Parallel()
	a, b := reportOf(bench.More, low, high, low[:2], low), reportOf(bench.More, high, low, high[:2], low)
	a.Results[3].Side, b.Results[3].Side = "only before", "only after"
	a.Machine.CPU, b.Machine.CPU = "one", "another"
	b.Systems[0].Version = "4"
	b.Faults = []bench.Fault{{Text: "x"}}
	var out bytes.Buffer
	d, err := Compare(&out, a, b)
	if err != nil || len(d.Of(Worse)) != 1 || len(d.Of(Improved)) != 1 {
		t.Errorf("got %v, %d worse, %d improved", err, len(d.Of(Worse)), len(d.Of(Improved)))
	}
	for _, want := range []string{
		"WARNING: the CPU differs: one and another", "WARNING: the version of sqlite differs: 3 and 4", "WARNING: B has 1 fault",
		"worse: 1\n", "improved: 1\n", "cas / one lease / sqlite / keeper / 1 contender: rate", "-76.9 %", "+333.3 %", "0.0079",
		"too few samples to say: 1; each side needs 4 rounds or more", "lost in B: 1 result", "only before", "only in B: 1 result", "only after", "2 comparisons",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the text lacks %q:\n%s", want, out.String())
		}
	}
	out.Reset()
	if _, err := Compare(&out, a, a); err != nil || strings.Contains(out.String(), "WARNING") || !strings.Contains(out.String(), "unchanged, as far as the samples show: 3\n") {
		t.Errorf("a report against itself: %v:\n%s", err, out.String())
	}
}
