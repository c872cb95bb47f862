package bench

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"
)

// compared runs a comparison of sides on a target without stores, and returns its report.
func compared(ctx context.Context, rounds int, sides ...Side) (Report, error) {
	var report Report
	s := &Session{Part: "test", Scale: Scale{Rounds: rounds}, Target: Target{System: System{Name: "engine"}}, report: &report}
	err := s.Compare(ctx, sides...)
	return report, err
}

func TestTurnsAreBalanced(t *testing.T) {
	t.Parallel()
	for n := 1; n <= 12; n++ {
		rounds, each := n, 1
		if n%2 == 1 {
			rounds, each = 2*n, 2
		}
		follows, places := map[[2]int]int{}, map[[2]int]int{}
		for round := range rounds {
			order := turns(n, round)
			if sorted := slices.Sorted(slices.Values(order)); len(order) != n || sorted[0] != 0 || sorted[n-1] != n-1 || len(slices.Compact(sorted)) != n {
				t.Fatalf("%d sides, round %d: the order is %v", n, round, order)
			}
			for k, side := range order {
				places[[2]int{side, k}]++
				if k > 0 {
					follows[[2]int{order[k-1], side}]++
				}
			}
		}
		for a := range n {
			for b := range n {
				if got := places[[2]int{a, b}]; got != each {
					t.Errorf("%d sides: side %d has place %d %d times, want %d", n, a, b, got, each)
				}
				if got := follows[[2]int{a, b}]; a != b && got != each {
					t.Errorf("%d sides: side %d follows side %d %d times, want %d", n, b, a, got, each)
				}
			}
		}
	}
}

func TestQuantiles(t *testing.T) {
	t.Parallel()
	ms := func(n int) (all []time.Duration) {
		for i := n; i > 0; i-- {
			all = append(all, time.Duration(i)*time.Millisecond)
		}
		return all
	}
	type samples map[string][]float64
	for _, tc := range []struct {
		rounds []int // the number of latencies of each
		want   samples
	}{
		{[]int{0}, samples{}},
		{[]int{1}, samples{"x p50": {1}, "x max": {1}}},
		{[]int{2}, samples{"x p50": {1.5}, "x max": {2}}},
		{[]int{5}, samples{"x p50": {3}, "x max": {5}}},
		{[]int{19}, samples{"x p50": {10}, "x max": {19}}},
		{[]int{20}, samples{"x p50": {10.5}, "x p95": {19}, "x max": {20}}},
		{[]int{100, 101}, samples{"x p50": {50.5, 51}, "x p95": {95, 96}, "x p99": {99, 100}, "x max": {100, 101}}},
		{[]int{10, 10}, samples{"x p50": {5.5, 5.5}, "x p95": {10}, "x max": {10, 10}}},
		{[]int{60, 100}, samples{"x p50": {30.5, 50.5}, "x p95": {57, 95}, "x p99": {99}, "x max": {60, 100}}},
		{[]int{40, 0, 59}, samples{"x p50": {20.5, 30}, "x p95": {38, 57}, "x max": {40, 59}}},
	} {
		var r Result
		for _, n := range tc.rounds {
			var m Measured
			m.Quantiles("x", ms(n))
			r.add(m.metrics)
		}
		got := samples{}
		for _, metric := range withQuantiles(r.Metrics) {
			got[metric.Name] = metric.Samples
		}
		if !maps.EqualFunc(got, tc.want, slices.Equal) {
			t.Errorf("rounds of %v latencies: got %v, want %v", tc.rounds, got, tc.want)
		}
	}
}

// TestPeaks checks that the value of a maximum is that of all rounds.
func TestPeaks(t *testing.T) {
	t.Parallel()
	round := 0
	report, err := compared(t.Context(), 3, Side{Round: func(_ context.Context, _ time.Duration, m *Measured) error {
		round++
		m.Quantiles("wait", []time.Duration{time.Duration([]int{9, 2, 4}[round-1]) * time.Millisecond})
		return nil
	}})
	if err != nil || len(report.Results) != 1 {
		t.Fatalf("got %v and %+v", err, report)
	}
	for name, want := range map[string]float64{"wait p50": 4, "wait max": 9} {
		if m, _ := report.Results[0].Metric(name); m.Value() != want || len(m.Samples) != 3 {
			t.Errorf("%s is %v of %v, want %v", name, m.Value(), m.Samples, want)
		}
	}
}

// rated returns a side with a given rate, whose reading back fails if err is not nil.
func rated(name string, rate float64, err error) Side {
	return Side{
		Group: "group", Side: name, System: "engine",
		Round: func(_ context.Context, _ time.Duration, m *Measured) error {
			m.Add(Rate, "1/s", More, rate)
			return nil
		},
		Verify: func(context.Context) (string, error) { return "all of it", err },
	}
}

// TestRatiosAreOfVerifiedSides checks that a side whose reading back fails leaves neither a result
// nor a ratio to it.
func TestRatiosAreOfVerifiedSides(t *testing.T) {
	t.Parallel()
	store := rated("store", 6, nil)
	store.Over, store.Under = map[string]int{"of sound": 1, "of broken": 2}, map[string]int{"under sound": 1, "under broken": 2}
	report, err := compared(t.Context(), 2, store, rated("sound", 3, nil), rated("broken", 2, errors.New("an event is lost")))
	if err != nil || len(report.Results) != 2 || len(report.Faults) != 1 || !strings.Contains(report.Faults[0].Text, "group, broken: reading back: an event is lost") {
		t.Fatalf("got %v and %+v", err, report)
	}
	got := map[string][]float64{}
	for _, m := range report.Results[0].Metrics {
		got[m.Name] = m.Samples
	}
	if want := map[string][]float64{Rate: {6, 6}, "of sound": {2, 2}, "under sound": {0.5, 0.5}}; fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// TestInterruptedComparison ends a comparison in its third round: the first two are kept, with a
// note, and nothing is read back.
func TestInterruptedComparison(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	a, b := rated("a", 1, nil), rated("b", 2, nil)
	b.Over = map[string]int{"of a": 0}
	rounds, measure := 0, b.Round
	b.Round = func(ctx context.Context, d time.Duration, m *Measured) error {
		if rounds++; rounds == 3 {
			cancel()
			return ctx.Err()
		}
		return measure(ctx, d, m)
	}
	read := false
	b.Verify = func(context.Context) (string, error) { read = true; return "", nil }
	report, err := compared(ctx, 5, a, b)
	if !errors.Is(err, context.Canceled) || len(report.Results) != 2 || len(report.Faults) > 0 || read {
		t.Fatalf("got %v, read back: %v, and %+v", err, read, report)
	}
	for _, r := range report.Results {
		if m, _ := r.Metric(Rate); len(r.Metrics) != 1 || len(m.Samples) != 2 || r.Verified != "not read back: interrupted" {
			t.Errorf("got %+v, want the rates of two rounds", r)
		}
	}
	if len(report.Notes) != 1 || !strings.Contains(report.Notes[0].Text, "interrupted after 2 of 5 rounds") {
		t.Errorf("got the notes %+v", report.Notes)
	}
}

// TestInterruptedVerification ends a comparison while it reads back.
func TestInterruptedVerification(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	a := rated("a", 1, nil)
	a.Verify = func(ctx context.Context) (string, error) { cancel(); return "", ctx.Err() }
	report, err := compared(ctx, 2, a, rated("b", 2, nil))
	if !errors.Is(err, context.Canceled) || len(report.Results) != 2 || len(report.Faults) > 0 {
		t.Errorf("got %v and %+v, want both results and no fault", err, report)
	}
}

// TestInterruptedStart checks that an interrupt while an engine starts is a note and no fault.
func TestInterruptedStart(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	start := func(ctx context.Context) (Target, error) { cancel(); return Target{}, ctx.Err() }
	report, err := Run(ctx, []Starter{{Name: "engine", Start: start}}, Options{Scale: Smoke()})
	if err != nil || len(report.Faults) > 0 || len(report.Notes) != 1 || !report.Interrupted {
		t.Errorf("got %v and %+v, want one note", err, report)
	}
}

// TestRest checks that what only the strategies need is stopped once, after the last part that
// measures strategies.
func TestRest(t *testing.T) {
	t.Parallel()
	for parts, want := range map[string]int{"cas pause": 1, "cas": 1, "heartbeat": 0} {
		rests := 0
		start := func(context.Context) (Target, error) {
			target := Target{System: System{Name: "engine"}, Rest: func() error { rests++; return nil }}
			target.NewStore = func(context.Context) (Store, error) { return Store{}, errors.New("no store") }
			return target, nil
		}
		if _, err := Run(t.Context(), []Starter{{Name: "engine", Start: start}}, Options{Parts: strings.Fields(parts), Scale: Smoke()}); err != nil || rests != want {
			t.Errorf("%s: %v, %d rests, want %d", parts, err, rests, want)
		}
	}
}

func TestSettling(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		costs    []float64
		scans    int
		requests int64
	}{
		"the first is the cheapest":  {[]float64{3, 3, 3, 4, 3}, 1, 10},
		"the third is":               {[]float64{9, 5, 2, 2, 3, 2, 2}, 3, 30},
		"it gets dearer at the end":  {[]float64{9, 5, 6, 7}, 2, 20},
		"the last is, after a while": {[]float64{9, 5, 6, 5, 4}, 5, 50},
	} {
		var z settling
		for i, cost := range test.costs {
			z.scanned(cost, int64(10*(i+1)))
		}
		if z.scans != test.scans || z.requests != test.requests {
			t.Errorf("%s: %d scans and %d requests, want %d and %d", name, z.scans, z.requests, test.scans, test.requests)
		}
	}
}

func TestExactRounds(t *testing.T) {
	t.Parallel()
	scale := Standard()
	scale.Rounds = 4
	if got := scale.forEmulator().Rounds; got != 2 {
		t.Errorf("the scale's rounds on an emulator are %d, want 2", got)
	}
	scale.ExactRounds = true
	if got := scale.forEmulator().forSerial().Rounds; got != 4 {
		t.Errorf("exact rounds on an emulator are %d, want 4", got)
	}
}
