package postgres_test

import (
	"testing"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// A commit under a fence is progress at the time at which it has the row of its run, also where
// it waited for another that locked the row and left it as it was.
func TestProgressIsCountedFromTheLock(t *testing.T) {
	t.Parallel()
	address := database(t)
	s := open(t, address)
	const stall = 2 * time.Second
	created, err := s.CreateRun(t.Context(), runstore.RunSpec{
		ID: "run", Lease: &runstore.LeaseSpec{Owner: "holder", TTL: time.Second, MaxStall: stall},
	})
	if err != nil {
		t.Fatal(err)
	}
	commit(t, s, appending(created.Lease, "first")) // the next has the form for such a lease
	other := connect(t, address)
	exec(t, other, "BEGIN")
	exec(t, other, `SELECT FROM tapestore.runs WHERE id = 'run' FOR NO KEY UPDATE`)
	type result struct {
		runstore.Committed
		error
	}
	answered := make(chan result, 1)
	go func() {
		done, err := s.Commit(t.Context(), appending(created.Lease, "progress"))
		answered <- result{done, err}
	}()
	awaitLocked(t, address, 1)
	start, err := s.Now(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	now := start
	for !now.After(start.Add(stall)) {
		if now, err = s.Now(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	exec(t, other, "ROLLBACK")
	r := <-answered
	if r.error != nil {
		t.Fatal(r.error)
	}
	if r.Time.Before(now) {
		t.Errorf("the commit has the time %v, %v before it had the row", r.Time, now.Sub(r.Time))
	}
	_, err = s.RenewLease(t.Context(), runstore.RenewRequest{Fence: created.Lease.Fence(), TTL: time.Second})
	if now, nowErr := s.Now(t.Context()); nowErr != nil {
		t.Fatal(nowErr)
	} else if err != nil && !now.After(r.Time.Add(stall)) { // a slow machine may be too late
		t.Errorf("a heartbeat directly after the commit: %v", err)
	}
}
