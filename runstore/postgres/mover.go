package postgres

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// mover moves the places of runs in the index of runnable runs that scans found due although
// their leases are live, because they were renewed. A scan passes over such a run, and would do
// so every time until the lease ends. It is moved to the present expiry of the same row, so it
// cannot get behind one, whatever happens to the lease meanwhile (see 0005_places.sql).
//
// The moves of a handle are made in the background, by one goroutine at a time, and delay no
// scan and no writer: they wait for no row that is locked, lock few at once, and do not wait for
// the disk or for standbys. Each is a matter of cost alone. One that is not made, or lost with
// the server's last moments, is made after another scan.
type mover struct {
	store  *Store
	ctx    context.Context
	cancel context.CancelFunc
	work   sync.WaitGroup

	mu   sync.Mutex
	busy bool // also after the last move
}

// maxMoves is how many places are moved by one statement.
const maxMoves = 256

// moveRenewed moves what is to be moved of the next entries from a place on. It returns how many
// it moved and where it ended, if there may be more behind that.
//
// $1 the place, $2 the time by which the scan judged leases.
const moveRenewed = `WITH due AS MATERIALIZED (
	SELECT no, place, grant_state = 1 AND expires > coalesce($2::timestamptz, statement_timestamp()) AS live FROM tapestore.runs
	WHERE place >= $1::timestamptz AND place <= coalesce($2::timestamptz, statement_timestamp()) ORDER BY place, created, no LIMIT {limit}
), locked AS (
	SELECT runs.no FROM due JOIN tapestore.runs ON runs.no = due.no AND runs.grant_state = 1
	WHERE live FOR NO KEY UPDATE OF runs SKIP LOCKED
), moved AS (
	UPDATE tapestore.runs SET indexed_expires = expires, place = CASE WHEN place IS NOT NULL THEN greatest(runnable, expires) END FROM locked WHERE runs.no = locked.no RETURNING runs.no
)
SELECT (SELECT count(*) FROM moved), (SELECT max(place) FROM due HAVING count(*) = {limit}), set_config('synchronous_commit', 'off', true)`

func newMover(s *Store) *mover {
	m := &mover{store: s}
	m.ctx, m.cancel = context.WithCancel(context.Background()) // ends with the handle
	return m
}

// close must be called before the pool is closed.
func (m *mover) close() {
	m.mu.Lock()
	m.busy = true // no goroutine is started from here on
	m.mu.Unlock()
	m.cancel()
	m.work.Wait()
}

// move begins to move places, from the first that a scan passed over, unless that is under way.
func (m *mover) move(from, until time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.busy {
		return
	}
	m.busy = true
	m.work.Go(func() {
		var server *pgconn.PgError
		if err := m.moveAll(from, until); errors.As(err, &server) && server.Code == "42501" {
			return // this role may only read: other handles will move
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		m.busy = m.ctx.Err() != nil
	})
}

// moveAll moves places until it comes to a stretch of the index that has none to be moved: what
// is behind that, other scans will tell.
func (m *mover) moveAll(from, until time.Time) error {
	by := nullTime{Time: until, Valid: !until.IsZero()}
	for {
		conn, done, err := m.store.connect(m.ctx, forCommit)
		if err != nil {
			return err
		}
		var moved int
		var next nullTime
		err = conn.QueryRow(m.ctx, m.store.sql(limited(moveRenewed, maxMoves)), from, by).Scan(&moved, &next, nil)
		done()
		if err != nil || moved == 0 || !next.Valid {
			return err
		}
		from = next.Time
	}
}
