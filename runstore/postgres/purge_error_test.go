package postgres_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/postgres"
)

// endsSession ends the server's session of a handle before the handle sends its second collecting step.
type endsSession struct {
	end   func(pid uint32)
	steps atomic.Int64
}

func (e *endsSession) through(config *pgxpool.Config, _ *postgres.Options) {
	config.ConnConfig.Tracer = e
}

// TraceQueryStart implements pgx.QueryTracer.
func (e *endsSession) TraceQueryStart(ctx context.Context, conn *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	if strings.Contains(data.SQL, "tapestore.collect(") && e.steps.Add(1) == 2 {
		e.end(conn.PgConn().PID())
	}
	return ctx
}

// TraceQueryEnd implements pgx.QueryTracer.
func (e *endsSession) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// A handle continues to collect the garbage of its purge after an error of a step, without another call.
func TestPurgeIsCollectedAfterAnError(t *testing.T) {
	t.Parallel()
	address := database(t)
	conn, other := connect(t, address), connect(t, address)
	e := &endsSession{end: func(pid uint32) {
		if !get[bool](t, other, `SELECT pg_terminate_backend($1::integer, 60000)`, int(pid)) {
			t.Error("the session did not end")
		}
	}}
	s := open(t, address, e.through)
	purgeable(t, s, conn, "run", 5000)
	e.steps.Store(0) // the opening takes a step too
	purge(t, s, "run")
	if n := e.steps.Load(); n < 2 {
		t.Fatalf("%d steps, want a session that ended before the second", n)
	}
	await(t, "the garbage to be collected", func() bool { return get[int](t, conn, leavings) == 0 })
}

// A handle whose first step fails, when it is opened, collects the garbage later.
func TestGarbageIsCollectedAfterAnErrorOfOpen(t *testing.T) {
	t.Parallel()
	address := database(t)
	s, conn := open(t, address), connect(t, address)
	purgeable(t, s, conn, "run", 10)
	withoutCollecting(t, conn, func() {
		purgeOnly(t, address, "run")
		open(t, address)
	})
	await(t, "the garbage to be collected", func() bool { return get[int](t, conn, leavings) == 0 })
}

// The reply of a purge is lost, and its caller's context ends before the outcome is known. The handle collects the
// garbage that there is if the purge was applied.
func TestPurgeOfUnknownOutcomeIsCollected(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		loses  string // the statement whose reply is lost
		commit func(ctx context.Context, s *postgres.Store, b runstore.Batch) error
	}{
		"of one run": {"", func(ctx context.Context, s *postgres.Store, b runstore.Batch) error {
			_, err := s.Commit(ctx, b)
			return err
		}},
		"of several runs": {"lock_runs", func(ctx context.Context, s *postgres.Store, b runstore.Batch) error {
			_, err := s.CommitMulti(ctx, []runstore.Batch{b, runstore.NewBatch("other", runstore.Unguarded("test"))})
			return err
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			address := database(t)
			conn := connect(t, address)
			ctx, end := context.WithCancel(t.Context())
			defer end()
			i := &interloper{wire: &wire{}, before: ".settle(", do: end}
			s := open(t, with(address, "default_query_exec_mode=exec"), i.through)
			hold(t, s, "other")
			purgeable(t, s, conn, "run", 5000)
			b := runstore.NewBatch("run", runstore.Unguarded("test"))
			b.Purge = true
			i.lose(loseReply, tc.loses)
			if err := tc.commit(ctx, s, b); !errors.Is(err, runstore.ErrUnknownOutcome) {
				t.Fatalf("got error %v, want ErrUnknownOutcome", err)
			}
			if _, err := s.GetRun(t.Context(), "run"); !errors.Is(err, runstore.ErrNotFound) {
				t.Fatalf("got error %v, want a run that is purged", err)
			}
			await(t, "the garbage to be collected", func() bool { return get[int](t, conn, leavings) == 0 })
		})
	}
}
