package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/puddle/v2"
)

// ReservedConns is how many of a pool's connections appends and other commits leave to
// heartbeats, releases and reads.
const ReservedConns = 2

// bulkhead divides a pool's connections, so that writes which wait for the locks of a few
// rows stop no other run's heartbeat and no read. A write holds a slot of its kind while it
// holds a connection. Commits, creations and requests for the lease leave two connections,
// all writes together leave one. Heartbeats and releases take the first of these, for as
// long as a lock may keep them; reads wait for no lock, and so free the second soon.
//
// A pool of two connections has only the first, one of one has neither.
type bulkhead struct{ writes, commits chan struct{} }

func newBulkhead(conns int) bulkhead {
	writes := conns
	if conns > ReservedConns {
		writes--
	}
	return bulkhead{writes: make(chan struct{}, writes), commits: make(chan struct{}, max(writes-1, 1))}
}

// purpose is what a connection is wanted for.
type purpose int

const (
	forRead      purpose = iota
	forHeartbeat         // heartbeats and releases
	forCommit
)

// slots returns what a purpose takes before a connection, in this order.
func (b bulkhead) slots(p purpose) []chan struct{} {
	return [...][]chan struct{}{forRead: nil, forHeartbeat: {b.writes}, forCommit: {b.commits, b.writes}}[p]
}

// connect takes a connection from the pool. The caller calls done when it has read all
// answers. An error means that nothing was sent.
func (s *Store) connect(ctx context.Context, p purpose) (conn *pgxpool.Conn, done func(), err error) {
	slots := s.bulkhead.slots(p)
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
		case <-s.closed:
			err = puddle.ErrClosedPool
		}
		release()
		return nil, nil, notSent{err}
	}
	if conn, err = s.pool.Acquire(ctx); err != nil {
		release()
		return nil, nil, notSent{err}
	}
	stop := s.boundStatement(conn)
	return conn, func() {
		stop()
		s.releaseConn(ctx, conn)
		release()
	}, nil
}

// purposeOf returns what the requests of a round trip are for. One heartbeat or release
// among them is enough: it shall not wait for what its run appends.
func purposeOf(requests []*request) purpose {
	for _, r := range requests {
		if r.heartbeat() || r.write != nil && (r.write.op == opRelease || r.write.op == opRenew) {
			return forHeartbeat
		}
	}
	return forCommit
}

// bounded is for a server that falls silent: no statement takes longer than the
// server lets it, so what does is lost. It costs less than a context of its own; the
// caller's ends the statement as well.
func (s *Store) boundStatement(conn *pgxpool.Conn) (stop func() bool) {
	raw := conn.Conn().PgConn().Conn()
	return time.AfterFunc(s.opts.StatementTimeout+time.Second, func() {
		_ = raw.SetDeadline(longAgo) // a closed connection needs none
	}).Stop
}

// longAgo is a deadline that has passed: it ends the reads and writes under way.
var longAgo = time.Unix(1, 0)

// giveBack returns a connection to the pool. One whose statement was cut short is
// not used again: the request to cancel may still be under way to it.
func (s *Store) releaseConn(ctx context.Context, conn *pgxpool.Conn) {
	if ctx.Err() != nil {
		bound, cancel := context.WithTimeout(context.WithoutCancel(ctx), cancelGrace)
		defer cancel()
		_ = conn.Conn().Close(bound) // it is given up
	}
	conn.Release()
}
