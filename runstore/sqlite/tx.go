package sqlite

import (
	"context"
	"database/sql/driver"
	"errors"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter/rules"
)

// tx is one write transaction, shared by the operations of a group. All of them take place at one
// instant of the store clock.
type tx struct {
	ctx   context.Context
	c     *conn
	store *database
	now   time.Time
	at    driver.Value // now in microseconds, the form that rows store

	state
	changed bool    // something changed that no event's position records
	renewed bool    // a lease was renewed, which is not counted as a change
	doubt   bool    // the log may hold a commit in doubt, see watermark
	begun   int64   // conn.changes at the beginning of the transaction
	anchor  *anchor // the anchor of the store clock, if this transaction sets it
}

// state is the state of the store that every transaction needs.
type state struct {
	epoch   runstore.Epoch
	next    runstore.Position // of the next event
	changes int64             // the store's counter of changes
}

// cachedState is the state after this connection's last transaction, with SQLite's data version at
// that time. A transaction that begins at the same version need not read the state, because no
// other connection has committed in between. beginWrite clears known otherwise.
type cachedState struct {
	known   bool
	version uint32
	state
}

// beginWrite begins a write transaction and locks the watermark. If another process writes at the
// moment, it returns an error for which isBusy is true: at once, or, if only the watermark is locked,
// when ctx ends. The caller tries again as long as it waits.
func (db *database) beginWrite(ctx context.Context, c *conn) error {
	if _, err := c.exec(context.Background(), "BEGIN IMMEDIATE"); err != nil { // without ctx, see snapshot
		return err
	}
	if version, err := c.dataVersion(); err != nil || version != db.lastState.version {
		db.lastState.known = false
	}
	for wait := newLockBackoff(); !db.watermark.lock(db.lastState.known); wait.pause() {
		if ctx.Err() != nil {
			_, err := c.exec(context.Background(), "ROLLBACK")
			return errors.Join(errLocked, err)
		}
	}
	return nil
}

func (db *database) newTx(ctx context.Context, c *conn) (*tx, error) {
	t := &tx{ctx: ctx, c: c, store: db, doubt: db.watermark.inDoubt()}
	if err := db.catchDamage(t.start); err != nil {
		_, _ = c.exec(ctx, "ROLLBACK") // the first error is the one to report
		db.watermark.unlock()
		return nil, err
	}
	return t, nil
}

// start determines the state in which the transaction begins.
func (tx *tx) start() error {
	clock := tx.store.clock
	if last := tx.store.lastState; last.known {
		tx.state = last.state
	} else {
		if err := refuseNewer(tx.ctx, tx.c); err != nil {
			return err
		}
		row, err := tx.c.one(tx.ctx, sqlStateRead)
		if err != nil {
			return err
		}
		tx.next, tx.epoch = runstore.Position(row[0].(int64))+1, runstore.Epoch(row[1].(int64))
		tx.changes = row[4].(int64)
		clock.refresh(row[2].(int64), row[3].(int64))
	}
	tx.begun = tx.changes + int64(tx.next) - 1
	now, behind := clock.now()
	if behind {
		a, at, err := clock.load(tx.ctx, tx.c)
		if err != nil {
			return err
		}
		if at.After(now) {
			now = at
		}
		tx.anchor = &a
	}
	tx.setNow(now)
	return nil
}

// readClock advances the transaction's time, for operations that joined the transaction after newTx
// had read the clock: a strict lease that expired before an operation began must not be live for
// that operation.
func (tx *tx) readClock() {
	if now, _ := tx.store.clock.now(); now.After(tx.now) {
		tx.setNow(now)
	}
}

func (tx *tx) setNow(now time.Time) {
	tx.now = now
	tx.at = now.UnixMicro()
}

// finish counts the transaction's changes, as the last step before the commit.
func (tx *tx) finish() error {
	if !tx.changed {
		return nil
	}
	row, err := tx.c.one(tx.ctx, sqlChangesCount, tx.now.UnixMicro())
	if err != nil {
		return err
	}
	tx.changes = row[0].(int64)
	return nil
}

// made returns how many changes of the store the transaction made, once it is finished.
func (tx *tx) made() int64 { return tx.changes + int64(tx.next) - 1 - tx.begun }

// applies reports whether the transaction, once it is finished, applies a write of a caller. Others may set the
// clock or delete what a purge has left, and it does no harm if a commit of these is recovered late.
func (tx *tx) applies() bool { return tx.renewed || tx.made() > 0 }

// committed updates the caches and the watermark after a commit, and wakes the callers of Wakeups.
func (db *database) committed(tx *tx) {
	if tx.anchor != nil {
		db.clock.set(*tx.anchor)
	}
	version, err := tx.c.dataVersion()
	db.lastState = cachedState{err == nil, version, tx.state}
	if tx.made() == 0 {
		if tx.applies() {
			db.watermark.settle()
		}
		db.watermark.unlock()
		return
	}
	db.progress.Changes, db.progress.Position = tx.changes, tx.next-1
	db.watermark.record(db.progress)
	db.waiters.Wake(runstore.OnWrite, anyRun)
}

var errReadOnly = &runstore.InputError{Kind: runstore.ErrUnsupported, Field: "write", Problem: "the store was opened read-only"}

// write runs f as one operation of the next group. f may run again in another transaction. write
// reads the result of f only once f can no longer run, so a caller that has given up never shares
// memory with f.
func write[T any](ctx context.Context, e *engine, f func(*tx) (T, error)) (result T, err error) {
	if e.opts.ReadOnly {
		return result, errReadOnly
	}
	err = e.writer.do(ctx, func(tx *tx) (err error) {
		result, err = f(tx)
		return err
	})
	return result, err
}

// positions reserves the positions of n events and returns the first. They are assigned in commit
// order, because there is one write transaction at a time.
func (tx *tx) positions(n int) runstore.Position {
	first := tx.next
	tx.next += runstore.Position(n)
	return first
}

// row is a run as read from its row.
type row struct {
	rules.Head
	no     int64
	purged bool
	floor  runstore.Version
}

// headWidth is the number of columns that scanHead reads.
const headWidth = 24

func scanHead(v []driver.Value) row {
	r := row{no: v[0].(int64), purged: v[2].(int64) != 0, floor: runstore.Version(v[7].(int64))}
	r.ID = runstore.RunID(bytesOf(v[1]))
	r.Status = runstore.Status(v[3].(int64))
	r.CreatedAt = runstore.FromMicros(v[4].(int64))
	if v[5] != nil {
		r.RunnableAt = runstore.FromMicros(v[5].(int64))
	}
	r.LastSeq = runstore.Seq(v[6].(int64))
	r.Unlisted = v[23].(int64) != 0
	r.Token = runstore.Token(v[8].(int64))
	r.Grant = text[runstore.GrantID](v[9])
	r.State = rules.GrantState(v[10].(int64))
	r.ExpiresAt = runstore.FromMicros(v[14].(int64))
	if r.State == rules.Current {
		r.Holder = runstore.Holder{
			Owner: runstore.Owner(bytesOf(v[11])), Reactor: runstore.Reactor(bytesOf(v[12])),
			Token: r.Token, ExpiresAt: r.ExpiresAt, Strict: v[13].(int64) != 0,
			Preempted: runstore.Preempted{From: runstore.Owner(bytesOf(v[15])), Reason: string(bytesOf(v[16]))},
			TTL:       micros(v[17]), GrantedAt: runstore.FromMicros(v[18].(int64)), RenewedAt: runstore.FromMicros(v[19].(int64)),
			MaxStall: micros(v[20]), ProgressedAt: runstore.FromMicros(v[21].(int64)),
			Former: runstore.GrantEnd(v[22].(int64)),
		}
	} else if r.State != rules.None { // see schema/0007_terms.sql
		r.Last = runstore.Term{
			Owner: runstore.Owner(bytesOf(v[11])), Reactor: runstore.Reactor(bytesOf(v[12])),
			GrantedAt: runstore.FromMicros(v[18].(int64)), EndedAt: runstore.FromMicros(v[19].(int64)),
		}
	}
	return r
}

// micros returns the duration that is stored in microseconds.
func micros(v driver.Value) time.Duration { return time.Duration(v.(int64)) * time.Microsecond }

// load reads a run's row; nil when there has never been a run of that id.
func (tx *tx) load(id runstore.RunID) (*row, error) {
	v, err := tx.c.one(tx.ctx, sqlRunHead, blob(id))
	if err != nil || v == nil {
		return nil, err
	}
	r := scanHead(v)
	r.Epoch = tx.epoch
	return &r, nil
}

// find is load for a run that exists and is not purged.
func (tx *tx) find(id runstore.RunID) (*row, error) {
	r, err := tx.load(id)
	if err == nil && (r == nil || r.purged) {
		return nil, runstore.ErrNotFound
	}
	return r, err
}

// save writes a run's row back, except the columns that appending maintains. It sets the run's
// entry in the index of runnable runs to the present expiry of the grant.
func (tx *tx) save(r *row) error {
	var runnable, place driver.Value
	if !r.RunnableAt.IsZero() {
		runnable = r.RunnableAt.UnixMicro()
		if !r.purged {
			place = r.RunnableFrom().UnixMicro()
		}
	}
	h := r.Holder
	if r.State != rules.Current {
		h = runstore.Holder{Owner: r.Last.Owner, Reactor: r.Last.Reactor, GrantedAt: r.Last.GrantedAt, RenewedAt: r.Last.EndedAt}
	}
	_, err := tx.c.exec(tx.ctx, sqlRunUpdate, flag(r.purged), int64(r.Status), r.CreatedAt.UnixMicro(), runnable, place, int64(r.LastSeq),
		int64(r.floor), int64(r.Token), string(r.Grant), int64(r.State), blob(h.Owner), blob(h.Reactor), flag(h.Strict),
		runstore.Micros(r.ExpiresAt), blob(h.Preempted.From), blob(h.Preempted.Reason),
		h.TTL.Microseconds(), runstore.Micros(h.GrantedAt), runstore.Micros(h.RenewedAt), h.MaxStall.Microseconds(),
		runstore.Micros(h.ProgressedAt), int64(h.Former), flag(r.Unlisted), r.no)
	return err
}
