package cases

import (
	"errors"
	"fmt"
	"time"

	"github.com/tapestore/tapestore/conformance/harness"
	"github.com/tapestore/tapestore/conformance/internal/kit"
	"github.com/tapestore/tapestore/runstore"
)

// Stale returns the cases that prove what a StaleReader promises: it returns nothing that was never
// true and nothing that a decision may rest on, and with bound 0 everything that was acknowledged.
func Stale() []harness.Case {
	needs := []harness.Need{harness.NeedStale}
	return []harness.Case{
		{Guarantee: "I5", Name: "a-stale-journal-is-the-beginning-of-the-journal", Needs: needs, Run: replicaJournal, Doc: `
			A run grows, and its journal is read stale after each event, with three bounds. Each read is a beginning
			of the journal without a gap and without positions; with bound 0 it is the whole journal. A store that
			allows its replica any age, shows an event without its predecessor, or reports positions that a reader
			would resume from, fails.`},
		{Guarantee: "I9", Name: "stale-candidates-were-true", Needs: needs, Run: replicaCandidates, Doc: `
			Runs are created, and records placed and removed, and each index is read stale in pages, with three
			bounds and in both directions. Every candidate was an entry at some time; with bound 0 the candidates are
			the entries of a scan. A store that joins an index with records of another time returns candidates that
			never were.`},
		{Guarantee: "I12", Name: "staleness-is-bounded", Needs: needs, Run: replicaBounds, Doc: `
			A stale read has a negative bound, no limit or no index, or names a missing run. The first three are
			ErrInvalid with field and problem, the last is ErrNotFound, and the store stays as it was. A store that
			takes a negative bound for none returns a state of any age.`},
	}
}

// staleness holds the bounds that the cases read with.
var staleness = []time.Duration{0, 10 * time.Millisecond, 10 * time.Second}

func replicaJournal(t harness.T, e *harness.Env) {
	lease := seedDrivenRun(t, e, "run")
	s := kit.Capability[runstore.StaleReader](e.Store)
	for n := range 10 {
		e.Append(t, e.Store, lease, fmt.Sprint("event ", n))
		all := kit.Journal(t, e.Store, "run")
		for _, bound := range staleness {
			for _, from := range []runstore.Seq{1, runstore.Seq(len(all))} {
				what := fmt.Sprintf("%d events, from %d, at most %v old", len(all), from, bound)
				events, err := s.ReadJournalStale(t.Context(), "run", from, runstore.MaxPage, bound)
				if bound > 0 && errors.Is(err, runstore.ErrNotFound) { // not on the replica yet
					continue
				}
				if err != nil {
					t.Fatalf("%s: %v", what, err)
				}
				if bound == 0 {
					kit.Equal(t, what+": events", len(events), len(all)-int(from)+1)
				}
				for i, got := range events {
					want := all[int(from)-1+i]
					want.Position = 0
					kit.Equal(t, what+": position", got.Position, 0)
					kit.Equal(t, what+": event", fmt.Sprintf("%+v", got), fmt.Sprintf("%+v", want))
				}
			}
		}
	}
}

func replicaCandidates(t harness.T, e *harness.Env) {
	s := kit.Capability[runstore.StaleReader](e.Store)
	base := e.Now(t).Add(-time.Hour)
	was := map[string]bool{} // every candidate that existed at some time
	scanned := func(q runstore.IndexQuery) (all []runstore.Candidate) {
		for entry, err := range runstore.Entries(t.Context(), e.Store, q) {
			if err != nil {
				t.Fatalf("scan: %v", err)
			}
			all = append(all, runstore.ToCandidates([]runstore.IndexEntry{entry})...)
		}
		return all
	}
	name := func(q runstore.IndexQuery, c runstore.Candidate) string {
		return fmt.Sprintf("%s %q %q %v", q.Index, c.Run, c.Key, c.At.UnixMicro())
	}
	for n := range 4 {
		id := runstore.RunID(fmt.Sprint("run-", n))
		if _, err := e.Store.CreateRun(t.Context(), runstore.RunSpec{ID: id, Runnable: runstore.At(base)}); err != nil {
			t.Fatalf("create: %v", err)
		}
		putIndexed(t, e.Store, id, "a", "queue", runstore.At(base.Add(-time.Duration(n)*time.Minute)))
		putIndexed(t, e.Store, id, "b", "queue", runstore.At(base.Add(time.Duration(n)*time.Minute)))
		if n == 2 {
			kit.Remove(t, e.Store, "run-0", "a", 1)
		}
		for _, index := range []runstore.IndexName{"queue", runstore.IndexRuns, runstore.IndexRunnable} {
			for _, newest := range []bool{false, true} {
				q := runstore.IndexQuery{Index: index, Newest: newest, Until: runstore.EndOfTime, Limit: 2}
				now := scanned(q)
				for _, c := range now {
					was[name(q, c)] = true
				}
				for _, bound := range staleness {
					var all []runstore.Candidate
					for page := q; ; page.After = all[len(all)-1].Cursor {
						found, err := s.ScanIndexStale(t.Context(), page, bound)
						if err != nil {
							t.Fatalf("stale scan of %q: %v", index, err)
						}
						if all = append(all, found...); len(found) == 0 {
							break
						}
					}
					what := fmt.Sprintf("%q, newest first %t, at most %v old, after run %d", index, newest, bound, n)
					for _, c := range all {
						if !was[name(q, c)] {
							t.Errorf("%s: candidate %s, which there never was", what, name(q, c))
						}
					}
					if bound == 0 {
						kit.Equal(t, what, fmt.Sprint(all), fmt.Sprint(now))
					}
				}
			}
		}
	}
}

func replicaBounds(t harness.T, e *harness.Env) {
	e.Create(t, "run")
	s := kit.Capability[runstore.StaleReader](e.Store)
	refuseAll(t, e, "run", []overLimit{
		{"a journal of the future", runstore.ErrInvalid, "bound", "-1ns", func() error {
			_, err := s.ReadJournalStale(t.Context(), "run", 1, 1, -1)
			return err
		}},
		{"a scan of the future", runstore.ErrInvalid, "bound", "-1ns", func() error {
			_, err := s.ScanIndexStale(t.Context(), runstore.IndexQuery{Index: "queue", Limit: 1}, -1)
			return err
		}},
		{"a page without a limit", runstore.ErrInvalid, "limit", "", func() error {
			_, err := s.ReadJournalStale(t.Context(), "run", 1, 0, 0)
			return err
		}},
		{"a scan without an index", runstore.ErrInvalid, "index", "", func() error {
			_, err := s.ScanIndexStale(t.Context(), runstore.IndexQuery{Limit: 1}, time.Second)
			return err
		}},
	})
	_, err := s.ReadJournalStale(t.Context(), "missing", 1, 1, 0)
	harness.Refused(t, "a journal of no run", err, runstore.ErrNotFound)
}
