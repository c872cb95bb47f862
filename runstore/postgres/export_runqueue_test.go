package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/tapestore/tapestore/runstore"
)

// ErrClass returns the class of an error.
func ErrClass(err error) string {
	return map[errClass]string{classAmbiguous: "ambiguous", classRolledBack: "rolled back", classRetryable: "retryable", classClosed: "closed"}[classify(err)]
}

// NotSent marks an error as one that occurred before anything was sent.
func NotSent(err error) error { return notSent{err} }

// Request is one write in flight.
type Request = request

// The orders of requests that share a round trip.
const (
	OrderExtend  = orderExtend
	OrderEnd     = orderEnd
	OrderAcquire = orderAcquire
)

// NewRequest returns a request that appends events.
func NewRequest(ctx context.Context, id runstore.RunID, place order, events ...runstore.NewEvent) *Request {
	return NewWriteRequest(ctx, id, place, runstore.Writes{Events: events})
}

// NewWriteRequest returns a request that makes writes.
func NewWriteRequest(ctx context.Context, id runstore.RunID, place order, w runstore.Writes) *Request {
	return &request{ctx: ctx, run: id, order: place, write: newWrite(opCommit, w), size: sizeOf(w)}
}

// Events returns what a request appends.
func (r *request) Events() (events []runstore.NewEvent) {
	for i, kind := range r.write.kinds {
		events = append(events, runstore.NewEvent{Kind: string(kind), Data: r.write.payloads[i]})
	}
	return events
}

// Values returns the values of the records that a request puts.
func (r *request) Values() [][]byte { return r.write.values }

// Place returns a request's position within a shared round trip.
func (r *request) Place() order { return r.order }

// Copy returns the copy of a request that is in flight after its caller has left.
func (r *request) Copy() *request {
	own := *r
	return &own
}

// GotConn reports that a request has a connection.
func (r *request) GotConn() { r.setConnected(true) }

// NewHeartbeat returns a renewal.
func NewHeartbeat(ctx context.Context, id runstore.RunID) *Request {
	return &request{ctx: ctx, run: id, ttl: runstore.MinTTL}
}

// RunQueues queues requests by run.
type RunQueues struct{ runQueues }

// NewRunQueues returns queues that send groups by run.
func NewRunQueues(run func(ctx context.Context, group []*Request)) *RunQueues {
	return &RunQueues{runQueues{all: map[runstore.RunID]*runQueue{}, sendGroup: run}}
}

// Send sends a request, alone or in a group.
func (l *RunQueues) Send(r *Request) error { return l.send(r) }

// Waiting returns how many requests of a run wait, and whether one is in flight.
func (l *RunQueues) Waiting(id runstore.RunID) (n int, busy bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	at := l.all[id]
	if at == nil {
		return 0, false
	}
	return len(at.waiting), true
}

// AppendMulti sends batches of events under fences of different runs in one statement.
func AppendMulti(ctx context.Context, s *Store, batches ...runstore.Batch) error {
	var groups []*runGroup
	for _, b := range batches {
		r := commitRequest(b)
		r.epoch, _ = s.engine.positions.current()
		r.ctx, r.nonce, r.timed = ctx, newNonce(), s.engine.timed.has(r)
		groups = append(groups, &runGroup{ctx: ctx, group: []*request{r}})
	}
	s.engine.appendMulti(ctx, groups)
	for _, g := range groups {
		if err := g.group[0].err; err != nil || g.leftOut {
			return errors.Join(err, fmt.Errorf("run %q: left out: %t", g.group[0].run, g.leftOut))
		}
		s.engine.timed.learn(g.group[0])
	}
	return nil
}
