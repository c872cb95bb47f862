package postgres_test

import (
	"errors"
	"testing"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// A raise of the epoch waits for a grant in flight that has read the former epoch, and then ends
// the grant. Until the grant updates its run, its transaction has locked no more of the table than
// a SELECT FOR UPDATE does. A raise that did not wait for that would return before the grant is
// made, and leave it current under a token of the former epoch.
func TestRaiseWaitsForAGrantInFlight(t *testing.T) {
	t.Parallel()
	address := database(t)
	s := open(t, with(address, "lock_timeout=30m", "statement_timeout=1h"))
	if _, err := s.CreateRun(t.Context(), runstore.RunSpec{ID: "run"}); err != nil {
		t.Fatal(err)
	}
	watch := connect(t, address)
	release := holdEvents(t, address)
	type grant struct {
		runstore.Granted
		err error
	}
	grants, raises := make(chan grant, 1), make(chan error, 1)
	go func() {
		req := runstore.AcquireRequest{Run: "run", LeaseSpec: runstore.LeaseSpec{Owner: "holder", TTL: time.Minute}}
		req.Writes.Append("test", nil)
		granted, err := s.AcquireLease(t.Context(), req)
		grants <- grant{granted, err}
	}()
	awaitLocked(t, address, 1)
	go func() {
		_, err := s.RaiseEpoch(t.Context(), "test")
		raises <- err
	}()
	await(t, "the raise waits or has returned", func() bool {
		return len(raises) > 0 || get[bool](t, watch, `SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted
			AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) AND relation = 'tapestore.runs'::regclass)`)
	})
	if len(raises) > 0 {
		t.Error("the raise returned before the grant in flight was committed")
	}
	release()
	made := <-grants
	if err := errors.Join(made.err, <-raises); err != nil {
		t.Fatal(err)
	}
	if made.Lease.Token != 1 {
		t.Errorf("got token %d, want 1: the grant was in flight before the raise", made.Lease.Token)
	}
	if run, err := s.GetRun(t.Context(), "run"); err != nil || run.Holder != (runstore.Holder{}) {
		t.Errorf("after the raise: got holder %+v, %v, want none", run.Holder, err)
	}
	if _, err := s.Commit(t.Context(), appending(made.Lease, "zombie")); !errors.Is(err, runstore.ErrFenced) {
		t.Errorf("an append under the grant of the former epoch: got %v, want ErrFenced", err)
	}
}
