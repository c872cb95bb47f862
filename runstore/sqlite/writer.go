package sqlite

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// writer runs all writes of a handle on one connection. What callers ask for
// while a transaction is running shares the next one, and so one fsync (group
// commit); each keeps its own guards, result and error.
type writer struct {
	store *Store
	max   int // operations in one transaction

	mu      sync.Mutex
	queue   []*operation
	closing bool
	wake    chan struct{} // holds a value while the queue may not be empty
	done    chan struct{} // closed when the writer has ended
}

// operation is one caller's write.
type operation struct {
	// apply checks and writes within the transaction. When it refuses, it has not
	// written anything yet: then its neighbours go on without it. It may run again
	// in another transaction.
	apply func(*tx) error
	state atomic.Int32
	err   error
	done  chan struct{}
}

// The states of an operation. Whoever takes it out of waiting decides: the
// writer, or the caller who gives up.
const (
	waiting int32 = iota
	running
	withdrawn
)

func newWriter(s *Store, maxGroup int) *writer {
	w := &writer{store: s, max: maxGroup, wake: make(chan struct{}, 1), done: make(chan struct{})}
	go w.loop()
	return w
}

// do runs apply in a transaction and returns when it is durable. A context that
// ends before the transaction began leaves nothing behind; one that ends while it
// is running leaves its outcome unknown.
func (w *writer) do(ctx context.Context, apply func(*tx) error) error {
	if err := ctx.Err(); err != nil {
		return unavailable(err)
	}
	op := &operation{apply: apply, done: make(chan struct{})}
	w.mu.Lock()
	if w.closing {
		w.mu.Unlock()
		return runstore.ErrClosed
	}
	w.queue = append(w.queue, op)
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default: // it is awake already
	}
	select {
	case <-op.done:
		return op.err
	case <-ctx.Done():
	}
	if op.state.CompareAndSwap(waiting, withdrawn) {
		return unavailable(ctx.Err())
	}
	select {
	case <-op.done: // both happened at once: the result is known after all
		return op.err
	default:
		return unknown(ctx.Err())
	}
}

// close lets the operations in the queue end and stops the writer.
func (w *writer) close() {
	w.mu.Lock()
	w.closing = true
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default:
	}
	<-w.done
}

func (w *writer) loop() {
	defer close(w.done)
	for {
		w.mu.Lock()
		empty, closing := len(w.queue) == 0, w.closing
		w.mu.Unlock()
		switch {
		case !empty:
			w.group()
		case closing:
			return
		default:
			<-w.wake
		}
	}
}

// take claims the operations that still have a caller, up to the group's size.
func (w *writer) take() []*operation {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := min(len(w.queue), w.max)
	group := make([]*operation, 0, n)
	for _, op := range w.queue[:n] {
		if op.state.CompareAndSwap(waiting, running) {
			group = append(group, op)
		}
	}
	w.queue = append(w.queue[:0:0], w.queue[n:]...)
	return group
}

// abandoned reports whether every caller in the queue has given up, so that there
// is no reason to wait for the lock any more.
func (w *writer) abandoned() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, op := range w.queue {
		if op.state.Load() == waiting {
			return false
		}
	}
	w.queue = nil
	return true
}

// group runs what is waiting as one transaction. The operations are claimed only
// when the transaction has begun, so that a caller can give up while another
// process holds the lock.
func (w *writer) group() {
	c := w.store.takeWriter()
	defer w.store.giveWriter(c)
	tx, err := w.begin(c)
	group := w.take()
	if err == nil {
		err = w.run(tx, group)
	}
	var broken *brokenError
	if errors.As(err, &broken) && len(group) > 1 {
		// The transaction is gone, and all results with it. One operation may be to
		// blame: alone, each gets an answer of its own.
		for _, op := range group {
			w.alone(c, op)
		}
		return
	}
	for _, op := range group {
		op.finish(err)
	}
}

func (w *writer) alone(c *conn, op *operation) {
	tx, err := w.begin(c)
	if err == nil {
		err = w.run(tx, []*operation{op})
	}
	op.finish(err)
}

// finish gives the caller its result: that of the operation, unless the
// transaction as a whole failed.
func (op *operation) finish(err error) {
	if err != nil {
		op.err = err
	}
	close(op.done)
}

// begin starts a writing transaction, however long other processes hold the lock,
// as long as somebody waits for it.
func (w *writer) begin(c *conn) (*tx, error) {
	ctx := context.Background() // one for many callers, none of whose contexts ends it
	for wait := newPatience(); ; {
		_, err := c.exec(ctx, "BEGIN IMMEDIATE")
		if err == nil {
			return w.store.newTx(ctx, c)
		}
		if !isBusy(err) {
			return nil, unavailable(err)
		}
		if w.abandoned() {
			return nil, unavailable(err)
		}
		wait.pause()
	}
}

// brokenError is a failure of the engine in the middle of a transaction, which
// was rolled back.
type brokenError struct{ error }

func (e *brokenError) Unwrap() error { return e.error }

// run applies the operations and commits. The error is that of all of them.
func (w *writer) run(tx *tx, group []*operation) error {
	for _, op := range group {
		op.err = op.apply(tx)
		if op.err != nil && runstore.KindOf(op.err) == runstore.ErrUnknownOutcome { // none of the contract's
			cause := op.err
			op.err = nil
			if err := w.rollback(tx.c); err != nil {
				return unknown(errors.Join(cause, err))
			}
			return &brokenError{unavailable(cause)}
		}
	}
	if err := tx.finish(); err != nil {
		if rollbackErr := w.rollback(tx.c); rollbackErr != nil {
			return unknown(errors.Join(err, rollbackErr))
		}
		return &brokenError{unavailable(err)}
	}
	if err := w.commit(tx.c); err != nil {
		return err
	}
	w.store.committed(tx)
	return nil
}

// commit makes the transaction durable. BUSY leaves it open, to be tried again;
// any other failure may come before or after the point of no return.
func (w *writer) commit(c *conn) error {
	for wait := newPatience(); ; {
		_, err := c.exec(context.Background(), "COMMIT")
		if err == nil {
			return nil
		}
		if isBusy(err) {
			wait.pause()
			continue
		}
		_ = w.rollback(c) // it may have ended by itself
		return unknown(err)
	}
}

func (w *writer) rollback(c *conn) error {
	_, err := c.exec(context.Background(), "ROLLBACK")
	return err
}

// patience waits for a lock that another process holds: SQLite has no queue for
// it, and its own busy handler cannot be told that the caller has given up.
type patience struct{ next time.Duration }

func newPatience() *patience { return &patience{next: 50 * time.Microsecond} }

const longestPause = 5 * time.Millisecond

func (p *patience) pause() {
	<-time.After(p.next)
	p.next = min(p.next*2, longestPause)
}

// patiently repeats f while another process holds the lock, until ctx ends.
func patiently(ctx context.Context, f func() error) error {
	for wait := newPatience(); ; {
		err := f()
		if err == nil || !isBusy(err) {
			return err
		}
		if ctx.Err() != nil {
			return errors.Join(ctx.Err(), err)
		}
		wait.pause()
	}
}
