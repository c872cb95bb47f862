package postgres

import (
	"context"
	"sync"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// A position is made of the number of a transaction, with 14 bits below it for the
// events: a slot. A sequence would not do, because its numbers are not committed in
// order. A transaction that is still open may commit below one that has ended, so the
// feed shows the slots below the oldest that is open:
// https://www.postgresql.org/docs/current/functions-info.html#FUNCTIONS-PG-SNAPSHOT
//
// A transaction gets its number before it waits for the run's row, and may find that
// one with a higher number was first. Its events then go on in that one's slot, so a
// run's events are in order in the feed too. They miss no reader: while it is open no
// slot above its own number is shown. Should the slot overflow, the unique index
// refuses the write, and it is repeated under a new number.
//
// Each epoch has a base that is added, so that positions go on when the numbers of
// transactions begin anew in another cluster.

// bound is the position below which every event is seen: all transactions below
// the oldest that still runs have ended. Events of an earlier epoch have ended too.
const bound = `(SELECT position_base + (greatest(pg_snapshot_xmin(pg_current_snapshot())::text::bigint - xid_base, 0) << 14) AS safe,
	greatest(position_base, last_purged, (SELECT max(position) FROM tapestore.events)) AS known FROM tapestore.store)`

// positions is where the positions of the current epoch begin: the one of the first
// event of a transaction with number 0, if there were one.
type positions struct {
	mu    sync.Mutex
	epoch runstore.Epoch
	base  int64
}

func (p *positions) set(epoch runstore.Epoch, base int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if epoch >= p.epoch {
		p.epoch, p.base = epoch, base
	}
}

// current returns the base, and the epoch that it is of.
func (p *positions) current() (runstore.Epoch, int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.epoch, p.base
}

const (
	positionBase = `position_base - (xid_base << 14)`
	selectBase   = `SELECT epoch, ` + positionBase + ` FROM tapestore.store`
)

// reach makes sure that the base is not older than a token which was minted in
// epoch. An append under a token of an older epoch than the base's is refused, for a
// new epoch ends all grants, so it does not matter which position it would have had.
func (s *Store) reach(ctx context.Context, epoch runstore.Epoch) error {
	if known, _ := s.positions.current(); epoch <= known {
		return nil
	}
	return s.once(ctx, func(q *query) error {
		var base int64
		return q.each(selectBase, nil, []any{&epoch, &base}, func() error {
			s.positions.set(epoch, base)
			return nil
		})
	})
}

const selectFeed = `SELECT b.known, page.id, page.seq, page.position, page.token, page.time, page.kind, page.owner, page.data
		FROM ` + bound + ` b LEFT JOIN LATERAL (
			SELECT *, sum(octet_length(e.data)) OVER (ORDER BY e.position) - octet_length(e.data) AS before
			FROM (
				SELECT events.*, runs.id FROM tapestore.events JOIN tapestore.runs ON runs.no = events.run
				WHERE position > $1::bigint AND position < b.safe ORDER BY position LIMIT {limit}
			) e
		) page ON before <= $2::bigint ORDER BY page.position`

// ReadFeed implements runstore.RunStore. Events are there once every transaction
// that was open when theirs began has ended; see [Store.FeedLag].
func (s *Store) ReadFeed(ctx context.Context, after runstore.Position, limit int) (events []runstore.FeedEvent, err error) {
	err = s.read(ctx, "read feed", "", runstore.CheckFeed(after, limit), func(q *query) error {
		var e nullEvent
		var known int64
		var id []byte
		events = nil
		args := []any{int64(after), int64(runstore.MaxPageBytes)}
		return q.each(limited(selectFeed, limit), args, append([]any{&known, &id}, e.targets()...), func() error {
			if int64(after) > known {
				return &runstore.StoreBehindError{Field: "position", Presented: int64(after), Known: known}
			}
			if e.seq.Valid {
				events = append(events, runstore.FeedEvent{Run: runstore.RunID(id), Event: e.event()})
			}
			return nil
		})
	})
	return events, err
}

// Lag tells how far the feed is behind the journals.
type Lag struct {
	// Events is how many committed events the feed does not show yet, up to 10,000.
	Events int
	// Age is how old the oldest of them is.
	Age time.Duration
}

const selectLag = `SELECT count(*), coalesce(extract(epoch FROM clock_timestamp() - min(time)) * 1000000, 0)::bigint
	FROM (SELECT time FROM tapestore.events, ` + bound + ` b WHERE position >= b.safe ORDER BY position LIMIT 10000) late`

// FeedLag tells how far the feed is behind. Any transaction of the whole cluster
// that wrote something and stays open holds it up, also one of another database: so
// alert on it, and look for the culprit in pg_stat_activity (backend_xid).
func (s *Store) FeedLag(ctx context.Context) (lag Lag, err error) {
	err = s.read(ctx, "feed lag", "", nil, func(q *query) error {
		var age int64
		return q.each(selectLag, nil, []any{&lag.Events, &age}, func() error {
			lag.Age = time.Duration(age) * time.Microsecond
			return nil
		})
	})
	return lag, err
}
