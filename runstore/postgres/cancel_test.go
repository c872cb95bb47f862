package postgres_test

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tapestore/tapestore/internal/pace"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/postgres"
)

// A commit whose context ends while the commit waits for a lock leaves its connection in the pool:
// the server has answered the cancel request, so the request cannot hit the next statement. A busy
// server takes some 100 ms for the answer: if its clients closed their connections for that, it would
// be busy with new ones. The answer may be later on a slow machine, so the test repeats until a
// connection has been kept.
func TestEndedContextKeepsItsConnection(t *testing.T) {
	t.Parallel()
	for name, busy := range map[string]time.Duration{"a server at rest": 0, "a busy server": 250 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			address := database(t)
			var late atomic.Int64 // by how much the server answers new connections late
			s := open(t, with(address, "pool_max_conns=1"), func(c *pgxpool.Config, _ *postgres.Options) {
				dial := c.ConnConfig.DialFunc
				c.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
					if !pace.Pause(ctx, time.Duration(late.Load())) {
						return nil, ctx.Err()
					}
					return dial(ctx, network, addr)
				}
			})
			lease, other := hold(t, s, "run"), connect(t, address)
			late.Store(int64(busy))
			for range 30 {
				before := sessionID(t, address)
				_ = cancelBehindLock(t, s, lease, other, address, nil)
				if _, err := s.GetRun(t.Context(), "run"); err != nil {
					t.Fatalf("read over the connection of an ended context: %v", err)
				}
				if sessionID(t, address) == before {
					return
				}
			}
			t.Error("each ended context closed its connection")
		})
	}
}

// counting returns an option that counts the connections of a handle, cancel requests among them.
func counting(dials *atomic.Int32) func(c *pgxpool.Config, _ *postgres.Options) {
	return func(c *pgxpool.Config, _ *postgres.Options) {
		dial := c.ConnConfig.DialFunc
		c.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
			dials.Add(1)
			return dial(ctx, network, addr)
		}
	}
}

// A statement that ends soon after its caller's context is not cancelled: the request would be another connection
// for a server that is busy. The statement may take longer on a slow machine, so the test repeats
// until three of them were left alone.
func TestStatementThatEndsSoonIsNotCancelled(t *testing.T) {
	t.Parallel()
	address := database(t)
	var dials atomic.Int32
	s := open(t, with(address, "pool_max_conns=1"), counting(&dials))
	lease, other := hold(t, s, "run"), connect(t, address)
	atOnce := make(chan struct{})
	close(atOnce)
	alone := 0
	for range 30 {
		before := dials.Load()
		err := cancelBehindLock(t, s, lease, other, address, atOnce)
		if dials.Load() != before {
			continue
		}
		if err != nil {
			t.Fatalf("a commit that nothing cut short: %v", err)
		}
		if alone++; alone == 3 {
			return
		}
	}
	t.Errorf("%d of 30 statements were left alone, want 3", alone)
}

// Close sends no cancel request to the session that listens: the session would ignore the request, and Close would
// wait for the end of the grace.
func TestCloseDoesNotCancelListening(t *testing.T) {
	t.Parallel()
	address := database(t)
	var dials atomic.Int32
	s := open(t, address, counting(&dials))
	if _, err := s.Wakeups(t.Context()); err != nil {
		t.Fatal(err)
	}
	before := dials.Load()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if after := dials.Load(); after != before {
		t.Errorf("Close makes %d connections, want none", after-before)
	}
}

// A cancel request without an answer may still be in flight, so the connection is closed, although
// its statement has completed.
func TestUnansweredCancelClosesItsConnection(t *testing.T) {
	t.Parallel()
	address := database(t)
	other := connect(t, address)
	var refuse atomic.Bool
	refused := make(chan struct{}, 1)
	s := open(t, with(address, "pool_max_conns=1"), func(c *pgxpool.Config, _ *postgres.Options) {
		dial := c.ConnConfig.DialFunc
		c.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
			if refuse.CompareAndSwap(true, false) {
				refused <- struct{}{}
				return nil, errors.New("a fault of the test")
			}
			return dial(ctx, network, addr)
		}
	})
	lease := hold(t, s, "run")
	before := sessionID(t, address)
	refuse.Store(true)
	_ = cancelBehindLock(t, s, lease, other, address, refused)
	if _, err := s.GetRun(t.Context(), "run"); err != nil {
		t.Fatal(err)
	}
	if sessionID(t, address) == before {
		t.Error("the connection stays in use, and a late cancel request would hit its next statement")
	}
}

// A cancel request of a connection's first statements, before a caller has it, may be in flight too:
// then no caller gets the connection.
func TestUnansweredCancelOfANewConnection(t *testing.T) {
	t.Parallel()
	address := database(t)
	var tries atomic.Int32
	var refuse atomic.Bool
	var marked atomic.Uint32 // the session with a cancel request in flight
	hit := &statements{session: &marked}
	s := open(t, with(address, "pool_max_conns=1"), func(c *pgxpool.Config, _ *postgres.Options) {
		dial := c.ConnConfig.DialFunc
		c.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
			if refuse.CompareAndSwap(true, false) {
				return nil, errors.New("a fault of the test")
			}
			return dial(ctx, network, addr)
		}
		c.ConnConfig.Tracer = hit
		c.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
			if marked.Load() != 0 || tries.Add(1) > 30 {
				return nil
			}
			bound, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
			defer cancel()
			refuse.Store(true)
			if _, err := conn.Exec(bound, `SELECT pg_sleep(0.5)`); err != nil {
				return err // cut short on a slow machine: the connection is closed, and another one is tried
			}
			if !refuse.CompareAndSwap(true, false) { // else the statement ended first
				marked.Store(conn.PgConn().PID())
			}
			return nil
		}
	})
	if _, err := s.CreateRun(t.Context(), runstore.RunSpec{ID: "run"}); err != nil {
		t.Fatal(err)
	}
	if marked.Load() == 0 {
		t.Skip("no statement outlived its context")
	}
	if n := hit.n.Load(); n > 0 {
		t.Errorf("%d statements that a late cancel request would hit", n)
	}
}

// statements counts the statements of a session.
type statements struct {
	session *atomic.Uint32
	n       atomic.Int32
}

func (s *statements) TraceQueryStart(ctx context.Context, conn *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	if conn.PgConn().PID() == s.session.Load() {
		s.n.Add(1)
	}
	return ctx
}

func (s *statements) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// cancelBehindLock cancels a commit that waits for the lock of its run, and returns its error. If unlock is
// not nil, it waits for its signal and then lets the commit have the lock. Otherwise the commit ends first.
func cancelBehindLock(t *testing.T, s *postgres.Store, lease runstore.Lease, other execer, address string, unlock <-chan struct{}) error {
	t.Helper()
	exec(t, other, `BEGIN`)
	exec(t, other, `SELECT FROM tapestore.runs FOR NO KEY UPDATE`)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() {
		_, err := s.Commit(ctx, appending(lease, "event"))
		done <- err
	}()
	awaitLocked(t, address, 1)
	cancel()
	if unlock != nil {
		<-unlock
		exec(t, other, `ROLLBACK`)
		return <-done // applied, or cut short after all
	}
	err := <-done
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want the context's error", err)
	}
	exec(t, other, `ROLLBACK`)
	return err
}

// sessionID returns the process id of the server's session for the store's only connection.
func sessionID(t *testing.T, address string) int {
	t.Helper()
	return get[int](t, connect(t, address), `SELECT max(pid) FROM pg_stat_activity
		WHERE datname = current_database() AND application_name = 'tapestore'`)
}
