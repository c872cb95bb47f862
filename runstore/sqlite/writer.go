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
	"github.com/tapestore/tapestore/runstore/adapter/outcome"
)

// writer implements group commit: it runs all writes of a store on one connection, and the writes
// that arrive while a transaction is running share the next transaction and its fsync.
//
// It is not simple because each operation of a group keeps its own guards, result, error and
// context, although the group shares one transaction.
//
//  1. At most one operation leads. It holds the connection, runs a group that begins with its own
//     operation, and then passes the lead to the first operation in the queue.
//  2. The leader claims an operation that waits, or its caller withdraws it. A withdrawn operation
//     is never applied.
//  3. A caller returns only after its operation can no longer be applied: it withdrew while the
//     operation waited, or it waits for the end of the transaction.
//  4. A refused operation has written nothing, so the rest of its group proceeds. When the engine
//     fails in the middle of a group, the transaction is rolled back, and its operations wait
//     again, each for a transaction that it shares with no other.
//
// Outline: submit enqueues an operation and waits; group leads (begin, take, run, release); run
// applies the operations (apply) and commits (end).
//
// A goroutine of its own was rejected: it would have to be woken for every lone write. Here a lone
// writer leads at once. BenchmarkGroupCommit measures the gain over a transaction for each write.
type writer struct {
	store    *database
	maxSize  int // the maximum number of operations in one transaction
	lastSize int // the number of operations in the last transaction; only the leader uses it

	mu      sync.Mutex
	queue   []*operation
	leading bool // an operation leads
}

// operation is one caller's write.
type operation struct {
	ctx context.Context
	// apply checks and writes within the transaction. When it refuses, it has not written anything
	// yet, so the other operations of the group proceed. It may run again in another transaction.
	apply func(*tx) error
	bulk  bool // takes milliseconds, so it joins no group that another operation leads
	sync  bool // its group is synced, also with synchronous=NORMAL; it is bulk, because its leader decides that
	alone bool // its last transaction failed, so it shares the next one with no other; guarded by the writer's lock
	state atomic.Int32
	err   error
	leads atomic.Bool // the lead was passed to it
	// turn receives a value when the operation was put back, when it got the lead, and when it has
	// finished: each at most once. It is nil for an operation that leads from the beginning.
	turn chan struct{}
}

// The states of an operation. The leader moves it from opWaiting to opRunning, or the caller moves
// it from opWaiting to opWithdrawn; whichever is first decides. putBack moves it from opRunning to
// opWaiting again.
const (
	opWaiting int32 = iota
	opRunning
	opFinished
	opWithdrawn
)

// do runs apply in a transaction and returns when the transaction is durable. If ctx ends before
// the transaction begins, nothing is written. Once the transaction has begun, do waits for its
// end. If it was rolled back and the operation waits for another one, do returns.
func (w *writer) do(ctx context.Context, apply func(*tx) error) error {
	return w.submit(&operation{ctx: ctx, apply: apply})
}

// doBulk is do for work that takes milliseconds. The operation leads a group when its turn comes
// and never joins one, so that no operation waits for two pieces of bulk work in a row.
func (w *writer) doBulk(ctx context.Context, apply func(*tx) error) error {
	return w.submit(&operation{ctx: ctx, apply: apply, bulk: true})
}

// doSynced is do for work that a power cut must not lose, with synchronous=NORMAL too.
func (w *writer) doSynced(ctx context.Context, apply func(*tx) error) error {
	return w.submit(&operation{ctx: ctx, apply: apply, bulk: true, sync: true})
}

func (w *writer) submit(op *operation) error {
	for leads := w.enqueue(op); !leads; leads = op.leads.Load() {
		select {
		case <-op.turn:
		case <-op.ctx.Done():
			if op.state.CompareAndSwap(opWaiting, opWithdrawn) {
				w.withdraw(op)
				return unavailable(op.ctx.Err())
			}
			// The leader is applying the operation from the caller's own slices, so the caller must
			// not have them back yet. The write lock is held: only the disk is between the transaction
			// and its end.
			<-op.turn
		}
		if op.state.Load() == opFinished {
			return op.err
		}
	}
	w.group(op)
	return op.err
}

// wake lets the caller of an operation look at it.
func (op *operation) wake() {
	if op.turn != nil {
		op.turn <- struct{}{}
	}
}

// enqueue adds an operation to the queue. leads is true if no other operation leads.
func (w *writer) enqueue(op *operation) (leads bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	leads, w.leading = !w.leading, true
	if !leads {
		op.turn = make(chan struct{}, 3)
	}
	w.queue = append(w.queue, op)
	return leads
}

// withdraw removes an operation whose caller gave up from the queue. If the lead was passed to it
// in that moment, withdraw passes the lead on.
func (w *writer) withdraw(op *operation) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if i := slices.Index(w.queue, op); i >= 0 { // removed, because it may hold megabytes
		w.queue = slices.Delete(w.queue, i, i+1)
	}
	if op.leads.Load() {
		w.passLead()
	}
}

// passLead passes the lead to the first operation whose caller still waits, and removes the operations before
// it, whose callers gave up. The caller of passLead holds the lock.
func (w *writer) passLead() {
	for len(w.queue) > 0 {
		if op := w.queue[0]; op.state.Load() == opWaiting {
			op.leads.Store(true)
			op.wake()
			return
		}
		w.queue = slices.Delete(w.queue, 0, 1)
	}
	w.queue, w.leading = nil, false
}

// take claims queued operations whose callers still wait, and appends them to a group up to its
// maximum size. The leader's operation is the first of the queue. Bulk work stays in the queue until
// it leads, and nothing joins an operation that runs alone.
func (w *writer) take(group []*operation) []*operation {
	w.mu.Lock()
	defer w.mu.Unlock()
	var left []*operation
	for i, op := range w.queue {
		if len(group) == w.maxSize || len(group) > 0 && group[0].alone {
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

// putBack lets the operations of a group wait again, before all others, for a transaction each.
func (w *writer) putBack(group []*operation) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.queue = slices.Concat(group, w.queue)
	for _, op := range group {
		op.alone = true
		op.state.Store(opWaiting)
		op.wake() // its caller may have given up meanwhile
	}
}

// group runs one group as its leader, the leader's own operation first.
func (w *writer) group(leader *operation) {
	c := <-w.store.writers
	group, err := w.transact(c, leader)
	var broken *brokenError
	if errors.As(err, &broken) && len(group) > 1 {
		// The transaction was rolled back, and all its results are void. A single operation may be
		// the cause.
		w.putBack(group)
		group, err = w.transact(c, leader)
	}
	w.release(c) // first, so that the next group forms while these callers wake up
	for _, op := range group {
		op.finish(err)
	}
}

// transact runs one transaction and returns the operations that were in it. The error applies to all
// of them. It claims operations only after the transaction has begun, so that callers can give up
// while another process holds the lock.
func (w *writer) transact(c *conn, leader *operation) ([]*operation, error) {
	if leader.sync && w.store.opts.Synchronous == Normal {
		if err := c.script(context.Background(), "PRAGMA synchronous = FULL"); err != nil {
			return w.take(nil), unavailable(err)
		}
		// An error would leave the store slower, and no less safe.
		defer func() { _ = c.script(context.Background(), "PRAGMA synchronous = NORMAL") }()
	}
	err := w.begin(c, leader)
	if errors.Is(err, errAbandoned) {
		leader.state.Store(opWithdrawn)
		leader.err = unavailable(errors.Join(leader.ctx.Err(), err))
		return nil, nil
	}
	group := w.take(nil)
	if err != nil {
		return group, err
	}
	tx, err := w.store.newTx(context.Background(), c) // it serves many callers, and no single context ends it
	if err != nil {
		return group, unavailable(err)
	}
	return w.run(tx, group)
}

// release returns the connection and passes the lead.
func (w *writer) release(c *conn) {
	w.store.writers <- c
	w.mu.Lock()
	defer w.mu.Unlock()
	w.passLead()
}

// finish delivers the result to the caller: that of the operation, unless the transaction as a
// whole failed.
func (op *operation) finish(err error) {
	if err != nil {
		op.err = err
	}
	op.state.Store(opFinished)
	op.wake()
}

// errAbandoned reports that no caller waits for the transaction any more.
var errAbandoned = errors.New("the caller gave up while another process held the write lock")

// begin starts a write transaction. It waits while other processes hold the lock, for as long as
// the leader's caller waits.
func (w *writer) begin(c *conn, leader *operation) error {
	for wait := newLockBackoff(); ; {
		if err := w.store.damage.refusal(); err != nil {
			return unavailable(err)
		}
		err := w.store.beginWrite(leader.ctx, c)
		if err == nil {
			return nil
		}
		if !isBusy(err) {
			return unavailable(err)
		}
		if leader.ctx.Err() != nil {
			return errAbandoned
		}
		wait.pause()
	}
}

// brokenError is a failure of the engine in the middle of a transaction. The transaction was rolled
// back.
type brokenError struct{ error }

func (e *brokenError) Unwrap() error { return e.error }

// run applies a group and the operations that join it meanwhile, commits, and returns the whole
// group. The error applies to the whole group.
//
// Callers whose transaction has just ended return one after the other, and the first of them leads
// again. Without waiting it would sync alone, and the others would wait for that sync. So while a
// group is smaller than the previous one, its leader yields the processor to other goroutines that
// can run, for as long as that brings another operation. A lone writer never yields.
func (w *writer) run(tx *tx, group []*operation) ([]*operation, error) {
	for applied := 0; applied < len(group); {
		if applied > 0 {
			tx.readClock()
		}
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

// apply applies operations. An error means that the whole transaction was rolled back.
func (w *writer) apply(tx *tx, group []*operation) error {
	for _, op := range group {
		op.err = w.store.catchDamage(func() error { return op.apply(tx) })
		if op.err != nil && runstore.KindOf(op.err) == runstore.ErrUnknownOutcome { // not one of the contract's kinds
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

// end commits the transaction. The error applies to all operations.
func (w *writer) end(tx *tx) error {
	tx.changed = tx.changed || tx.doubt
	if err := w.store.catchDamage(tx.finish); err != nil {
		if rollbackErr := w.rollback(tx.c); rollbackErr != nil {
			return outcome.Unknown(errors.Join(err, rollbackErr))
		}
		return &brokenError{unavailable(err)}
	}
	if err := w.commitCounted(tx); err != nil {
		return err
	}
	w.store.committed(tx)
	w.store.trimLog(tx.c)
	return nil
}

// commitCounted is commit, and counts the changes before a watcher of this process can read them.
func (w *writer) commitCounted(tx *tx) error {
	own := w.store.own
	own.lock <- struct{}{}
	defer func() { <-own.lock }()
	err := w.commit(tx)
	if err == nil {
		own.n += tx.made()
	}
	return err
}

// commit makes the transaction durable.
//
// A full disk is a definite failure of this attempt: SQLite reports it when the log does not hold a write
// completely, and the frame that marks the commit is written last. Any other failure leaves the
// outcome unknown. A failed sync, for example, leaves a complete commit in the log: in general no process
// sees that commit, but if all processes are killed before the next commit, the next opening
// recovers it. A kill within COMMIT leaves the same. So the next transaction of any process changes a
// row even if all its operations are refused (see watermark): its commit overwrites the other one in the log
// before their callers get an answer. A read, and an error before that commit, say nothing about the write in doubt.
//
// commit does not retry after BUSY, which leaves the transaction open. No COMMIT on a database with a
// log waits for a lock. If a write of the log reports BUSY nevertheless, the frames of a second COMMIT
// have checksums that do not continue those in the log, and a recovery drops them and all later ones.
func (w *writer) commit(tx *tx) error {
	if tx.applies() {
		if err := w.store.watermark.begin(); err != nil {
			if rollbackErr := w.rollback(tx.c); rollbackErr != nil {
				return outcome.Unknown(errors.Join(err, rollbackErr))
			}
			return &brokenError{unavailable(err)}
		}
	}
	_, err := tx.c.exec(context.Background(), "COMMIT")
	if err == nil {
		return nil
	}
	if code(err) == sqlite3.SQLITE_FULL && !tx.doubt {
		w.store.watermark.settle()
	}
	rollbackErr := w.rollback(tx.c)
	if code(err) == sqlite3.SQLITE_FULL && rollbackErr == nil {
		return &brokenError{unavailable(err)}
	}
	return outcome.Unknown(errors.Join(err, rollbackErr))
}

func (w *writer) rollback(c *conn) error {
	clear(w.store.heads) // they describe rows that were not committed
	w.store.lastState = cachedState{}
	_, err := c.exec(context.Background(), "ROLLBACK")
	w.store.watermark.unlock()
	if code(err) == sqlite3.SQLITE_ERROR {
		return nil // SQLite has already rolled back, as it does when the disk is full
	}
	return err
}

// lockBackoff is an exponential backoff for a lock that another process holds. It replaces SQLite's
// own busy handler, which cannot be cancelled when the caller gives up; SQLite has no queue for the
// lock either.
type lockBackoff struct{ next time.Duration }

func newLockBackoff() *lockBackoff { return &lockBackoff{next: 50 * time.Microsecond} }

// maxLockPause is how often a waiting process looks: it meets the moment between two transactions of a busy
// one by chance. With 1 ms, a commit took 0.12 s at the 95th percentile while one goroutine of another process
// committed without pause; with 5 ms, 0.65 s (BenchmarkBesideABusyProcess). Looking takes a hundredth of a core.
const maxLockPause = time.Millisecond

func (p *lockBackoff) pause() {
	<-time.After(p.next)
	p.next = min(p.next*2, maxLockPause)
}

// retryWhileBusy retries f while another process holds the lock, until ctx ends.
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
