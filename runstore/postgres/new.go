package postgres

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/puddle/v2"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter"
	"github.com/tapestore/tapestore/runstore/adapter/outcome"
)

// New opens the store over a pool of the caller's: of a program that shares its connections with
// the store, or that makes them in a way of its own. The caller closes the pool, after the store.
//
// The store changes no setting of the sessions. What [Open] sets on its own is left to the caller,
// who knows whether the program's other statements bear it: statement_timeout, lock_timeout,
// plan_cache_mode = force_generic_plan, enable_seqscan = off, enable_bitmapscan = off, jit = off.
// Without statement_timeout the server does not end a statement that waits for a lock. The store then cuts
// the connection, one second after Options.StatementTimeout, and settles the write, which waits for the
// same lock: if that is held for longer than Options.RetryTimeout, the outcome is unknown. The first use of a
// connection checks the server and the schema, in one more round trip. If it has to raise the epoch, it may
// go on for Options.StatementTimeout and one second after the end of the caller's context.
//
// Errors: those of Open. ErrInvalid if the default isolation of the sessions is not read committed,
// or synchronous_commit is off. ErrUnsupported if the server has synchronous standbys, because the
// warning that a commit may be on none of them does not reach the store over such a pool.
func New(ctx context.Context, pool *pgxpool.Pool, opts *Options) (*Store, error) {
	if pool == nil {
		return nil, outcome.Wrap("open postgres store", "", adapter.Invalid("pool", "is missing"))
	}
	config := pool.Config()
	e, err := newEngine(opts, int(config.MaxConns))
	if err == nil {
		e.pool, e.shared, e.hooks = pool, true, hooksOf(config)
		err = e.setUp(ctx, config.ConnConfig)
	}
	if err != nil {
		return nil, outcome.Wrap("open postgres store", "", err)
	}
	return newStore(e), nil
}

// acquire takes a connection from the pool, checked once (checkConn).
func (e *engine) acquire(ctx context.Context) (*pgxpool.Conn, error) {
	if !e.shared { // the store's own pool checks each connection that it makes, and Close closes it
		return e.pool.Acquire(ctx)
	}
	conn, err := e.acquireShared(ctx)
	if err != nil {
		return nil, err
	}
	const checkedKey = "tapestore.checked."
	kept := conn.Conn().PgConn().CustomData()
	if kept[checkedKey+e.opts.Schema] == nil {
		if err := e.checkShared(ctx, conn); err != nil {
			conn.Release()
			return nil, err
		}
		kept[checkedKey+e.opts.Schema] = true
	}
	return conn, nil
}

// acquireShared takes a connection from the caller's pool. The wait for it ends when Close begins, because the
// caller may have all connections for long.
func (e *engine) acquireShared(ctx context.Context) (*pgxpool.Conn, error) {
	waiting, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(e.stopped, func() { cancel(puddle.ErrClosedPool) })()
	conn, err := e.pool.Acquire(waiting)
	if err != nil && errors.Is(context.Cause(waiting), puddle.ErrClosedPool) {
		return nil, puddle.ErrClosedPool
	}
	return conn, err
}

// checkShared checks the session first, so that a pool that the store refuses gets no schema.
func (e *engine) checkShared(ctx context.Context, conn *pgxpool.Conn) error {
	var standbys, isolation string
	var asynchronous bool
	if err := conn.QueryRow(ctx, sqlSessionRead, onceOnly(conn.Conn())).Scan(&standbys, &isolation, &asynchronous); err != nil {
		return err
	}
	switch {
	case standbys != "":
		return &runstore.InputError{Kind: runstore.ErrUnsupported, Field: "pool", Problem: "is of a server with synchronous standbys; use Open, which learns of commits that are on none of them"}
	case isolation != readCommitted:
		return errIsolation(isolation)
	case asynchronous:
		return errAsynchronous()
	}
	return e.checkConn(ctx, ctx, conn.Conn())
}
