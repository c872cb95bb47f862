package postgres

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// mover moves index entries of runnable runs in the background: those that scans found due although
// the leases are live, because the leases were renewed. A scan skips such an entry, and would do so
// every time until the lease ends. The mover sets the entry to the present expiry of the same row,
// so an entry is never later than its lease, whatever happens to the lease meanwhile (see
// 0005_places.sql).
//
// A handle has at most one mover goroutine. It delays no scan and no writer: it waits for no row
// lock, locks few rows at once, and does not wait for the disk or for standbys. A move only saves
// time. A move that fails, or is lost in a crash of the server, is repeated after another scan.
type mover struct {
	engine *engine
	ctx    context.Context
	cancel context.CancelFunc
	work   sync.WaitGroup

	mu   sync.Mutex
	busy bool // a goroutine is running, or none may be started any more
}

// maxMoves is the number of entries that one statement examines.
const maxMoves = 256

func newMover(e *engine) *mover {
	m := &mover{engine: e}
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

// move starts moving entries, from the first that a scan skipped, unless a mover is running.
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
			return // this role may only read; other handles will move
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		m.busy = m.ctx.Err() != nil
	})
}

// moveAll moves entries until a statement moves none. Later scans report what is left after that.
func (m *mover) moveAll(from, until time.Time) error {
	by := nullTime{Time: until, Valid: !until.IsZero()}
	for {
		conn, done, err := m.engine.connect(m.ctx, forCommit)
		if err != nil {
			return err
		}
		var moved int
		var next nullTime
		err = conn.QueryRow(m.ctx, m.engine.sql(limited(sqlRunnableMove, maxMoves)), from, by).Scan(&moved, &next, nil)
		done()
		if err != nil || moved == 0 || !next.Valid {
			return err
		}
		from = next.Time
	}
}
