package postgres_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/postgres"
)

// While rows that another transaction has locked keep all commits waiting, the runs that
// have nothing to do with it keep their leases and let go of them, and readers read.
func TestHeartbeatsPassCommitsThatWait(t *testing.T) {
	t.Parallel()
	for _, conns := range []int{2, 6} { // two: one for commits, and one for all else
		t.Run(fmt.Sprint(conns, " connections"), func(t *testing.T) {
			t.Parallel()
			heartbeatsPassCommits(t, conns, max(conns-postgres.ReservedConns, 1))
		})
	}
}

// heartbeatsPassCommits is for a pool of so many connections, of which commits use so many.
func heartbeatsPassCommits(t *testing.T, conns, commits int) {
	address := database(t)
	s := open(t, with(address, fmt.Sprint("pool_max_conns=", conns), "lock_timeout=30s", "statement_timeout=1m"))
	held := holdMany(t, s, commits+5)
	locked, alone := held[:commits+2], held[commits+2:]
	waiting, quiet := hold(t, s, "waiting"), hold(t, s, "quiet")
	other, watch := connect(t, address), connect(t, address)
	exec(t, other, `BEGIN`)
	exec(t, other, `SELECT FROM tapestore.runs WHERE id LIKE 'run %' FOR NO KEY UPDATE`)

	var all sync.WaitGroup
	ended := make(chan string, 100)
	begin := func(name string, do func() error) {
		all.Go(func() {
			err := do()
			ended <- name
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
		})
	}
	appendTo := func(l runstore.Lease) func() error {
		return func() error { _, err := s.Commit(t.Context(), appending(l, "event")); return err }
	}
	renew := func(l runstore.Lease) func() error {
		return func() error {
			_, err := s.RenewLease(t.Context(), runstore.RenewRequest{Fence: l.Fence(), TTL: runstore.MaxTTL})
			return err
		}
	}
	inLine := func(id runstore.RunID) func() bool { return func() bool { return postgres.WaitsForConn(s, id) } }
	for i, l := range locked {
		begin(fmt.Sprint("a commit to locked run ", i), appendTo(l))
		if i < commits {
			awaitLocked(t, address, i+1)
		} else {
			await(t, "it waits for a connection or a lock", func() bool { return inLine(l.Run)() || locks(t, watch) > i })
		}
	}
	begin("a commit that finds no connection", appendTo(waiting))
	await(t, "it waits for a connection", inLine("waiting"))

	answered := func(name string, do func() error) {
		t.Helper()
		if err := do(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		select {
		case first := <-ended:
			t.Errorf("%s was answered after %s", name, first)
		default:
		}
	}
	answered("the heartbeat of a run that has nothing to do with it", renew(quiet))
	answered("its heartbeat with a record", func() error {
		renewal := runstore.RenewRequest{Fence: quiet.Fence(), TTL: runstore.MaxTTL}
		renewal.Writes.Put("progress", nil)
		_, err := s.RenewLease(t.Context(), renewal)
		return err
	})
	answered("the heartbeat of a run whose commit waits for a connection", renew(waiting))
	answered("a release", func() error {
		_, err := s.ReleaseLease(t.Context(), runstore.ReleaseRequest{Fence: quiet.Fence()})
		return err
	})
	if conns > postgres.ReservedConns { // heartbeats may wait for locked rows too, and leave a connection to readers
		for i, l := range alone {
			begin(fmt.Sprint("a heartbeat of locked run ", i), renew(l))
		}
		awaitLocked(t, address, commits+1)
	}
	answered("a read", func() error { _, err := s.GetRun(t.Context(), "quiet"); return err })
	exec(t, other, `ROLLBACK`)
	all.Wait()
}

// locks returns how many statements of the adapter wait for a lock.
func locks(t *testing.T, conn execer) int {
	t.Helper()
	return get[int](t, conn, `SELECT count(*) FROM pg_stat_activity
		WHERE datname = current_database() AND wait_event_type = 'Lock' AND application_name = 'tapestore'`)
}
