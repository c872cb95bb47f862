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

// lossy is a store whose reads may omit something.
type lossy struct {
	runstore.RunStore
	journal, feed, index bool
}

func (s lossy) ReadJournal(ctx context.Context, id runstore.RunID, from runstore.Seq, limit int) ([]runstore.Event, error) {
	page, err := s.RunStore.ReadJournal(ctx, id, from, limit)
	if s.journal && len(page) > 2 {
		page = append(page[:1:1], page[2:]...)
	}
	return page, err
}

func (s lossy) ReadFeed(ctx context.Context, q runstore.FeedQuery) ([]runstore.FeedEvent, error) {
	page, err := s.RunStore.ReadFeed(ctx, q)
	if s.feed && len(page) > 2 {
		page = append(page[:1:1], page[2:]...)
	}
	return page, err
}

func (s lossy) ScanIndex(ctx context.Context, q runstore.IndexQuery) ([]runstore.IndexEntry, error) {
	page, err := s.RunStore.ScanIndex(ctx, q)
	if s.index && len(page) > 2 {
		page = append(page[:1:1], page[2:]...)
	}
	return page, err
}

// starterOf returns a starter that measures the memory store, with each handle wrapped.
func starterOf(wrap func(runstore.RunStore) runstore.RunStore) bench.Starter {
	return bench.Starter{Name: "memory", Start: func(context.Context) (bench.Target, error) {
		return bench.Target{
			System: bench.System{Name: "memory"},
			NewStore: func(context.Context) (bench.Store, error) {
				engine := memory.New(nil)
				return bench.Store{
					Prefix: "bench",
					Open:   func(context.Context) (runstore.RunStore, error) { return wrap(engine.Open()), nil },
				}, nil
			},
		}, nil
	}}
}

// run runs one part at the smallest scale.
func run(t *testing.T, part string, wrap func(runstore.RunStore) runstore.RunStore) bench.Report {
	t.Helper()
	report, err := bench.Run(t.Context(), []bench.Starter{starterOf(wrap)}, bench.Options{Parts: []string{part}, Scale: bench.Smoke()})
	if err != nil {
		t.Fatal(err)
	}
	return report
}

func faults(r bench.Report) string {
	var all []string
	for _, f := range r.Faults {
		all = append(all, f.Text)
	}
	return strings.Join(all, "\n")
}

func TestReadsReportWhatAStoreLoses(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		store lossy
		want  string // the groups whose reads are refused
	}{
		{"nothing", lossy{}, ""},
		{"an event of a page", lossy{journal: true}, "replay of"},
		{"an event of the feed", lossy{feed: true}, "feed:"},
		{"an entry of an index", lossy{index: true}, "index scan, records"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			report := run(t, "read", func(s runstore.RunStore) runstore.RunStore {
				c.store.RunStore = s
				return c.store
			})
			if c.want == "" && len(report.Faults) > 0 || !strings.Contains(faults(report), c.want) {
				t.Errorf("faults: %q, want some of %q", faults(report), c.want)
			}
		})
	}
}

func TestReadsOfTheFeedWaitForCommitsInFlight(t *testing.T) {
	t.Parallel()
	report := run(t, "read", func(s runstore.RunStore) runstore.RunStore { return &late{RunStore: s} })
	if len(report.Faults) > 0 {
		t.Error(faults(report))
	}
}

// late is a store whose feed shows nothing at its first read, like a feed that waits for a
// transaction in flight.
type late struct {
	runstore.RunStore
	shows atomic.Bool
}

func (s *late) ReadFeed(ctx context.Context, q runstore.FeedQuery) ([]runstore.FeedEvent, error) {
	if !q.Newest && s.shows.CompareAndSwap(false, true) {
		return nil, nil
	}
	return s.RunStore.ReadFeed(ctx, q)
}
