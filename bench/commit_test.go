package bench_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/tapestore/tapestore/bench"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
)

func measureCommits(t *testing.T, open func() runstore.RunStore, handWritten bench.Floor) bench.Report {
	t.Helper()
	store := bench.Store{Prefix: "bench", Open: func(context.Context) (runstore.RunStore, error) { return open(), nil }}
	if handWritten != nil {
		store.Floor = func(context.Context) (bench.Floor, error) { return handWritten, nil }
	}
	report, err := bench.Run(t.Context(), []bench.Starter{{Name: "memory", Start: func(context.Context) (bench.Target, error) {
		return bench.Target{
			System:   bench.System{Name: "memory"},
			NewStore: func(context.Context) (bench.Store, error) { return store, nil },
		}, nil
	}}}, bench.Options{Parts: []string{"commit"}, Scale: bench.Smoke()})
	if err != nil {
		t.Fatal(err)
	}
	return report
}

// counters is a hand-written side that only counts. The number of events and of records that it
// stores is lower by missing than the number that it acknowledges.
type counters struct {
	missing   int64
	committed counts
	inserted  counts
}

type counts struct{ events, records atomic.Int64 }

func (c *counts) add(w bench.Write) error {
	c.events.Add(int64(w.Events))
	for range w.Keys() {
		c.records.Add(1)
	}
	return nil
}

func (f *counters) Hold(context.Context, int) error {
	for _, c := range []*counts{&f.committed, &f.inserted} {
		c.events.Store(-f.missing)
		c.records.Store(-f.missing)
	}
	return nil
}

func (f *counters) Commit(_ context.Context, _ int, w bench.Write) error { return f.committed.add(w) }
func (f *counters) Insert(_ context.Context, _ int, w bench.Write) error { return f.inserted.add(w) }
func (f *counters) About(bench.Write) string                             { return "counts" }
func (f *counters) Close() error                                         { return nil }

func (f *counters) Stored(context.Context) (committed, inserted int, err error) {
	return int(f.committed.events.Load()), int(f.inserted.events.Load()), nil
}

func (f *counters) StoredRecords(context.Context) (committed, inserted int, err error) {
	return int(f.committed.records.Load()), int(f.inserted.records.Load()), nil
}

func TestCommitVerifiesFloor(t *testing.T) {
	engine := memory.New(nil)
	report := measureCommits(t, func() runstore.RunStore { return engine.Open() }, &counters{missing: 1})
	faults := map[string]int{}
	for _, f := range report.Faults {
		side := strings.Split(f.Text, ", ")[1]
		if strings.HasPrefix(f.Text, "writers, ") {
			side = strings.Split(f.Text, ", ")[2]
		}
		faults[side]++
	}
	stores := 0
	for _, r := range report.Results {
		if r.Side != "tapestore" {
			t.Errorf("a result of %s was recorded", r.Side)
		}
		for _, name := range []string{"of hand-written", "of bare insert"} {
			if _, ok := r.Metric(name); ok {
				t.Errorf("%s %v: there is a ratio %q to a side that lost events", r.Group, r.Params, name)
			}
		}
		stores++
	}
	if stores == 0 || faults["hand-written"] == 0 || faults["bare insert"] == 0 || len(faults) != 2 {
		t.Errorf("%d results of the store, faults %v", stores, faults)
	}
}

// TestCommitResults checks what the report promises for each setting: the sides, their ratio in
// every round, and the cost of a long journal.
func TestCommitResults(t *testing.T) {
	engine := memory.New(nil)
	report := measureCommits(t, func() runstore.RunStore { return engine.Open() }, new(counters))
	for _, f := range report.Faults {
		t.Error(f.Text)
	}
	groups, sides := map[string]int{}, map[string]int{}
	for _, r := range report.Results {
		sides[r.Side]++
		compared := r.Side == "tapestore" && r.Group != "journal length"
		for _, name := range []string{"of hand-written", "of bare insert"} {
			if m, _ := r.Metric(name); compared != (len(m.Samples) == bench.Smoke().Rounds) {
				t.Errorf("%s %v, %s: %d samples %s", r.Group, r.Params, r.Side, len(m.Samples), name)
			}
		}
		if r.Side == "tapestore" {
			groups[r.Group]++
		}
		for _, name := range []string{bench.Rate, "latency p50", "latency max", "allocations"} {
			if m, ok := r.Metric(name); !ok || len(m.Samples) != bench.Smoke().Rounds {
				t.Errorf("%s %v: metric %s has %d samples", r.Group, r.Params, name, len(m.Samples))
			}
		}
		if _, ok := r.Metric("cost against the shortest"); ok != (r.Group == "journal length" && r.Params["events"] != "100") {
			t.Errorf("%s %v: has the cost of a long journal: %v", r.Group, r.Params, ok)
		}
		if r.Verified == "" {
			t.Errorf("%s %v: nothing was read back", r.Group, r.Params)
		}
	}
	for group, n := range map[string]int{"shapes": 5, "writers, runs of their own": 2, "writers, one run": 1, "payloads": 1, "journal length": 2} {
		if groups[group] != n {
			t.Errorf("group %s has %d results, want %d", group, groups[group], n)
		}
	}
	if sides["hand-written"] != 9 || sides["bare insert"] != 9 {
		t.Errorf("results by side: %v", sides)
	}
}
