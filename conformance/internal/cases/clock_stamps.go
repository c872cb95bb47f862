package cases

import (
	"time"

	"github.com/tapestore/tapestore/conformance/harness"
	"github.com/tapestore/tapestore/conformance/internal/kit"
	"github.com/tapestore/tapestore/runstore"
)

func slowStamps(t harness.T, e *harness.Env) {
	n := e.Network(t)
	t.Cleanup(n.Faults.Reset) // before the handle is closed
	n.Faults.Delay(20 * time.Millisecond)
	checkCommitTimes(t, e, harness.MustOpen(t, func() (runstore.RunStore, error) { return n.Open(t.Context()) }), "run", "over a slow network")
}

// earliestCommitTime returns the earliest time that a later write of s may return: the store clock,
// less the time that s took to read it. A handle that knows the store clock only by such readings
// has no better estimate.
func earliestCommitTime(t harness.T, e *harness.Env, s runstore.RunStore) time.Time {
	t.Helper()
	began := time.Now()
	if _, err := s.Now(t.Context()); err != nil {
		t.Fatalf("now: %v", err)
	}
	took := time.Since(began)
	return e.Now(t).Add(-took)
}

// checkCommitTimes fails the case unless all times that a handle's writes return and store are
// those of the store clock at the write.
func checkCommitTimes(t harness.T, e *harness.Env, s runstore.RunStore, id runstore.RunID, what string) {
	t.Helper()
	from := earliestCommitTime(t, e, s)
	now, err := s.Now(t.Context())
	if err != nil {
		t.Fatalf("now: %v", err)
	}
	checkBetween(t, "the store clock as read "+what, now, from, e.Now(t))
	spec := runstore.RunSpec{ID: id, Runnable: runstore.After(harness.TTL)}
	created, err := s.CreateRun(t.Context(), spec)
	if err != nil {
		t.Fatalf("create: %v", err)
	}
	to := e.Now(t)
	checkBetween(t, "the creation "+what, created.Run.CreatedAt, from, to)
	checkBetween(t, "the runnable time set "+what, created.Run.RunnableAt, from.Add(harness.TTL), to.Add(harness.TTL))

	from = earliestCommitTime(t, e, s)
	lease := kit.MustAcquire(t, s, kit.Acquiring(id, "holder", harness.TTL))
	checkBetween(t, "the expiry of a grant "+what, lease.ExpiresAt, from.Add(harness.TTL), e.Now(t).Add(harness.TTL))
	from = earliestCommitTime(t, e, s)
	renewed, err := s.RenewLease(t.Context(), runstore.RenewRequest{Fence: lease.Fence(), TTL: 2 * harness.TTL})
	if err != nil {
		t.Fatalf("renew: %v", err)
	}
	checkBetween(t, "the renewed expiry "+what, renewed.ExpiresAt, from.Add(2*harness.TTL), e.Now(t).Add(2*harness.TTL))

	b := kit.Appending(lease, "work")
	b.Put("record", nil, runstore.Place{Index: "queue", At: runstore.After(time.Minute)})
	from = earliestCommitTime(t, e, s)
	done := kit.MustApply(t, s, "commit", b)
	to = e.Now(t)
	checkBetween(t, "a commit "+what, done.Time, from, to)
	checkBetween(t, "an event "+what, kit.Journal(t, e.Store, id)[0].Time, from, to)
	records, err := e.Store.ReadRecords(t.Context(), id, runstore.RecordQuery{Keys: []runstore.RecordKey{"record"}})
	if err != nil || len(records) != 1 {
		t.Fatalf("records: %d, error %v", len(records), err)
	}
	checkBetween(t, "a record "+what, records[0].Updated.Time, from, to)
	for entry, err := range runstore.Entries(t.Context(), e.Store, runstore.IndexQuery{Index: "queue", Until: runstore.EndOfTime}) {
		if err != nil {
			t.Fatalf("scan: %v", err)
		}
		if entry.Run == id {
			checkBetween(t, "an index place "+what, entry.At, from.Add(time.Minute), to.Add(time.Minute))
		}
	}
}
