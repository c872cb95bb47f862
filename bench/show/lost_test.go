package show

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/tapestore/tapestore/bench"
)

// pair returns two reports of the same four results.
func pair() (a, b bench.Report) {
	a, b = reportOf(bench.More, low, low, low, low), reportOf(bench.More, low, low, low, low)
	a.Parts, b.Parts = []string{"cas"}, []string{"cas"}
	return a, b
}

// TestLostResults checks which results of A that B lacks count as lost.
func TestLostResults(t *testing.T) {
	t.Parallel()
	peer := bench.System{Name: "etcd", Peer: true, Version: "3"}
	for name, c := range map[string]struct {
		change      func(a, b *bench.Report)
		lost, onlyA int
		failure     string // a reason for which --fail fails; empty for none
	}{
		"nothing":  {func(a, b *bench.Report) {}, 0, 0, ""},
		"a result": {func(a, b *bench.Report) { b.Results = b.Results[1:] }, 1, 0, "it lacks 1 result of the first"},
		"a result that failed its reading back": {func(a, b *bench.Report) {
			b.Results, b.Faults = b.Results[1:], []bench.Fault{{Part: "cas", Text: "reading back"}}
		}, 1, 0, "it has 1 fault"},
		"a fault alone":  {func(a, b *bench.Report) { b.Faults = []bench.Fault{{Text: "x"}} }, 0, 0, "it has 1 fault"},
		"a fault of A":   {func(a, b *bench.Report) { a.Faults = []bench.Fault{{Text: "x"}} }, 0, 0, ""},
		"an interrupt":   {func(a, b *bench.Report) { b.Interrupted = true }, 0, 0, "its run was interrupted"},
		"all results":    {func(a, b *bench.Report) { b.Results = nil }, 4, 0, "it lacks 4 results of the first"},
		"another scale":  {func(a, b *bench.Report) { b.Results, b.Scale = b.Results[1:], "full" }, 0, 1, ""},
		"another part":   {func(a, b *bench.Report) { b.Results, b.Parts = nil, []string{"read"} }, 0, 4, ""},
		"another engine": {func(a, b *bench.Report) { b.Results, b.Systems[0].Name = nil, "postgres" }, 0, 4, ""},
		"an engine that is missing": {func(a, b *bench.Report) {
			b.Results, b.Systems[0].Missing = nil, "there is none"
		}, 4, 0, "it lacks 4 results of the first"},
		"an old report without parts": {func(a, b *bench.Report) { b.Results, b.Parts = b.Results[1:], nil }, 1, 0, "it lacks 1 result of the first"},
		"an old report of another part": {func(a, b *bench.Report) {
			b.Results, b.Parts = []bench.Result{{Part: "read", System: "sqlite"}}, nil
		}, 0, 4, ""},
		"the peers of another module": {func(a, b *bench.Report) {
			a.Systems, a.Results[0].System, b.Results = append(a.Systems, peer), "etcd", b.Results[1:]
		}, 0, 1, ""},
		"peers that were not started": {func(a, b *bench.Report) {
			a.Systems, a.Results[0].System, b.Results = append(a.Systems, peer), "etcd", b.Results[1:]
			b.Systems = append(b.Systems, bench.System{Name: "other lease libraries", Peer: true, Missing: "the disk is full"})
		}, 1, 0, "it lacks 1 result of the first"},
		"a similar size": {func(a, b *bench.Report) { reach(a, 10_000); reach(b, 5_000) }, 0, 0, ""},
		"another size":   {func(a, b *bench.Report) { reach(a, 10_000); reach(b, 4_999) }, 1, 0, "it lacks 1 result of the first"},
		"a size of B":    {func(a, b *bench.Report) { reach(b, 10) }, 0, 0, ""},
		"no size at all": {func(a, b *bench.Report) { reach(a, 0); reach(b, 0) }, 0, 0, ""},
	} {
		a, b := pair()
		c.change(&a, &b)
		d := Diff(a, b)
		if len(d.Lost) != c.lost || len(d.OnlyA) != c.onlyA {
			t.Errorf("%s: %d results are lost and %d are only in A, want %d and %d", name, len(d.Lost), len(d.OnlyA), c.lost, c.onlyA)
		}
		if got := d.Failures(); c.failure == "" && len(got) > 0 || c.failure != "" && !slices.Contains(got, c.failure) {
			t.Errorf("%s: fails for %q, want %q", name, got, c.failure)
		}
	}
}

// reach records the size that the first result reached.
func reach(r *bench.Report, n float64) {
	r.Results[0].Metrics = append(r.Results[0].Metrics, bench.Metric{Name: bench.Reached, Unit: "runs", Samples: []float64{n}})
}

// TestMetricsThatCannotBeCompared checks that metrics of one report, and those with another unit,
// are listed.
func TestMetricsThatCannotBeCompared(t *testing.T) {
	t.Parallel()
	a, b := pair()
	a.Results[0].Metrics = append(a.Results[0].Metrics, bench.Metric{Name: "gone", Samples: low}, bench.Metric{Name: "wait", Unit: "ms", Samples: low})
	b.Results[0].Metrics = append(b.Results[0].Metrics, bench.Metric{Name: "new", Samples: low}, bench.Metric{Name: "wait", Unit: "s", Samples: low}, bench.Metric{Name: "gone"})
	reach(&a, 10)
	reach(&b, 11)
	var out bytes.Buffer
	d, err := Compare(&out, a, b)
	if err != nil || len(d.Failures()) > 0 || len(d.Metrics) != 3 || len(d.Changes) != 4 {
		t.Errorf("got %v, %q, %d metrics that are not compared and %d that are", err, d.Failures(), len(d.Metrics), len(d.Changes))
	}
	for _, want := range []string{"metrics that are not compared: 3", ": gone: only in A", ": new: only in B", ": wait: the unit is ms in A and s in B"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the text lacks %q:\n%s", want, out.String())
		}
	}
}

// TestLostText checks that the text says why a result has no counterpart.
func TestLostText(t *testing.T) {
	t.Parallel()
	for reason, change := range map[string]func(b *bench.Report){
		"lost in B: 1 result (B measured the same part":                        func(b *bench.Report) {},
		"only in A: 1 result (the scales differ)":                              func(b *bench.Report) { b.Scale = "full" },
		"only in A: 1 result (B did not measure their part or their system)\n": func(b *bench.Report) { b.Parts = []string{"read"} },
	} {
		a, b := pair()
		b.Results = b.Results[1:]
		change(&b)
		var out bytes.Buffer
		if _, err := Compare(&out, a, b); err != nil || !strings.Contains(out.String(), reason) {
			t.Errorf("%v; the text lacks %q:\n%s", err, reason, out.String())
		}
	}
}

// TestTooFewAreNoTests checks that metrics with too few samples do not enter the number of tests,
// also where their medians are equal: four differences among twenty tests are found.
func TestTooFewAreNoTests(t *testing.T) {
	t.Parallel()
	var a, b [][]float64
	for i := range 40 {
		switch {
		case i < 4:
			a, b = append(a, low), append(b, high)
		case i < 20:
			a, b = append(a, low), append(b, low)
		default:
			a, b = append(a, low[:1]), append(b, low[:1])
		}
	}
	d := Diff(reportOf(bench.More, a...), reportOf(bench.More, b...))
	if len(d.Of(Improved)) != 4 || d.tested() != 20 {
		t.Errorf("%d improved of %d tests, want 4 of 20", len(d.Of(Improved)), d.tested())
	}
}

// TestPeaksAreComparedByTheirMedians checks that one extreme round does not decide the direction of
// a change.
func TestPeaksAreComparedByTheirMedians(t *testing.T) {
	t.Parallel()
	a, b := reportOf(bench.Less, high), reportOf(bench.Less, append([]float64{99}, low...))
	a.Results[0].Metrics[0].Samples = append(a.Results[0].Metrics[0].Samples, high...)
	b.Results[0].Metrics[0].Samples = append(b.Results[0].Metrics[0].Samples, low...)
	a.Results[0].Metrics[0].Peak, b.Results[0].Metrics[0].Peak = true, true
	if d := Diff(a, b); len(d.Of(Improved)) != 1 {
		t.Errorf("got %+v, want an improvement", d.Changes)
	}
}

// TestTextShowsTheSpread checks that figures of the text have the range of their samples, and that a
// maximum is the largest of them.
func TestTextShowsTheSpread(t *testing.T) {
	t.Parallel()
	r := bench.Report{Format: bench.Format, Systems: []bench.System{{Name: "sqlite", Durable: true}}, Results: []bench.Result{{
		Part: "cas", Group: "one lease", System: "sqlite", Side: "keeper", Params: map[string]string{"contenders": "1"},
		Metrics: []bench.Metric{
			{Name: bench.Rate, Unit: "wins/s", Samples: []float64{1000, 1200, 1100}},
			{Name: "winner max", Unit: "ms", Peak: true, Samples: []float64{4, 9, 5}},
			{Name: "Jain's index", Samples: []float64{0.5}},
		},
	}}}
	text := textOf(t, r)
	for _, want := range []string{"1,100 (1,000–1,200)", "9.00 (4.00–9.00)", "0.5\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("the text lacks %q:\n%s", want, text)
		}
	}
}
