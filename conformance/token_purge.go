package conformance

import (
	"fmt"

	"github.com/tapestore/tapestore/runstore"
)

// purge purges a run under its lease.
func purge(t T, s runstore.RunStore, lease runstore.Lease) {
	t.Helper()
	b := runstore.NewBatch(lease.Run, lease.Fence())
	b.Purge = true
	applied(t, s, "purge", b)
}

func tokenSurvivesPurge(t T, e *Env) {
	var last runstore.Token
	for round := range 3 {
		if run := e.Create(t, "run"); run.Token != last || run.LastSeq != 0 || run.Holder != (runstore.Holder{}) {
			t.Errorf("round %d: created with token %v, seq %d, holder %s; want token %v and nothing else",
				round, run.Token, run.LastSeq, holderText(run.Holder), last)
		}
		lease := e.Acquire(t, e.Store, "run", "a")
		if lease.Token != last+1 {
			t.Errorf("round %d: token %v follows %v, want %v", round, lease.Token, last, last+1)
		}
		last = lease.Token
		b := appending(lease, "soon gone")
		b.Put("record", []byte("soon gone"), runstore.Place{Index: "queue", At: runstore.After(0)})
		applied(t, e.Store, "a write", b)
		purge(t, e.Store, lease)

		_, err := e.Store.GetRun(t.Context(), "run")
		Refused(t, "get of a purged run", err, runstore.ErrNotFound)
		_, err = e.Store.ReadJournal(t.Context(), "run", 1, 10)
		Refused(t, "journal of a purged run", err, runstore.ErrNotFound)
		_, err = e.Store.ReadRecords(t.Context(), "run", runstore.RecordQuery{Limit: 10})
		Refused(t, "records of a purged run", err, runstore.ErrNotFound)
		_, err = e.Store.AcquireLease(t.Context(), acquire("run", "a", TTL))
		Refused(t, "acquire of a purged run", err, runstore.ErrNotFound)
		for _, index := range []runstore.IndexName{"queue", runstore.IndexRuns, runstore.IndexRunnable} {
			for entry, err := range runstore.Entries(t.Context(), e.Store, runstore.IndexQuery{Index: index, Until: runstore.EndOfTime}) {
				t.Errorf("index %q holds %q of a purged run (error %v)", index, entry.Run, err)
			}
		}
	}
	created, err := e.Store.CreateRun(t.Context(), withLease("run", "b"))
	if err != nil {
		t.Fatalf("create with a lease: %v", err)
	}
	if created.Lease.Token != last+1 || !created.New {
		t.Errorf("re-created with a lease: new %t, token %v; want true and %v", created.New, created.Lease.Token, last+1)
	}
}

func fenceAfterPurge(t T, e *Env) {
	e.Create(t, "run")
	first := e.Acquire(t, e.Store, "run", "a")
	mustRelease(t, e.Store, first)
	second := e.Acquire(t, e.Store, "run", "a")
	purge(t, e.Store, second)
	_, err := e.Store.Commit(t.Context(), appending(second, "to a purged run"))
	Refused(t, "commit to a purged run", err, runstore.ErrNotFound)
	Refused(t, "renewal on a purged run", renew(t, e.Store, second, TTL), runstore.ErrNotFound)
	Refused(t, "release of a purged run", release(t, e.Store, second), runstore.ErrNotFound)
	e.Create(t, "run")

	refused := func(when string) {
		t.Helper()
		before := dump(t, e.Store, "run")
		for _, old := range []runstore.Lease{first, second} {
			run := e.Get(t, "run")
			what := fmt.Sprintf("token %v on the re-created run %s", old.Token, when)
			_, err := e.Store.Commit(t.Context(), appending(old, "zombie"))
			checkFenced(t, "commit: "+what, err, old, run)
			checkFenced(t, "renewal: "+what, renew(t, e.Store, old, TTL), old, run)
			checkFenced(t, "release: "+what, release(t, e.Store, old), old, run)
			b := runstore.NewBatch("run", old.Fence())
			b.Purge = true
			_, err = e.Store.Commit(t.Context(), b)
			checkFenced(t, "purge: "+what, err, old, run)
		}
		checkUnchanged(t, "a fence of the run's former life", before, dump(t, e.Store, "run"))
	}
	refused("before its first grant")
	third := e.Acquire(t, e.Store, "run", "a")
	if third.Token != second.Token+1 {
		t.Errorf("the re-created run granted token %v, want %v", third.Token, second.Token+1)
	}
	refused("under its first grant")
	e.Append(t, e.Store, third, "the new life goes on")
}
