package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/puddle/v2"
)

// ReservedConns is how many of a pool's connections appends and other commits leave free for
// heartbeats, releases and reads.
const ReservedConns = 2

// bulkhead divides a pool's connections, so that writes that wait for the locks of a few rows delay
// no heartbeat of another run and no read. A write holds a slot of its kind while it holds a
// connection. Commits, creations and acquires leave two connections free; all writes together leave
// one. Heartbeats and releases may use the first of these, for as long as a lock delays them. Reads
// wait for no lock, so a read frees the second soon.
//
// A pool of two connections reserves only the first; a pool of one reserves none.
type bulkhead struct{ writes, commits chan struct{} }

func newBulkhead(conns int) bulkhead {
	writes := conns
	if conns > ReservedConns {
		writes--
	}
	return bulkhead{writes: make(chan struct{}, writes), commits: make(chan struct{}, max(writes-1, 1))}
}

// purpose is what a connection is used for.
type purpose int

const (
	forRead      purpose = iota
	forHeartbeat         // heartbeats and releases
	forCommit
)

// slots returns the slots that a purpose takes before a connection, in this order.
func (b bulkhead) slots(p purpose) []chan struct{} {
	return [...][]chan struct{}{forRead: nil, forHeartbeat: {b.writes}, forCommit: {b.commits, b.writes}}[p]
}

// connect takes a connection from the pool. The caller must call done after it has read all
// results. An error means that nothing was sent.
func (e *engine) connect(ctx context.Context, p purpose) (conn *pgxpool.Conn, done func(), err error) {
	slots := e.bulkhead.slots(p)
	taken := 0
	release := func() {
		for _, slot := range slots[:taken] {
			<-slot
		}
	}
	for _, slot := range slots {
		select {
		case slot <- struct{}{}:
			taken++
			continue
		case <-ctx.Done():
			err = ctx.Err()
		case <-e.stopped.Done():
			err = puddle.ErrClosedPool
		}
		release()
		return nil, nil, notSent{err}
	}
	if conn, err = e.acquire(ctx); err != nil {
		release()
		return nil, nil, notSent{err}
	}
	if c, ok := conn.Conn().PgConn().CustomData()[cancellerKey].(*canceller); ok {
		if c.grace = cancelGrace; p == forHeartbeat {
			c.grace = heartbeatGrace
		}
	}
	stop := e.boundStatement(conn)
	return conn, func() {
		stop()
		e.releaseConn(ctx, conn)
		release()
	}, nil
}

// purposeOf returns the purpose of a round trip. One heartbeat or release among the requests makes
// it forHeartbeat, so that the heartbeat does not wait behind appends of its own run.
func purposeOf(requests []*request) purpose {
	for _, r := range requests {
		if r.heartbeat() || r.write != nil && (r.write.op == opRelease || r.write.op == opRenew) {
			return forHeartbeat
		}
	}
	return forCommit
}

// boundStatement closes off a connection if the server falls silent: after StatementTimeout and 1
// s, when the server must have ended the statement if the session has that timeout, reads and writes fail
// and the outcome is ambiguous. It is cheaper than another context; the caller's context ends the statement too.
func (e *engine) boundStatement(conn *pgxpool.Conn) (stop func() bool) {
	raw := conn.Conn().PgConn().Conn()
	bound := time.AfterFunc(e.opts.StatementTimeout+time.Second, func() {
		_ = raw.SetDeadline(longAgo) // a closed connection needs none
	})
	conn.Conn().PgConn().CustomData()[boundKey] = bound
	return bound.Stop
}

const boundKey = "tapestore.bound"

// boundAgain makes the time of boundStatement begin anew, for the next statement of a connection.
func (e *engine) boundAgain(conn *pgx.Conn) {
	if bound, ok := conn.PgConn().CustomData()[boundKey].(*time.Timer); ok {
		bound.Reset(e.opts.StatementTimeout + time.Second)
	}
}

// unbindStatement lifts the bound of boundStatement for a statement that may take longer.
func unbindStatement(conn *pgx.Conn) {
	if bound, ok := conn.PgConn().CustomData()[boundKey].(*time.Timer); ok {
		bound.Stop()
	}
}

// longAgo is a deadline in the past. Setting it ends the reads and writes in flight.
var longAgo = time.Unix(1, 0)

// releaseConn returns a connection to the pool, or closes it if a cancel request may still be in
// flight.
func (e *engine) releaseConn(ctx context.Context, conn *pgxpool.Conn) {
	if mayCancelNext(ctx, conn.Conn().PgConn()) {
		bound, cancel := context.WithTimeout(context.WithoutCancel(ctx), cancelGrace)
		defer cancel()
		_ = conn.Conn().Close(bound) // an error changes nothing
	}
	conn.Release()
}
