package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/postgres"
)

// Writes that share a round trip wait for a lock together, not one after another.
func TestLockTimeoutIsPaidOnce(t *testing.T) {
	t.Parallel()
	address := database(t)
	s := open(t, with(address, "lock_timeout=300ms"))
	lease := hold(t, s, "run")
	other := connect(t, address)
	exec(t, other, "BEGIN")
	exec(t, other, "SELECT FROM tapestore.runs FOR NO KEY UPDATE")
	began := time.Now()
	done := make(chan time.Duration, 32)
	for range 20 {
		go func() {
			_, _ = s.Commit(context.Background(), appending(lease, "x"))
			done <- time.Since(began)
		}()
	}
	var last time.Duration
	for range 20 {
		last = <-done
	}
	exec(t, other, "ROLLBACK")
	if last > 2*time.Second {
		t.Errorf("the last of 20 waited %v with a lock_timeout of 300ms", last)
	}
}

// After a failover the epoch is raised also where that takes longer than a connection may.
func TestRaisingTheEpochMayTakeLongerThanConnecting(t *testing.T) {
	t.Parallel()
	address := database(t)
	conn := connect(t, address)
	exec(t, conn, `INSERT INTO tapestore.runs (last_seq, token, version_floor, batches, created, status, grant_state, purged, is_strict, id, grant_id, owner, reactor, preempted_from, preempt_reason, runnable)
		SELECT 0,1,0,0,now(),0,1,false,false,int8send(i),'g','o','','','', now() FROM generate_series(1,150000) i`)
	exec(t, conn, `UPDATE tapestore.store SET timeline = timeline + 1`)
	began := time.Now()
	_, err := tryOpen(t, with(address, "connect_timeout=1", "patience=12s"), quiet)
	t.Logf("after %v: %v", time.Since(began), err)
	began = time.Now()
	exec(t, conn, `SELECT tapestore.raise_epoch('x', 'c', 99, false)`)
	t.Logf("a raise over 150,000 leases takes %v", time.Since(began))
	if err != nil {
		t.Error("the store cannot be opened: every connection gives up the raise after connect_timeout")
	}
}

// A server that falls silent holds up neither a caller without a deadline nor Close.
func TestSilentServerDoesNotHoldCallersForEver(t *testing.T) {
	address := database(t)
	cfg, _ := pgx.ParseConfig(address)
	var silent atomic.Bool
	s := open(t, with(address, "patience=1s", "statement_timeout=1s", "lock_timeout=1s", "connect_timeout=1"), func(c *pgxpool.Config, _ *postgres.Options) {
		c.ConnConfig.DialFunc = func(ctx context.Context, n, _ string) (net.Conn, error) {
			if silent.Load() {
				return nil, errors.New("no route")
			}
			up, err := net.Dial(n, func() string { nn, a := pgconnAddr(cfg); _ = nn; return a }())
			if err != nil {
				return nil, err
			}
			mine, theirs := net.Pipe()
			go func() { _, _ = io.Copy(up, blackhole{theirs, &silent}) }()
			go func() { _, _ = io.Copy(theirs, up) }()
			return mine, nil
		}
	})
	lease := hold(t, s, "run")
	silent.Store(true)
	done := make(chan error, 1)
	go func() { _, err := s.Commit(context.Background(), appending(lease, "x")); done <- err }()
	select {
	case err := <-done:
		t.Log(err)
	case <-time.After(12 * time.Second):
		t.Error("a commit without a deadline has not returned after 12 s, with a patience and all timeouts of 1 s")
		go func() {
			ctx, c := context.WithTimeout(context.Background(), time.Second)
			defer c()
			_, err := s.RenewLease(ctx, runstore.RenewRequest{Fence: lease.Fence(), TTL: time.Minute})
			done <- err
		}()
		t.Logf("a heartbeat behind it: %v", <-done)
	}
}

type blackhole struct {
	io.Reader
	silent *atomic.Bool
}

func (b blackhole) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	if b.silent.Load() {
		select {}
	}
	return n, err
}

func pgconnAddr(c *pgx.ConnConfig) (string, string) {
	return "tcp", net.JoinHostPort(c.Host, fmt.Sprint(c.Port))
}

// RaiseEpoch works though its connection died while it was idle.
func TestRaiseEpochOverADeadConnection(t *testing.T) {
	t.Parallel()
	address := database(t)
	s := open(t, address)
	other := connect(t, address)
	exec(t, other, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()`)
	await(t, "the connections have ended", func() bool {
		return get[int](t, other, `SELECT count(*)::int FROM pg_stat_activity WHERE datname = current_database()`) == 1
	})
	if _, err := s.RaiseEpoch(t.Context(), "x"); err != nil {
		t.Errorf("raise epoch: %v", err)
	}
}

// A lost reply is settled though the first look meets a lock timeout.
func TestSettlingOutlastsALockTimeout(t *testing.T) {
	t.Parallel()
	address := database(t)
	w := &wire{}
	conn := connect(t, address)
	var armed atomic.Bool
	released := make(chan struct{})
	s := open(t, with(address, "default_query_exec_mode=exec", "lock_timeout=300ms", "patience=20s"), w.through, func(c *pgxpool.Config, _ *postgres.Options) {
		c.BeforeConnect = func(context.Context, *pgx.ConnConfig) error {
			if armed.CompareAndSwap(true, false) {
				exec(t, conn, "BEGIN")
				exec(t, conn, "SELECT FROM tapestore.runs FOR NO KEY UPDATE")
				time.AfterFunc(time.Second, func() {
					defer close(released)
					_, _ = conn.Exec(context.Background(), "ROLLBACK")
				})
			}
			return nil
		}
	})
	lease := hold(t, s, "run")
	armed.Store(true)
	w.lose(loseReply, "")
	began := time.Now()
	if _, err := s.Commit(t.Context(), appending(lease, "x")); err != nil {
		t.Errorf("after %v, with 20 s of patience and a lock held for 1 s: %v", time.Since(began), err)
	}
	<-released
}
