package postgres

import (
	"context"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter"
)

// A position is a transaction number, with 14 bits below it for the transaction's events: a slot. A
// sequence would not do, because its numbers are not committed in order. A transaction that is
// still open may commit at a lower position than one that has ended. So the feed has a high-water
// mark: it shows the slots below the oldest transaction that is open and may append:
// https://www.postgresql.org/docs/current/functions-info.html#FUNCTIONS-PG-SNAPSHOT
//
// A transaction gets its number before it waits for the run's row, and may find that a transaction
// with a higher number was first. Its events then continue in the slot of that transaction, so a
// run's events are in order in the feed too. No reader misses them: while the transaction is open,
// no slot above its own number is shown. If the slot overflows, the unique index refuses the write,
// which is retried under a new number.
//
// Each epoch adds a base, so that positions keep growing when another cluster's transaction numbers
// start lower. Positions end at runstore.MaxPosition; writes that would exceed it are refused.
//
// Transaction numbers are shared by the whole cluster. Most transactions that stay open are
// strangers: they write other tables, or other databases. A read of the feed ignores them. It sends
// two statements in one round trip: sql/feed_strangers.sql, and one that shows what is below the
// oldest open transaction that is no stranger. Its invariants:
//
//  1. Every transaction that appends locks the table runs before it has a number, and keeps that
//     lock to its end. None is ever prepared (PREPARE TRANSACTION), which moves its locks one by
//     one.
//  2. feed_strangers takes a snapshot, which lists the open transactions, and then reads the locks.
//     A transaction is a stranger if it is in that list, holds the lock of its own number and holds
//     no lock on runs.
//  3. The second statement takes a snapshot of its own. A stranger that this snapshot lists too was
//     open during the whole read of the locks, and already had its number. So it holds no lock on
//     runs, and never appends.
//  4. The feed never goes backwards. A stranger that one read ignored is a stranger to every later
//     read while it is open; once it has ended, no later snapshot lists it.
//  5. Most reads need no locks: if no committed event is at or above the oldest open transaction of
//     any kind, nothing is hidden, and neither is anything that an earlier read has shown.
//
// A journal needs no feed_strangers: it shows the position of an event once all older transactions
// have ended, strangers included.
//
// Rejected: one statement that reads the locks under the page's own snapshot. A stranger that ends
// between the two could no longer be distinguished from an append, and would hide events that an
// earlier read has shown.

// positions holds the base of the current epoch: the position of the first event of transaction 0,
// if there were one.
type positions struct {
	mu    sync.Mutex
	epoch runstore.Epoch
	base  int64
}

// set sets what the server shows, even if it is a lower epoch than before: that of a store that was
// restored. If another read has shown a higher epoch meanwhile, refreshBase reads it again, and checkBase
// refuses the statements of that epoch.
func (p *positions) set(epoch runstore.Epoch, base int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.epoch, p.base = epoch, base
}

// current returns the base and its epoch.
func (p *positions) current() (runstore.Epoch, int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.epoch, p.base
}

// refreshBase makes sure that the base is at least as new as epoch, the epoch of a token that the
// caller presents. An append under a token of an older epoch than the base's is refused, because a
// new epoch ends all grants; so its position does not matter.
func (e *engine) refreshBase(ctx context.Context, epoch runstore.Epoch) error {
	if known, _ := e.positions.current(); epoch <= known {
		return nil
	}
	return e.readOnce(ctx, func(q *query) error {
		var base int64
		return q.each(sqlPositionBase, nil, []any{&epoch, &base}, func() error {
			e.positions.set(epoch, base)
			return nil
		})
	})
}

// ReadFeed implements adapter.Core. An event is in the feed once every transaction that was
// open when its transaction began, and may append to this store, has ended; see [Store.FeedLag].
func (e *engine) ReadFeed(ctx context.Context, asked runstore.FeedQuery) (events []runstore.FeedEvent, err error) {
	err = e.read(ctx, func(q *query) error {
		var event nullEvent
		var known int64
		var id []byte
		events = nil
		after, sql := asked.After, sqlFeedPage
		if asked.Newest {
			sql = sqlFeedPageNewest
		}
		args := []any{int64(after), int64(runstore.MaxPageBytes)}
		return q.eachPastStrangers(limited(sql, asked.Limit), args, append([]any{&known, &id}, event.targets()...), func() error {
			if int64(after) > known {
				return &runstore.StoreBehindError{Field: "position", Presented: int64(after), Known: known}
			}
			if event.seq.Valid {
				events = append(events, runstore.FeedEvent{Run: runstore.RunID(id), Event: event.event()})
			}
			return nil
		})
	})
	return events, err
}

// eachPastStrangers is each for a statement that is sent together with sql/feed_strangers.sql: one
// round trip and one transaction, in which each statement has a snapshot of its own.
func (q *query) eachPastStrangers(sql string, args, targets []any, f func() error) (err error) {
	var batch pgx.Batch
	before := []string{sqlFeedStrangers}
	if q.engine.opts.Pooled || q.engine.shared {
		before = []string{sqlFeedPlans, sqlFeedStrangers}
	}
	for _, sql := range before {
		batch.Queue(q.engine.sql(sql))
	}
	batch.Queue(q.engine.sql(sql), args...)
	results := q.conn.SendBatch(q.ctx, &batch)
	defer func() {
		if closed := results.Close(); err == nil {
			err = closed
		}
	}()
	for range before {
		if _, err := results.Exec(); err != nil {
			return err
		}
	}
	rows, err := results.Query()
	if err != nil {
		return err
	}
	return scanEach(rows, targets, f)
}

// Lag is how far the feed is behind the journals.
type Lag struct {
	// Events is the number of committed events that the feed does not show yet, at most 10,000.
	Events int
	// Age is the age of the oldest of them.
	Age time.Duration
}

// FeedLag returns how far the feed is behind the journals. A transaction that has a lock on this
// store's table runs, has written something and stays open delays the feed. Alert on the lag, and
// look for the transaction in pg_stat_activity (backend_xid).
func (s *Store) FeedLag(ctx context.Context) (Lag, error) {
	return adapter.Do(ctx, s.Store, "feed lag", "", nil, s.engine.feedLag)
}

func (e *engine) feedLag(ctx context.Context) (lag Lag, err error) {
	err = e.read(ctx, func(q *query) error {
		var age int64
		return q.eachPastStrangers(sqlFeedLag, nil, []any{&lag.Events, &age}, func() error {
			lag.Age = time.Duration(age) * time.Microsecond
			return nil
		})
	})
	return lag, err
}
