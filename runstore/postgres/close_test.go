package postgres_test

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/postgres"
)

// asked reports that a pool was asked for a connection.
type asked struct{ by chan struct{} }

func (a *asked) TraceAcquireStart(ctx context.Context, _ *pgxpool.Pool, _ pgxpool.TraceAcquireStartData) context.Context {
	select {
	case a.by <- struct{}{}:
	default:
	}
	return ctx
}

func (a *asked) TraceAcquireEnd(context.Context, *pgxpool.Pool, pgxpool.TraceAcquireEndData) {}

func (a *asked) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}

func (a *asked) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// Close over a caller's pool ends the operations that wait for a connection, also while the caller has them all.
func TestCloseWhileTheCallerHasTheConnections(t *testing.T) {
	t.Parallel()
	config, err := pgxpool.ParseConfig(with(database(t), "pool_max_conns=1"))
	if err != nil {
		t.Fatal(err)
	}
	asks := &asked{by: make(chan struct{}, 1)}
	config.ConnConfig.Tracer = asks
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	s, err := postgres.New(t.Context(), pool, nil)
	if err != nil {
		t.Fatal(err)
	}
	own, err := pool.Acquire(t.Context()) // for the program's own transaction
	if err != nil {
		t.Fatal(err)
	}
	defer own.Release()
	select {
	case <-asks.by:
	default:
	}
	answered := make(chan error, 1)
	go func() {
		_, err := s.GetRun(context.WithoutCancel(t.Context()), "run")
		answered <- err
	}()
	<-asks.by
	closed := make(chan error, 1)
	go func() { closed <- s.Close() }()
	await(t, "the end of Close", func() bool { return len(closed) > 0 })
	if err := <-closed; err != nil {
		t.Error(err)
	}
	if err := <-answered; !errors.Is(err, runstore.ErrClosed) {
		t.Errorf("got error %v, want ErrClosed", err)
	}
}
