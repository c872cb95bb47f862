package spanner_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"

	"cloud.google.com/go/spanner/apiv1/spannerpb"

	"github.com/tapestore/tapestore/conformance/effort"
	spanneremulator "github.com/tapestore/tapestore/emulators/spanner"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/spanner"
)

// Of a purged run, whatever its size, only its row stays, and the places of its events in
// the feed.
func TestPurgeLeavesNothing(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		events int
		atOnce int // of a transaction; 0 for the adapter's own number
	}{{1, 0}, {1, 4}, {4, 4}, {10, 4}, {1000, 0}, {2500, 0}} {
		t.Run(fmt.Sprintf("%d events, %d at once", tc.events, tc.atOnce), func(t *testing.T) {
			t.Parallel()
			if tc.events >= 1000 && !effort.Full() {
				t.Skip("left to make test-full: purges of a thousand events and more; the rule is the same with few")
			}
			p := newDatabase(t, fair)
			s := open(t, p, patient)
			s.SetAttemptTimeout(hang)
			most := runstore.MaxEvents
			if tc.atOnce > 0 {
				s.SetPurgeBatch(tc.atOnce)
				most = tc.atOnce
			}
			events := tc.events
			lease := hold(t, s, "run")
			for left := events; left > 0; left -= most {
				b := appending(lease)
				for range min(left, most) {
					b.Append("test", []byte("event"))
				}
				b.ID = runstore.BatchID(fmt.Sprint(left))
				b.Put("key", []byte("value"), runstore.Place{Index: "a", At: runstore.After(0)}, runstore.Place{Index: "b", At: runstore.After(0)})
				commit(t, s, b)
			}
			last := feedOf(t, s, events)
			commit(t, s, purgeOf("run"))
			c := raw(t, p)
			for what, want := range map[string]int64{
				"Events": 0, "Records": 0, "Queue": 0, "Writes WHERE Callers": 0, "Writes WHERE Ended IS NULL": 0, "Feed": int64(events), "Feed WHERE Data IS NOT NULL": 0,
				"Runs": 1, "Runs WHERE Purging IS NOT NULL": 0,
			} {
				if n := count(t, c, "SELECT COUNT(*) FROM "+what); n != want {
					t.Errorf("%d rows in %s, want %d", n, what, want)
				}
			}
			for _, after := range []runstore.Position{0, last} { // who stands there is not ahead
				if found, err := s.ReadFeed(t.Context(), runstore.FeedQuery{After: after, Limit: 10}); err != nil || len(found) != 0 {
					t.Errorf("the feed after %d: %v, %v", after, found, err)
				}
			}
		})
	}
}

// TestPurgeOfSeveralRuns checks that nothing is left of several runs that one commit purges.
func TestPurgeOfSeveralRuns(t *testing.T) {
	t.Parallel()
	p := newDatabase(t, fair)
	s := open(t, p, patient)
	runs := []runstore.RunID{"run", "second"}
	var batches []runstore.Batch
	for _, id := range runs {
		b := appending(hold(t, s, id), "event")
		b.Put("key", []byte("value"), runstore.Place{Index: "queue", At: runstore.After(0)})
		commit(t, s, b)
		batches = append(batches, purgeOf(id))
	}
	if _, err := s.CommitMulti(t.Context(), batches); err != nil {
		t.Fatal(err)
	}
	c := raw(t, p)
	for _, from := range []string{"Events", "Records", "Queue", "Runs WHERE Purging IS NOT NULL"} {
		if n := count(t, c, "SELECT COUNT(*) FROM "+from); n != 0 {
			t.Errorf("%d rows in %s, want none", n, from)
		}
	}
}

// TestResultsOfAPurgedRunAreReplaced checks that a result that takes the row of one from before a
// purge is not marked as ended: the row deletion policy would delete it while a commit whose reply
// was lost may still look for it.
func TestResultsOfAPurgedRunAreReplaced(t *testing.T) {
	t.Parallel()
	p := newDatabase(t, fair)
	s, c := openForgetful(t, p), raw(t, p)
	hold(t, s, "run")
	commit(t, s, signal("run", "before"))
	commit(t, s, purgeOf("run"))
	const ended = "SELECT COUNT(*) FROM Writes WHERE Ended IS NOT NULL"
	if count(t, c, ended) == 0 {
		t.Fatal("the purge has ended no result")
	}
	holdAnew(t, s, "run")
	for range 2 * resultsKept {
		commit(t, s, signal("run", "after"))
	}
	if n := count(t, c, ended); n != 0 {
		t.Errorf("%d results of the present run are marked as ended, want none", n)
	}
}

// TestResultsOfAPurgedRunAreNotThoseOfARepeat checks that a repeat finds no run after a purge, although
// the rows of the purged run, results among them, are not deleted yet.
func TestResultsOfAPurgedRunAreNotThoseOfARepeat(t *testing.T) {
	t.Parallel()
	p := newDatabase(t, fair)
	s := open(t, p, patient)
	hold(t, s, "run")
	b := signal("run", "event")
	b.ID = "id"
	commit(t, s, b)
	cut := p.server.Refuse(0, codes.PermissionDenied, p.reads("purging"))
	defer cut.Stop()
	commit(t, s, purgeOf("run"))
	if n := count(t, raw(t, p), "SELECT COUNT(*) FROM Writes WHERE Callers"); n == 0 {
		t.Fatal("the results are deleted already")
	}
	if done, err := s.Commit(t.Context(), b); !errors.Is(err, runstore.ErrNotFound) {
		t.Errorf("got %+v, %v, want ErrNotFound", done, err)
	}
}

// A purge stands whether or not its rows could be deleted. Nobody sees them, and the next
// handle deletes them.
func TestPurgeIsFinished(t *testing.T) {
	t.Parallel()
	p := newDatabase(t, fair)
	s := open(t, p)
	lease := hold(t, s, "run")
	b := appending(lease, "one", "two")
	b.Put("key", []byte("value"), runstore.Place{Index: "queue", At: runstore.After(0)})
	b.Runnable = runstore.After(0)
	commit(t, s, b)
	cut := p.server.Refuse(0, codes.PermissionDenied, p.reads("purging"))
	defer cut.Stop()
	commit(t, s, purgeOf("run"))
	if cut.Count() == 0 {
		t.Fatal("nothing was deleted, or by another statement")
	}
	raw := raw(t, p)
	if n := count(t, raw, "SELECT COUNT(*) FROM Events"); n != 2 {
		t.Fatalf("%d rows in the journal, want those that could not be deleted", n)
	}
	if _, err := s.ReadJournal(t.Context(), "run", 1, 10); !errors.Is(err, runstore.ErrNotFound) {
		t.Errorf("journal: %v", err)
	}
	if _, err := s.ReadRecords(t.Context(), "run", runstore.RecordQuery{Limit: 10}); !errors.Is(err, runstore.ErrNotFound) {
		t.Errorf("records: %v", err)
	}
	if said := across(t, s, names{run: "run", second: "none"}); said[0] != "" {
		t.Errorf("the queues and the feed hold\n%s", said[0])
	}
	for _, newest := range []bool{false, true} {
		for _, heads := range []bool{false, true} {
			q := runstore.IndexQuery{Index: "queue", Newest: newest, Heads: heads, Until: runstore.EndOfTime, Limit: 10}
			if found, err := s.ScanIndex(t.Context(), q); err != nil || len(found) != 0 {
				t.Errorf("a scan, newest first %t, with heads %t: got %d entries, error %v, want none", newest, heads, len(found), err)
			}
		}
	}
	_ = s.Close()
	cut.Stop()
	open(t, p)
	await(t, "the rows are deleted", func() bool { return count(t, raw, unfinished) == 0 })
	for _, table := range []string{"Events", "Records", "Queue"} {
		if n := count(t, raw, "SELECT COUNT(*) FROM "+table); n != 0 {
			t.Errorf("%d rows in %s", n, table)
		}
	}
}

// A purge that was cut goes on where it was cut, in transactions of bounded size. Meanwhile
// and after it nobody sees its events, also in a new run of the same id.
func TestPurgeGoesOn(t *testing.T) {
	t.Parallel()
	const atOnce = 4
	var l ledger
	p := newDatabase(t, fair)
	s, c := open(t, p, l.keep), raw(t, p)
	s.SetPurgeBatch(atOnce)
	lease := hold(t, s, "run")
	for i := range 10 {
		b := appending(lease, fmt.Sprint("old ", i))
		b.Put(runstore.RecordKey(fmt.Sprint("key ", i)), nil)
		commit(t, s, b)
	}
	withoutPurger := p.server.Refuse(0, codes.PermissionDenied, p.reads("unfinished"))
	defer withoutPurger.Stop()
	commits, seen := p.served(commits), 0
	cut := p.server.Refuse(1, codes.PermissionDenied, func(call spanneremulator.Call) bool {
		if commits(call) {
			seen++
		}
		return seen == 3 // the first makes the purge, the second is a step
	})
	defer cut.Stop()
	commit(t, s, purgeOf("run"))
	met(t, cut, 1)
	cut.Stop()
	for what, want := range map[string]int64{"Events": 6, "Runs WHERE LastSeq = 6": 1, "Records": 6} {
		if n := count(t, c, "SELECT COUNT(*) FROM "+what); n != want {
			t.Fatalf("%d rows in %s, want %d: the step before the cut", n, what, want)
		}
	}
	feedHas := func(reader *spanner.Store, want ...string) {
		t.Helper()
		found, err := reader.ReadFeed(t.Context(), runstore.FeedQuery{Limit: 100})
		if err != nil || len(found) != len(want) {
			t.Fatalf("the feed has %d events, error %v, want %q", len(found), err, want)
		}
		for i, e := range found {
			if string(e.Data) != want[i] {
				t.Errorf("event %d of the feed is %q, want %q", i, e.Data, want[i])
			}
		}
	}
	feedHas(s)
	var again runstore.Lease
	steps := 0
	aborted := p.server.Abort(1, commits) // the first step is taken again, and deletes the same rows
	defer aborted.Stop()
	for _, one := range l.during(func() { again = holdAnew(t, s, "run") }) {
		r, ok := one.request.(*spannerpb.CommitRequest)
		if !ok {
			continue
		}
		steps++
		if n := len(r.GetMutations()); n > 2*atOnce+resultsKept+8 {
			t.Errorf("a step of %d mutations", n)
		}
	}
	if steps != 1+2+1 || aborted.Count() != 1 {
		t.Errorf("%d commits, %d of them aborted, want the aborted one, two for what the cut has left, and that of the creation", steps, aborted.Count())
	}
	commit(t, s, appending(again, "new"))
	feedHas(s, "new")
	feedHas(open(t, p), "new") // this handle knows of no gap, so it reads the rows of the purged run
	if events, err := s.ReadJournal(t.Context(), "run", 1, 100); err != nil || len(events) != 1 || string(events[0].Data) != "new" {
		t.Errorf("the journal of the new run: %+v, %v", events, err)
	}
	if records, err := s.ReadRecords(t.Context(), "run", runstore.RecordQuery{Limit: 100}); err != nil || len(records) != 0 {
		t.Errorf("the records of the new run: %+v, %v", records, err)
	}
}

// TestPurgeDuringAnother checks that a handle that finds another purge than its own begins at the
// first record again. Meanwhile another handle has finished the first purge, created the run anew
// and purged it again, and left that purge unfinished.
func TestPurgeDuringAnother(t *testing.T) {
	t.Parallel()
	const records, atOnce = 6, 4
	p := newDatabase(t, fair)
	c, other := raw(t, p), open(t, p, patient)
	other.SetPurgeBatch(atOnce)
	put := func(lease runstore.Lease, key string) {
		t.Helper()
		b := appending(lease)
		b.Put(runstore.RecordKey(key), nil, runstore.Place{Index: "queue", At: runstore.After(0)})
		commit(t, other, b)
	}
	var once sync.Once
	overtaken := false
	s := open(t, p, patient, beforeSending(func(request any) {
		r, ok := request.(*spannerpb.ReadRequest)
		if !ok || r.GetRequestOptions().GetRequestTag() != "tapestore-purging" || count(t, c, "SELECT COUNT(*) FROM Records") != records-atOnce {
			return // not between the steps
		}
		once.Do(func() {
			put(holdAnew(t, other, "run"), "key 0")
			cut := p.server.Refuse(0, codes.PermissionDenied, p.reads("purging"))
			defer cut.Stop()
			commit(t, other, purgeOf("run"))
			overtaken = cut.Count() > 0
			_ = other.Close() // so that its purger does nothing
		})
	}))
	s.SetPurgeBatch(atOnce)
	lease := hold(t, s, "run")
	for i := range records {
		put(lease, fmt.Sprint("key ", i))
	}
	commit(t, s, purgeOf("run"))
	if !overtaken {
		t.Fatal("there was no other purge between the steps of the first")
	}
	for _, from := range []string{"Runs WHERE Purging IS NOT NULL", "Records", "Queue"} {
		if n := count(t, c, "SELECT COUNT(*) FROM "+from); n != 0 {
			t.Errorf("%d rows in %s, want none", n, from)
		}
	}
	if _, err := s.CreateRun(t.Context(), runstore.RunSpec{ID: "run"}); err != nil {
		t.Fatal(err)
	}
	if found, err := s.ReadRecords(t.Context(), "run", runstore.RecordQuery{Limit: 10}); err != nil || len(found) != 0 {
		t.Errorf("the records of the new run: %+v, %v, want none", found, err)
	}
}

// feedOf waits until the feed has n events, and returns the position of the last.
func feedOf(t *testing.T, s *spanner.Store, n int) (last runstore.Position) {
	t.Helper()
	for n > 0 {
		page, err := s.ReadFeed(t.Context(), runstore.FeedQuery{After: last, Limit: runstore.MaxPage})
		if err != nil {
			t.Fatal(err)
		}
		if n -= len(page); len(page) > 0 {
			last = page[len(page)-1].Position
		}
	}
	return last
}
