package cases

import (
	"fmt"

	"github.com/tapestore/tapestore/conformance/harness"
	"github.com/tapestore/tapestore/conformance/internal/kit"
	"github.com/tapestore/tapestore/runstore"
)

// purge purges a run under its lease.
func purge(t harness.T, s runstore.RunStore, lease runstore.Lease) {
	t.Helper()
	b := runstore.NewBatch(lease.Run, lease.Fence())
	b.Purge = true
	kit.MustApply(t, s, "purge", b)
}

func tokenSurvivesPurge(t harness.T, e *harness.Env) {
	var last runstore.Token
	for round := range 3 {
		if run := e.Create(t, "run"); run.Token != last || run.LastSeq != 0 || run.Holder != (runstore.Holder{}) {
			t.Errorf("round %d: created with token %v, seq %d, holder %s; want token %v and nothing else",
				round, run.Token, run.LastSeq, kit.HolderText(run.Holder), last)
		}
		lease := e.Acquire(t, e.Store, "run", "a")
		if lease.Token != last+1 {
			t.Errorf("round %d: token %v follows %v, want %v", round, lease.Token, last, last+1)
		}
		last = lease.Token
		b := kit.Appending(lease, "soon gone")
		b.Put("record", []byte("soon gone"), runstore.Place{Index: "queue", At: runstore.After(0)})
		kit.MustApply(t, e.Store, "a write", b)
		purge(t, e.Store, lease)

		_, err := e.Store.GetRun(t.Context(), "run")
		harness.Refused(t, "get of a purged run", err, runstore.ErrNotFound)
		_, err = e.Store.ReadJournal(t.Context(), "run", 1, 10)
		harness.Refused(t, "journal of a purged run", err, runstore.ErrNotFound)
		_, err = e.Store.ReadRecords(t.Context(), "run", runstore.RecordQuery{Limit: 10})
		harness.Refused(t, "records of a purged run", err, runstore.ErrNotFound)
		_, err = e.Store.AcquireLease(t.Context(), kit.Acquiring("run", "a", harness.TTL))
		harness.Refused(t, "acquire of a purged run", err, runstore.ErrNotFound)
		for _, index := range []runstore.IndexName{"queue", runstore.IndexRuns, runstore.IndexRunnable} {
			for entry, err := range runstore.Entries(t.Context(), e.Store, runstore.IndexQuery{Index: index, Until: runstore.EndOfTime}) {
				t.Errorf("index %q holds %q of a purged run (error %v)", index, entry.Run, err)
			}
		}
	}
	created, err := e.Store.CreateRun(t.Context(), kit.WithLease("run", "b"))
	if err != nil {
		t.Fatalf("create with a lease: %v", err)
	}
	if created.Lease.Token != last+1 || !created.New {
		t.Errorf("re-created with a lease: new %t, token %v; want true and %v", created.New, created.Lease.Token, last+1)
	}
}

func fenceAfterPurge(t harness.T, e *harness.Env) {
	e.Create(t, "run")
	first := e.Acquire(t, e.Store, "run", "a")
	kit.MustRelease(t, e.Store, first)
	second := e.Acquire(t, e.Store, "run", "a")
	purge(t, e.Store, second)
	_, err := e.Store.Commit(t.Context(), kit.Appending(second, "to a purged run"))
	harness.Refused(t, "commit to a purged run", err, runstore.ErrNotFound)
	harness.Refused(t, "renewal on a purged run", kit.Renew(t, e.Store, second, harness.TTL), runstore.ErrNotFound)
	harness.Refused(t, "release of a purged run", kit.Release(t, e.Store, second), runstore.ErrNotFound)
	e.Create(t, "run")

	refused := func(when string) {
		t.Helper()
		before := kit.Dump(t, e.Store, "run")
		for _, old := range []runstore.Lease{first, second} {
			run := e.Get(t, "run")
			what := fmt.Sprintf("token %v on the re-created run %s", old.Token, when)
			_, err := e.Store.Commit(t.Context(), kit.Appending(old, "zombie"))
			kit.CheckFenced(t, "commit: "+what, err, old, run)
			kit.CheckFenced(t, "renewal: "+what, kit.Renew(t, e.Store, old, harness.TTL), old, run)
			kit.CheckFenced(t, "release: "+what, kit.Release(t, e.Store, old), old, run)
			b := runstore.NewBatch("run", old.Fence())
			b.Purge = true
			_, err = e.Store.Commit(t.Context(), b)
			kit.CheckFenced(t, "purge: "+what, err, old, run)
		}
		kit.CheckUnchanged(t, "a fence of the run's former life", before, kit.Dump(t, e.Store, "run"))
	}
	refused("before its first grant")
	third := e.Acquire(t, e.Store, "run", "a")
	if third.Token != second.Token+1 {
		t.Errorf("the re-created run granted token %v, want %v", third.Token, second.Token+1)
	}
	refused("under its first grant")
	e.Append(t, e.Store, third, "the new life goes on")
}
