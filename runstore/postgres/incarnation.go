package postgres

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// A proxy that pools transactions keeps this handle's connections through a failover and replaces
// only the proxy's connections to the server. The check of a new connection (checkConn) would come
// too late there: a promoted copy that lacks the last commits could give their tokens and positions
// out again. So with Options.Pooled every transaction that writes to a run begins with
// sql/incarnation_guard.sql, in the same round trip. If the guard fails, the transaction changes
// nothing, checkConn raises the epoch, and the write is sent again.
//
// The guard also compares the base of the positions that the handle adds to transaction numbers (feed.go):
// behind such a proxy, another handle may have raised the epoch in a history that has an epoch of the same
// number with another base.
//
// Rejected: a check of connections that were not checked for some seconds. A write that the proxy
// holds back during the failover would run unchecked.

// errAnotherIncarnation is the error of a transaction that the guard has refused.
var errAnotherIncarnation = errors.New("postgres: the server is another incarnation than before")

// guardError is the error of the guard, after which the transaction has changed nothing.
type guardError struct{ error }

func (e guardError) Unwrap() error { return e.error }

// guarded reports whether writes need the guard. A server that hides its incarnation has none.
func (e *engine) guarded() bool { return e.opts.Pooled && !e.hidden.Load() }

// recheck checks the connection anew if err is an error that the server returned for the guard: the server
// is another incarnation, or one that hides it, or could not evaluate the guard. It returns an error
// after which the write is sent again. It returns other errors unchanged.
func (e *engine) recheck(ctx context.Context, conn *pgx.Conn, err error) error {
	var guard guardError
	var server *pgconn.PgError
	if !errors.As(err, &guard) || !errors.As(guard, &server) {
		return err
	}
	if err := e.checkConn(ctx, conn); err != nil {
		return notSent{err}
	}
	return notSent{errAnotherIncarnation}
}
