package postgres_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter/rules"
	"github.com/tapestore/tapestore/runstore/postgres"
)

// A commit that takes a second round trip does not wait for a connection again: rows of other runs that are locked
// would delay it, and the heartbeats of its run behind it.
func TestSecondRoundTripKeepsItsConnection(t *testing.T) {
	t.Parallel()
	address := database(t)
	s := open(t, with(address, "pool_max_conns=4", "lock_timeout=5m", "statement_timeout=10m"))
	lease, x, y := hold(t, s, "run"), hold(t, s, "x"), hold(t, s, "y")
	others, own := connect(t, address), connect(t, address)
	exec(t, others, `BEGIN`)
	exec(t, others, `SELECT FROM tapestore.runs WHERE id IN ('x', 'y') FOR NO KEY UPDATE`)
	exec(t, own, `BEGIN`)
	exec(t, own, `UPDATE tapestore.runs SET batches = 127 WHERE id = 'run'`) // the next result evicts
	var begun sync.WaitGroup
	defer begun.Wait()
	begin := func(l runstore.Lease, id runstore.BatchID) (done chan error) {
		done = make(chan error, 1)
		begun.Go(func() {
			b := appending(l, "event")
			b.ID = id
			_, err := s.Commit(t.Context(), b)
			done <- err
		})
		return done
	}
	begin(x, "x")
	awaitLocked(t, address, 1)
	done := begin(lease, "id")
	awaitLocked(t, address, 2)
	begin(y, "y")
	await(t, "a commit of y waits for a connection", func() bool { return postgres.WaitsForConn(s, "y") })
	before := get[time.Time](t, own, `SELECT clock_timestamp()`)
	exec(t, own, `COMMIT`)
	if err := <-done; err != nil {
		t.Error(err)
	}
	if n := get[int](t, own, `SELECT count(*) FROM pg_stat_activity
		WHERE wait_event_type = 'Lock' AND datname = current_database() AND query_start < $1`, before); n != 1 {
		t.Error("the commit waited until that of x had ended")
	}
	exec(t, others, `ROLLBACK`)
}

// A commit is not refused because a release behind it in the same group came first.
func TestReleaseComesAfterTheCommitsOfItsGroup(t *testing.T) {
	t.Parallel()
	address := database(t)
	s := open(t, address)
	lease := hold(t, s, "run")
	exec(t, connect(t, address), `UPDATE tapestore.runs SET batches = 127 WHERE id = 'run'`)
	errs := grouped(t, s, address, 2, func(i int) error {
		b := appending(lease, fmt.Sprint(i))
		switch i {
		case 1: // the next result evicts
			b.ID = "id"
			b.Put("key", nil)
		case 2:
			_, err := s.ReleaseLease(t.Context(), runstore.ReleaseRequest{Fence: lease.Fence()})
			return err
		}
		_, err := s.Commit(t.Context(), b)
		return err
	}, func() {})
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
	}
}

// Commits of one run that share a statement share it again after a statement for several runs has left them out.
func TestLeftOutCommitsOfARunShareAStatement(t *testing.T) {
	t.Parallel()
	address := database(t)
	w := &wire{}
	s := open(t, address, w.through)
	lease, other := hold(t, s, "run"), hold(t, s, "other")
	locks := connect(t, address)
	lock := func() {
		exec(t, locks, `BEGIN`)
		exec(t, locks, `SELECT FROM tapestore.runs WHERE id = 'run' FOR NO KEY UPDATE`)
	}
	var begun sync.WaitGroup
	begin := func(l runstore.Lease, data string) {
		begun.Go(func() {
			if _, err := s.Commit(t.Context(), appending(l, data)); err != nil {
				t.Error(err)
			}
		})
	}
	lock()
	begin(lease, "first")
	awaitLocked(t, address, 1)
	const n = 20
	for i := range n {
		begin(lease, fmt.Sprint(i))
	}
	await(t, "they queue", func() bool { return postgres.Waiting(s, "run") == n })
	await(t, "the slots are free", func() bool { _, free := postgres.Coalescer(s); return free == postgres.MaxInFlight })
	leave := postgres.FillSlots(s)
	begin(other, "event")
	await(t, "the other run waits", func() bool { waiting, _ := postgres.Coalescer(s); return waiting == 1 })
	exec(t, locks, `COMMIT`)
	await(t, "both wait", func() bool { waiting, _ := postgres.Coalescer(s); return waiting == 2 })
	lock()
	w.lose(none, "")
	for range postgres.MaxInFlight {
		leave()
	}
	awaitLocked(t, address, 1)
	exec(t, locks, `COMMIT`)
	begun.Wait()
	if sent := len(w.sent()); sent != 2 {
		t.Errorf("%d statements were sent, want one for both runs, and one for those left out", sent)
	}
}

// Commits that are sent again by themselves may wait for a connection anew. Heartbeats of their run pass them.
func TestHeartbeatsPassCommitsThatAreSentAgain(t *testing.T) {
	t.Parallel()
	const remember = `INSERT INTO tapestore.batches (run, n, first_seq, last_seq, at, nonce, id, versions)
		SELECT no, 1000, 0, 0, clock_timestamp(), 1, $2, '{}' FROM tapestore.runs WHERE id = $1`
	for name, first := range map[string]func(t *testing.T, s *postgres.Store, address string, lease runstore.Lease, begin func(l runstore.Lease, id runstore.BatchID)) (resume func()){
		"after an error": func(t *testing.T, s *postgres.Store, address string, lease runstore.Lease, begin func(l runstore.Lease, id runstore.BatchID)) func() {
			row, key := connect(t, address), connect(t, address)
			exec(t, row, `BEGIN`)
			exec(t, row, `SELECT FROM tapestore.runs WHERE id = 'run' FOR NO KEY UPDATE`)
			begin(lease, "first")
			awaitLocked(t, address, 2)
			begin(lease, "same")
			begin(lease, "same") // a unique index refuses the statement of both
			await(t, "they queue", func() bool { return postgres.Waiting(s, "run") == 2 })
			exec(t, key, `BEGIN`)
			exec(t, key, remember, []byte("run"), []byte(rules.BatchResult("same")))
			exec(t, row, `ROLLBACK`)
			await(t, "the group is in flight", func() bool { return postgres.Waiting(s, "run") == 0 })
			awaitLocked(t, address, 2)
			return func() { exec(t, key, `ROLLBACK`) }
		},
		"after a statement for several runs": func(t *testing.T, s *postgres.Store, address string, lease runstore.Lease, begin func(l runstore.Lease, id runstore.BatchID)) func() {
			other, key := hold(t, s, "other"), connect(t, address)
			b := appending(lease, "event")
			b.ID = "same"
			commit(t, s, b)
			await(t, "the slots are free", func() bool { _, free := postgres.Coalescer(s); return free == postgres.MaxInFlight })
			exec(t, key, `BEGIN`)
			exec(t, key, remember, []byte("other"), []byte(rules.BatchResult("id")))
			leave := postgres.FillSlots(s)
			begin(lease, "same") // a repeat
			begin(other, "id")
			await(t, "both wait", func() bool { waiting, _ := postgres.Coalescer(s); return waiting == 2 })
			for range postgres.MaxInFlight {
				leave()
			}
			awaitLocked(t, address, 2)
			return func() { exec(t, key, `ROLLBACK`) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			address := database(t)
			s := open(t, with(address, "pool_max_conns=4", "lock_timeout=5m", "statement_timeout=10m"))
			lease, x, y := hold(t, s, "run"), hold(t, s, "x"), hold(t, s, "y")
			locks := connect(t, address)
			exec(t, locks, `BEGIN`)
			exec(t, locks, `SELECT FROM tapestore.runs WHERE id IN ('x', 'y') FOR NO KEY UPDATE`)
			var begun sync.WaitGroup
			defer begun.Wait()
			defer func() { exec(t, locks, `ROLLBACK`) }()
			begin := func(l runstore.Lease, id runstore.BatchID) {
				begun.Go(func() {
					b := appending(l, "event")
					b.ID = id
					if _, err := s.Commit(t.Context(), b); err != nil {
						t.Error(err)
					}
				})
			}
			begin(x, "x")
			awaitLocked(t, address, 1)
			resume := first(t, s, address, lease, begin)
			begin(y, "y")
			await(t, "a commit of y waits for a connection", func() bool { return postgres.WaitsForConn(s, "y") })
			resume()
			await(t, "the commit is sent again, and waits for a connection", func() bool { return postgres.WaitsForConn(s, "run") })
			if _, err := s.RenewLease(t.Context(), runstore.RenewRequest{Fence: lease.Fence(), TTL: runstore.MaxTTL}); err != nil {
				t.Error(err)
			}
		})
	}
}
