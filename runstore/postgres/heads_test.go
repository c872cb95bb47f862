package postgres_test

import (
	"slices"
	"testing"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// The summary of an entry's run counts towards the size of a page that returns heads, and of
// no other.
func TestSummariesCountTowardsThePage(t *testing.T) {
	t.Parallel()
	s := open(t, database(t))
	const runs = 6
	for i := range runs {
		spec := runstore.RunSpec{ID: runstore.RunID(rune('a' + i))}
		spec.Writes.Put(runstore.SummaryKey, make([]byte, runstore.MaxPageBytes/4))
		spec.Writes.Put("timer", []byte("value"), runstore.Place{Index: "queue", At: runstore.After(0)})
		if _, err := s.CreateRun(t.Context(), spec); err != nil {
			t.Fatal(err)
		}
	}
	for _, newest := range []bool{false, true} {
		q := runstore.IndexQuery{Index: "queue", Until: runstore.EndOfTime, Limit: runs, Newest: newest}
		for heads, want := range map[bool]int{false: runs, true: 4} { // the fourth passes the bound, with its record
			q.Heads = heads
			if page, err := s.ScanIndex(t.Context(), q); err != nil || len(page) != want {
				t.Errorf("newest first: %v, heads: %v: got a page of %d entries, error %v; want %d", newest, heads, len(page), err, want)
			}
		}
	}
}

// A lower bound between two microseconds leaves out the entry before it.
func TestLowerBoundIsRoundedUp(t *testing.T) {
	t.Parallel()
	s := open(t, database(t))
	at := time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)
	spec := runstore.RunSpec{ID: "run"}
	spec.Writes.Put("timer", nil, runstore.Place{Index: "queue", At: runstore.At(at)})
	if _, err := s.CreateRun(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	for _, newest := range []bool{false, true} {
		for from, want := range map[time.Time]int{at: 1, at.Add(1): 0, at.Add(-1): 1} {
			page, err := s.ScanIndex(t.Context(), runstore.IndexQuery{Index: "queue", From: from, Until: runstore.EndOfTime, Limit: 2, Newest: newest})
			if err != nil || len(page) != want {
				t.Errorf("from %v, newest first: %v: got %d entries, error %v; want %d", from, newest, len(page), err, want)
			}
		}
	}
}

// The lower bound of a scan of runnable runs is a time at which they are runnable.
func TestLowerBoundOfRunnableRuns(t *testing.T) {
	t.Parallel()
	s := open(t, database(t))
	first := time.Date(2001, 1, 2, 0, 0, 0, 0, time.UTC) // long before their creation
	for i, id := range []runstore.RunID{"third", "second", "first"} {
		spec := runstore.RunSpec{ID: id, Runnable: runstore.At(first.Add(time.Duration(2-i) * time.Hour))}
		if _, err := s.CreateRun(t.Context(), spec); err != nil {
			t.Fatal(err)
		}
	}
	for newest, want := range map[bool][]runstore.RunID{false: {"second", "third"}, true: {"third", "second"}} {
		page, err := s.ScanIndex(t.Context(), runstore.IndexQuery{
			Index: runstore.IndexRunnable, From: first.Add(time.Hour), Until: runstore.EndOfTime, Limit: 10, Newest: newest,
		})
		var got []runstore.RunID
		for _, e := range page {
			got = append(got, e.Run)
		}
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("newest first: %v: got %v, error %v; want %v", newest, got, err, want)
		}
	}
}
