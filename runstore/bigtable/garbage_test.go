package bigtable_test

import (
	"bytes"
	"slices"
	"testing"
	"time"

	client "cloud.google.com/go/bigtable"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/bigtable"
)

// heavy is a batch with rows of every kind that is written before a commit.
func heavy(id runstore.RunID) runstore.Batch {
	b := runstore.NewBatch(id, runstore.Unguarded("test"))
	b.Append("test", bytes.Repeat([]byte("x"), 100<<10))
	b.Put("large", bytes.Repeat([]byte("x"), 100<<10), runstore.Place{Index: "queue", At: runstore.After(0)})
	b.Runnable = runstore.After(0)
	return b
}

// scanAll reads the queues to their ends, and clears away what these scans found dead,
// and returns how many entries are true.
func scanAll(t testing.TB, s *bigtable.Store) (entries int) {
	t.Helper()
	bigtable.Ahead(s, func() {
		for _, index := range []runstore.IndexName{"queue", runstore.IndexRuns, runstore.IndexRunnable} {
			for _, err := range runstore.Entries(t.Context(), s, runstore.IndexQuery{Index: index, Until: runstore.EndOfTime}) {
				if err != nil {
					t.Fatal(err)
				}
				entries++
			}
		}
	})
	bigtable.EmptyGarbage(t.Context(), s)
	return entries
}

// scanIdle scans for orphans as if all runs without a lease had been idle for long.
func scanIdle(t testing.TB, s *bigtable.Store) {
	t.Helper()
	bigtable.Ahead(s, func() { bigtable.OrphanScan(t.Context(), s) })
}

// counts checks how many entries, packs and marks there are.
func counts(t testing.TB, tbl *client.Table, when string, entries, packs, marks int) {
	t.Helper()
	got := [3]int{len(keys(t, tbl, "i")), len(keys(t, tbl, "d")), len(keys(t, tbl, "m"))}
	if want := [3]int{entries, packs, marks}; got != want {
		t.Errorf("%s there are %d entries, %d packs and %d marks, want %d, %d and %d", when, got[0], got[1], got[2], want[0], want[1], want[2])
	}
}

// No scan returns what was written for a commit that was never applied. Scans of queues delete its index entries
// once the commit cannot be applied any more. Its large values stay until the run is purged.
func TestOrphans(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	s, tbl := openBare(t, table), raw(t, table)
	lease := hold(t, s, "run")
	dyingWrite(t, table, heavy("run"))
	const waiting = "while the commit can still come"
	if n := scanAll(t, s); n != 1 {
		t.Errorf("%s the scans found %d entries, want the run's in runs", waiting, n)
	}
	bigtable.OrphanScan(t.Context(), s)
	counts(t, tbl, waiting, 3, 2, 1)

	if _, err := s.ReleaseLease(t.Context(), runstore.ReleaseRequest{Fence: lease.Fence()}); err != nil { // the run moves on
		t.Fatal(err)
	}
	if n := scanAll(t, s); n != 1 {
		t.Errorf("the scans found %d entries, want the run's in runs", n)
	}
	counts(t, tbl, "after a scan", 1, 2, 1)
	bigtable.OrphanScan(t.Context(), s)
	counts(t, tbl, "before the run is idle", 1, 2, 1)
	scanIdle(t, s)
	counts(t, tbl, "when the run is idle", 1, 2, 0)
	purgeIdle(t, s)
	if left := keys(t, tbl, "d"); len(left) > 0 {
		t.Errorf("%d packs remain after the purge", len(left))
	}
}

// purgeIdle purges "run", which has no live lease, and retires its mark.
func purgeIdle(t testing.TB, s *bigtable.Store) {
	t.Helper()
	b := runstore.NewBatch("run", runstore.Unguarded("test"))
	b.Purge = true
	commit(t, s, b)
	bigtable.OrphanScan(t.Context(), s)
}

// A commit that is under way while the mark of its idle run is retired is refused: it decides again, sets another
// mark, and deletes what it has written before.
func TestCommitMeetsARetirement(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	s, tbl := openBare(t, table), raw(t, table)
	lease := hold(t, s, "run")
	if _, err := s.ReleaseLease(t.Context(), runstore.ReleaseRequest{Fence: lease.Fence()}); err != nil {
		t.Fatal(err)
	}
	late := openBare(t, table)
	held := server(t).Hold(1, served(table, swaps))
	done := make(chan error, 1)
	go func() {
		b := heavy("run")
		_, err := late.Commit(t.Context(), b)
		done <- err
	}()
	met(t, held, 1)
	scanIdle(t, s)
	counts(t, tbl, "when the mark is retired", 3, 2, 0)
	held.Stop()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if n := scanAll(t, s); n != 3 {
		t.Errorf("the scans found %d entries, want 3", n)
	}
	bigtable.EmptyGarbage(t.Context(), late)
	counts(t, tbl, "after all", 3, 2, 1)
	if found, err := s.ReadRecords(t.Context(), "run", runstore.RecordQuery{Keys: []runstore.RecordKey{"large"}}); err != nil || len(found) != 1 || len(found[0].Value) != 100<<10 {
		t.Errorf("the record: got %d, %v", len(found), err)
	}
}

// The retirement of an idle run deletes no large values: not those that a record or an event has, and not those
// that a handle has replaced which died. The purge of the run deletes them all.
func TestRetirementKeepsPacks(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	s, tbl := openBare(t, table), raw(t, table)
	lease := hold(t, s, "run")
	for range 3 { // each leaves the pack of the one before: its process dies
		commit(t, openBare(t, table), heavy("run"))
	}
	fill(t, s, lease, 4, 200) // some of 17 KiB
	seal(t, s, "run")
	if _, err := s.ReleaseLease(t.Context(), runstore.ReleaseRequest{Fence: lease.Fence()}); err != nil {
		t.Fatal(err)
	}
	journal := func() (all []string) {
		for e, err := range runstore.Journal(t.Context(), s, "run", 1) {
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, short(e.Data))
		}
		return all
	}
	bigtable.EmptyGarbage(t.Context(), s) // what its first commit after the others' wrote in vain
	before, packs := journal(), len(keys(t, tbl, "d"))
	scanIdle(t, s)
	scanIdle(t, s)
	if after := journal(); len(after) != 203 || !slices.Equal(before, after) {
		t.Errorf("the journal has %d events, and had %d, or others", len(after), len(before))
	}
	if found, err := s.ReadRecords(t.Context(), "run", runstore.RecordQuery{Keys: []runstore.RecordKey{"large"}}); err != nil || len(found) != 1 || len(found[0].Value) != 100<<10 {
		t.Errorf("the record: got %d, %v", len(found), err)
	}
	if n := scanAll(t, s); n != 3 {
		t.Errorf("the scans found %d entries, want 3", n)
	}
	counts(t, tbl, "after the retirement", 3, packs, 0)
	purgeIdle(t, s)
	if left := append(keys(t, tbl, "s"), keys(t, tbl, "d")...); len(left) > 0 {
		t.Errorf("%d segments and packs remain after the purge", len(left))
	}
}

// A run has a mark from its creation on. An idle one loses it, and the next write sets
// it again.
func TestMarks(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	s, tbl := openBare(t, table), raw(t, table)
	lease := hold(t, s, "run")
	marks := func(when string, want int) {
		t.Helper()
		if n := len(keys(t, tbl, "m")); n != want {
			t.Errorf("%s there are %d marks, want %d", when, n, want)
		}
	}
	marks("after the creation", 1)
	bigtable.OrphanScan(t.Context(), s)
	marks("after a pass", 1)
	commit(t, s, appending(lease, "first"))
	scanIdle(t, s)
	marks("under a live lease", 1)
	if _, err := s.ReleaseLease(t.Context(), runstore.ReleaseRequest{Fence: lease.Fence()}); err != nil {
		t.Fatal(err)
	}
	commit(t, openBare(t, table), signal("run", "second")) // and its process dies
	for range 2 {
		scanIdle(t, s) // the first brings it into the feed
	}
	marks("when it is idle", 0)
	if found, err := s.ReadFeed(t.Context(), runstore.FeedQuery{Limit: 10}); err != nil || len(found) != 2 {
		t.Errorf("the feed has %d events, %v, want both", len(found), err)
	}
	commit(t, openBare(t, table), signal("run", "third")) // a handle that knows of no mark
	marks("after another write", 1)
	commit(t, s, signal("run", "fourth"))
	bigtable.EmptyGarbage(t.Context(), s) // the mark that it set before it knew of the other
	marks("after one more", 1)
	bigtable.OrphanScan(t.Context(), s)
	if found, err := s.ReadFeed(t.Context(), runstore.FeedQuery{Limit: 10}); err != nil || len(found) != 4 {
		t.Errorf("the feed has %d events, %v, want all", len(found), err)
	}
}

// What a creation has written that never came is not returned, and kept for it.
func TestOrphansOfACreation(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	s, tbl := openBare(t, table), raw(t, table)
	creation := heavy("run").Writes
	creation.Runnable = runstore.When{}
	dyingCreation(t, table, runstore.RunSpec{ID: "run", Writes: creation})
	if n := scanAll(t, s); n != 0 {
		t.Errorf("the scans found %d entries, want none", n)
	}
	hold(t, s, "run")
	if n := scanAll(t, s); n != 1 {
		t.Errorf("the scans found %d entries, want the run's in runs", n)
	}
	if n := len(keys(t, tbl, "i")); n != 1 {
		t.Errorf("there are %d entries, want those of the creation that never came to be collected", n)
	}
}

// What many writes replace is deleted with one request. If it was found long ago, a read of the epoch precedes it.
func TestDeletionsShareARequest(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	s, tbl := openBare(t, table), raw(t, table)
	lease := hold(t, s, "run")
	for range 30 {
		b := runstore.NewBatch("run", lease.Fence())
		b.Put("large", bytes.Repeat([]byte("x"), 64<<10))
		b.Put("queued", nil, runstore.Place{Index: "queue", At: runstore.After(0)})
		commit(t, s, b)
	}
	for _, test := range []struct {
		what string
		do   func()
		want []string
	}{
		{"large values", func() {
			bigtable.AgeGarbage(s, 0) // however long the writes took
			bigtable.DeleteGarbage(t.Context(), s)
		}, []string{writes}},
		{"index entries", func() {
			bigtable.AgeGarbage(s, time.Hour)
			bigtable.EmptyGarbage(t.Context(), s)
		}, []string{reads, writes}},
	} {
		if got := backgroundOf(t, table, test.do); !slices.Equal(got, test.want) {
			t.Errorf("%s: got the requests %q, want %q", test.what, got, test.want)
		}
	}
	if values, entries := len(keys(t, tbl, "d")), len(keys(t, tbl, "i")); values != 1 || entries != 2 {
		t.Errorf("%d large values and %d entries remain, want one, and two: the record's and the run's", values, entries)
	}
}
