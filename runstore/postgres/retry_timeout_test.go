package postgres_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tapestore/tapestore/conformance/effort"
	"github.com/tapestore/tapestore/conformance/faultynetwork"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/postgres"
)

// Writes that share a round trip wait for a lock together, not one after another: one lock timeout
// ends the wait of all.
func TestLockTimeoutIsPaidOnce(t *testing.T) {
	t.Parallel()
	address := database(t)
	w := &wire{}
	s := open(t, with(address, "lock_timeout=30m", "statement_timeout=1h"), w.through)
	lease := hold(t, s, "run")
	other, watch := connect(t, address), connect(t, address)
	exec(t, other, "BEGIN")
	exec(t, other, "SELECT FROM tapestore.runs FOR NO KEY UPDATE")
	w.lose(none, "")
	const n = 20
	done := make(chan error, n)
	for i := range n {
		go func() {
			_, err := s.Commit(context.WithoutCancel(t.Context()), appending(lease, "x"))
			done <- err
		}()
		if i == 0 {
			awaitLocked(t, address, 1)
		} else {
			await(t, "the others wait for the first", func() bool { return postgres.Waiting(s, "run") == i })
		}
	}
	for failed := 0; failed < n; { // as lock_timeout would: it cancels every backend that waits
		exec(t, watch, `SELECT pg_cancel_backend(pid) FROM pg_stat_activity
			WHERE datname = current_database() AND wait_event_type = 'Lock' AND application_name = 'tapestore'`)
		select {
		case err := <-done:
			if failed++; !errors.Is(err, runstore.ErrUnavailable) {
				t.Errorf("a commit whose wait for a lock was ended: got %v, want ErrUnavailable", err)
			}
		case <-time.After(2 * time.Millisecond): // look again
		}
	}
	if got := len(w.sent()); got != 2 {
		t.Errorf("%d statements waited for the lock, want 2: that of the first commit, and one for the other %d", got, n-1)
	}
}

// calls is a tracer that counts the statements that have a text in them.
type calls struct {
	text    string
	started atomic.Int64
}

func (c *calls) through(config *pgxpool.Config, _ *postgres.Options) { config.ConnConfig.Tracer = c }

// TraceQueryStart implements pgx.QueryTracer.
func (c *calls) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	c.count(data.SQL)
	return ctx
}

func (c *calls) count(sql string) {
	if strings.Contains(sql, c.text) {
		c.started.Add(1)
	}
}

// TraceQueryEnd implements pgx.QueryTracer.
func (c *calls) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// TraceBatchStart implements pgx.BatchTracer.
func (c *calls) TraceBatchStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceBatchStartData) context.Context {
	for _, q := range data.Batch.QueuedQueries {
		c.count(q.SQL)
	}
	return ctx
}

// TraceBatchQuery implements pgx.BatchTracer.
func (c *calls) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}

// TraceBatchEnd implements pgx.BatchTracer.
func (c *calls) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}

// After a failover the epoch is raised also where that takes longer than a connection may.
func TestRaisingTheEpochMayTakeLongerThanConnecting(t *testing.T) {
	t.Parallel()
	const connecting = time.Second // the shortest connect_timeout of a URL
	address := database(t)
	conn := connect(t, address)
	exec(t, conn, `UPDATE tapestore.store SET timeline = timeline + 1`)
	exec(t, conn, `BEGIN`)
	exec(t, conn, `LOCK TABLE tapestore.runs IN ROW EXCLUSIVE MODE`) // raising waits for this
	raises := &calls{text: "raise_epoch"}
	opened := make(chan error, 1)
	go func() {
		s, err := tryOpen(t, with(address, "connect_timeout=1"), quiet, raises.through)
		if err == nil {
			err = s.Close()
		}
		opened <- err
	}()
	awaitLocked(t, address, 1)
	watch := connect(t, address)
	await(t, "it takes longer than a connection may", func() bool {
		return raises.started.Load() > 1 || get[bool](t, watch, `SELECT coalesce(max(clock_timestamp() - query_start) > $1, false)
			FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`, connecting+connecting/4)
	})
	exec(t, conn, `ROLLBACK`)
	if err := <-opened; err != nil {
		t.Errorf("open: %v", err)
	}
	if got := raises.started.Load(); got != 1 {
		t.Errorf("raising the epoch was begun %d times, want once: it was given up after connect_timeout", got)
	}
}

// A server that falls silent holds up neither a caller without a deadline nor Close.
func TestSilentServerDoesNotHoldCallersForEver(t *testing.T) {
	t.Parallel()
	address := database(t)
	network, err := faultynetwork.New(t.Context(), server(t).Address())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = network.Close() })
	// A statement may take 10 s, because those before the silence must succeed.
	s := open(t, with(at(t, address, network.Address()), "retry_timeout=1s", "statement_timeout=10s", "lock_timeout=10s", "connect_timeout=10"))
	lease := hold(t, open(t, address), "run")
	network.Blackhole()
	done := make(chan error, 2)
	go func() {
		_, err := s.Commit(context.WithoutCancel(t.Context()), appending(lease, "x"))
		done <- err
	}()
	select {
	case err := <-done:
		if !errors.Is(err, runstore.ErrUnavailable) && !errors.Is(err, runstore.ErrUnknownOutcome) {
			t.Errorf("commit: %v, want ErrUnavailable or ErrUnknownOutcome", err)
		}
	case <-time.After(5 * time.Minute): // without a bound it would be for ever
		t.Fatal("a commit without a deadline has not returned, with timeouts of 10 s")
	}
	// The driver gives a broken connection 15 s to cancel its statement, and Close waits
	// for that: full runs do as well.
	if !effort.Full() {
		network.Reset()
	}
	go func() { done <- s.Close() }()
	select {
	case <-done:
	case <-time.After(5 * time.Minute):
		t.Fatal("Close has not returned")
	}
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
	s := open(t, with(address, "default_query_exec_mode=exec", "lock_timeout=300ms", "retry_timeout=10m"), w.through, func(c *pgxpool.Config, _ *postgres.Options) {
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
	if _, err := s.Commit(t.Context(), appending(lease, "x")); err != nil {
		t.Errorf("with ten minutes of patience and a lock held for 1 s: %v", err)
	}
	<-released
}
