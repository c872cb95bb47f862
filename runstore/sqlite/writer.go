package sqlite

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	sqlite3 "modernc.org/sqlite/lib"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/outcome"
)

// writer runs all writes of a handle on one connection. What callers ask for
// while a transaction is running shares the next one, and so one fsync (group
// commit); each keeps its own guards, result and error.
//
// There is no goroutine behind it: whoever finds nobody leading leads, runs what
// is waiting as one transaction, and hands the lead to the first that came since.
// A lone writer so never waits for another goroutine to be woken.
type writer struct {
	store    *core
	maxSize  int // operations in one transaction
	lastSize int // how many the last one had; the leader's

	mu      sync.Mutex
	queue   []*operation
	leading bool // somebody does
	idle    *sync.Cond
	closing bool
}

// operation is one caller's write.
type operation struct {
	ctx context.Context
	// apply checks and writes within the transaction. When it refuses, it has not
	// written anything yet: then its neighbours go on without it. It may run again
	// in another transaction.
	apply func(*tx) error
	bulk  bool // it takes milliseconds, and joins no group that another one leads
	state atomic.Int32
	err   error
	leads bool // it was handed the lead; guarded by the writer's lock
	// turn receives when the operation has finished, or has been handed the lead; nil for one
	// that leads from the beginning.
	turn chan struct{}
}

// The states of an operation. Whoever takes it out of waiting decides: the
// writer, or the caller who gives up.
const (
	opWaiting int32 = iota
	opRunning
	opFinished
	opWithdrawn
)

func newWriter(s *core, maxGroup int) *writer {
	w := &writer{store: s, maxSize: maxGroup}
	w.idle = sync.NewCond(&w.mu)
	return w
}

// do runs apply in a transaction and returns when it is durable. A context that
// ends before the transaction began leaves nothing behind; once it has begun, its
// result is waited for.
func (w *writer) do(ctx context.Context, apply func(*tx) error) error {
	return w.submit(&operation{ctx: ctx, apply: apply})
}

// doBulk is do for work that takes milliseconds. It leads a group when its turn comes, and never
// joins one: an operation that waited for one piece of bulk work does not wait for the next.
func (w *writer) doBulk(ctx context.Context, apply func(*tx) error) error {
	return w.submit(&operation{ctx: ctx, apply: apply, bulk: true})
}

func (w *writer) submit(op *operation) error {
	ctx := op.ctx
	leads, err := w.enqueue(op)
	if err != nil {
		return err
	}
	for !leads {
		select {
		case <-op.turn:
			if op.state.Load() == opFinished {
				return op.err
			}
			leads = true
			continue
		case <-ctx.Done():
		}
		if op.state.CompareAndSwap(opWaiting, opWithdrawn) {
			w.withdraw(op)
			return unavailable(ctx.Err())
		}
		// It is being applied from the caller's own slices, so the caller must not
		// have them back yet. The lock is taken: only the disk is between the
		// transaction and its end, and then the outcome is known.
		<-op.turn
		return op.err
	}
	w.group(op)
	return op.err
}

// enqueue adds an operation. It leads if nobody does.
func (w *writer) enqueue(op *operation) (leads bool, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closing {
		return false, runstore.ErrClosed
	}
	leads, w.leading = !w.leading, true
	if !leads {
		op.turn = make(chan struct{}, 1)
	}
	w.queue = append(w.queue, op)
	return leads, nil
}

// withdraw takes an operation out of the queue whose caller gave up, and hands the
// lead on if it came in that moment.
func (w *writer) withdraw(op *operation) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if i := slices.Index(w.queue, op); i >= 0 { // it may hold megabytes
		w.queue = slices.Delete(w.queue, i, i+1)
	}
	if op.leads {
		w.passLead()
	}
}

// handOn gives the lead to the first operation that still has a caller. The
// caller holds the lock.
func (w *writer) passLead() {
	for _, op := range w.queue {
		if op.state.Load() == opWaiting {
			op.leads = true
			op.turn <- struct{}{}
			return
		}
	}
	w.queue, w.leading = nil, false
	w.idle.Broadcast()
}

// close lets the operations in the queue end and stops the writer.
func (w *writer) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closing = true
	for w.leading {
		w.idle.Wait()
	}
}

// take claims the operations that still have a caller, and adds them to a group up to
// its size. The leader's is the first of all. Bulk work stays in the queue until it leads.
func (w *writer) take(group []*operation) []*operation {
	w.mu.Lock()
	defer w.mu.Unlock()
	var left []*operation
	for i, op := range w.queue {
		if len(group) == w.maxSize {
			left = append(left, w.queue[i:]...)
			break
		}
		if op.bulk && len(group) > 0 {
			left = append(left, op)
			continue
		}
		if op.state.CompareAndSwap(opWaiting, opRunning) {
			group = append(group, op)
		}
	}
	w.queue = left
	return group
}

// group leads once: it runs what is waiting as one transaction, the leader's own
// operation first. The operations are claimed only when the transaction has
// begun, so that a caller can give up while another process holds the lock.
func (w *writer) group(leader *operation) {
	c := w.store.takeWriter()
	tx, err := w.begin(c, leader)
	if errors.Is(err, errAbandoned) {
		leader.state.Store(opWithdrawn)
		leader.err = unavailable(errors.Join(leader.ctx.Err(), err))
		w.release(c)
		return
	}
	group := w.take(nil)
	if err == nil {
		group, err = w.run(tx, group)
	}
	var broken *brokenError
	if errors.As(err, &broken) && len(group) > 1 {
		// The transaction is gone, and all results with it. One operation may be to
		// blame: alone, each gets an answer of its own.
		for _, op := range group {
			op.finish(w.runAlone(c, op))
		}
		w.release(c)
		return
	}
	w.release(c) // first, so that the next group forms while these callers wake up
	for _, op := range group {
		op.finish(err)
	}
}

// release ends a lead.
func (w *writer) release(c *conn) {
	w.store.giveWriter(c)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.passLead()
}

func (w *writer) runAlone(c *conn, op *operation) error {
	tx, err := w.begin(c, op)
	if err != nil {
		return unavailable(err)
	}
	if err := w.apply(tx, []*operation{op}); err != nil {
		return err
	}
	return w.end(tx)
}

// finish gives the caller its result: that of the operation, unless the
// transaction as a whole failed.
func (op *operation) finish(err error) {
	if err != nil {
		op.err = err
	}
	op.state.Store(opFinished)
	if op.turn != nil {
		op.turn <- struct{}{}
	}
}

// errAbandoned: nobody waits for the transaction any more.
var errAbandoned = errors.New("the caller gave up while another process held the write lock")

// begin starts a writing transaction, however long other processes hold the lock,
// as long as the leader waits for it.
func (w *writer) begin(c *conn, leader *operation) (*tx, error) {
	ctx := context.Background() // one for many callers, none of whose contexts ends it
	for wait := newLockBackoff(); ; {
		if err := w.store.damage.refusal(); err != nil {
			return nil, unavailable(err)
		}
		_, err := c.exec(ctx, "BEGIN IMMEDIATE")
		if err == nil {
			return w.store.newTx(ctx, c)
		}
		if !isBusy(err) {
			return nil, unavailable(err)
		}
		if leader.ctx.Err() != nil {
			return nil, errAbandoned
		}
		wait.pause()
	}
}

// brokenError is a failure of the engine in the middle of a transaction, which
// was rolled back.
type brokenError struct{ error }

func (e *brokenError) Unwrap() error { return e.error }

// run applies a group and what joins it meanwhile, commits, and returns the whole group. The
// error is that of all of it.
//
// Callers whose transaction has just ended come back one after the other, and the first of
// them leads. It would sync alone, and the others wait for that. So while a group is smaller
// than the one before it, its leader yields the processor to callers that can run, for as
// long as that brings one. A lone writer never yields.
func (w *writer) run(tx *tx, group []*operation) ([]*operation, error) {
	for applied := 0; applied < len(group); {
		tx.readClock()
		if err := w.apply(tx, group[applied:]); err != nil {
			return group, err
		}
		applied = len(group)
		if group = w.take(group); len(group) == applied && applied < w.lastSize {
			runtime.Gosched()
			group = w.take(group)
		}
	}
	w.lastSize = len(group)
	return group, w.end(tx)
}

// apply applies operations. The error is that of the whole transaction, which is gone then.
func (w *writer) apply(tx *tx, group []*operation) error {
	for _, op := range group {
		op.err = w.store.catchDamage(func() error { return op.apply(tx) })
		if op.err != nil && runstore.KindOf(op.err) == runstore.ErrUnknownOutcome { // none of the contract's
			cause := op.err
			op.err = nil
			if err := w.rollback(tx.c); err != nil {
				return outcome.Unknown(errors.Join(cause, err))
			}
			return &brokenError{unavailable(cause)}
		}
	}
	return nil
}

// end commits. The error is that of all operations.
func (w *writer) end(tx *tx) error {
	if err := w.store.catchDamage(tx.finish); err != nil {
		if rollbackErr := w.rollback(tx.c); rollbackErr != nil {
			return outcome.Unknown(errors.Join(err, rollbackErr))
		}
		return &brokenError{unavailable(err)}
	}
	if err := w.commit(tx.c); err != nil {
		return err
	}
	w.store.committed(tx)
	w.store.trimLog(tx.c)
	return nil
}

// commit makes the transaction durable. BUSY leaves it open, to be tried again.
//
// A full disk is definite: SQLite reports it when the log does not hold a write whole, and
// the frame that makes the transaction a commit is written last. Any other failure leaves
// the outcome unknown. A sync that failed, for one, leaves a whole commit in the log: this
// process does not see it, and the next one recovers it if this one is killed before its
// next commit.
func (w *writer) commit(c *conn) error {
	for wait := newLockBackoff(); ; {
		_, err := c.exec(context.Background(), "COMMIT")
		if err == nil {
			return nil
		}
		if isBusy(err) {
			wait.pause()
			continue
		}
		rollbackErr := w.rollback(c)
		if code(err) == sqlite3.SQLITE_FULL && rollbackErr == nil {
			return &brokenError{unavailable(err)}
		}
		return outcome.Unknown(errors.Join(err, rollbackErr))
	}
}

func (w *writer) rollback(c *conn) error {
	clear(w.store.heads) // what they remember was not committed
	w.store.lastState = cachedState{}
	_, err := c.exec(context.Background(), "ROLLBACK")
	if code(err) == sqlite3.SQLITE_ERROR {
		return nil // SQLite has rolled back by itself, as it does when the disk is full
	}
	return err
}

// patience waits for a lock that another process holds: SQLite has no queue for
// it, and its own busy handler cannot be told that the caller has given up.
type lockBackoff struct{ next time.Duration }

func newLockBackoff() *lockBackoff { return &lockBackoff{next: 50 * time.Microsecond} }

const maxLockPause = 5 * time.Millisecond

func (p *lockBackoff) pause() {
	<-time.After(p.next)
	p.next = min(p.next*2, maxLockPause)
}

// patiently repeats f while another process holds the lock, until ctx ends.
func retryWhileBusy(ctx context.Context, f func() error) error {
	for wait := newLockBackoff(); ; {
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
