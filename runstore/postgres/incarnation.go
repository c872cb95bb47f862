package postgres

import (
	"context"
	"errors"
	"slices"

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

// codeDivisionByZero is the SQLSTATE by which the guard fails. No other statement divides.
const codeDivisionByZero = "22012"

// errAnotherIncarnation is the error of a transaction that the guard has refused, or whose positions have
// another base than the connection's server.
var errAnotherIncarnation = errors.New("postgres: the server is another incarnation than before")

// guardError is an error that came in the place of the guard's result. It need not be the guard's: a proxy
// whose server dies after the commit, and before its replies, sends its own error in that place.
type guardError struct{ error }

func (e guardError) Unwrap() error { return e.error }

// guarded reports whether writes need the guard. A server that hides its incarnation has none.
func (e *engine) guarded() bool { return e.opts.Pooled && !e.hidden.Load() }

// recheck checks the connection anew if the guard has failed: the server is another incarnation, or hides it
// from this role now. Then the transaction has changed nothing, and recheck returns an error after which the
// write is sent again. It returns other errors unchanged.
func (e *engine) recheck(ctx context.Context, conn *pgx.Conn, err error) error {
	var guard guardError
	var server *pgconn.PgError
	if !errors.As(err, &guard) || !errors.As(guard, &server) || server.Code != codeDivisionByZero && !incarnationHidden(server) {
		return err
	}
	if severity(server) != "ERROR" { // FATAL is the proxy's
		return err
	}
	if err := e.checkConn(ctx, ctx, conn); err != nil {
		return notSent{err}
	}
	return notSent{errAnotherIncarnation}
}

// checkBase returns an error if a statement has another base of positions than the store: the statement was made
// before its connection, whose check may have found another base, or an earlier epoch than the one of its
// requests.
func (e *engine) checkBase(all []*statement) error {
	epoch, base := e.positions.current()
	for _, st := range all {
		newer := func(r *request) bool { return r.epoch > epoch }
		if st.base != nil && (*st.base != base || slices.ContainsFunc(st.requests, newer)) {
			return notSent{errAnotherIncarnation}
		}
	}
	return nil
}
