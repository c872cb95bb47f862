package postgres

import (
	"errors"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// maxMoves is the number of entries that one statement examines.
const maxMoves = 256

// moveBehindLeases moves index entries of runnable runs in the background, unless the handle is already moving
// some: entries that a scan found due although the leases are live, because the leases were renewed. A
// scan skips such an entry, and would do so every time until the lease ends. from is the place of the first
// of them, until the bound of the scan.
//
// An entry moves to the present expiry of the same row, so an entry is never later than its lease, even if the
// lease is renewed or ends meanwhile (see 0005_places.sql). Moving delays no scan and no writer: it waits for no
// row lock, locks few rows at once, and does not wait for the disk or for standbys. A move only saves time.
// A move that fails, or is lost in a crash of the server, is repeated after another scan.
func (e *engine) moveBehindLeases(from, until time.Time) {
	if !e.moving.CompareAndSwap(false, true) {
		return
	}
	e.background.Go(func() {
		var server *pgconn.PgError
		if err := e.moveAll(from, until); errors.As(err, &server) && server.Code == "42501" {
			return // this role may only read; other handles will move
		}
		e.moving.Store(false)
	})
}

// moveAll moves entries until a statement moves none. Later scans report what is left after that.
func (e *engine) moveAll(from, until time.Time) error {
	by := nullTime{Time: until, Valid: !until.IsZero()}
	for {
		conn, done, err := e.connect(e.stopped, forCommit)
		if err != nil {
			return err
		}
		var moved int
		var next nullTime
		err = conn.QueryRow(e.stopped, e.sql(limited(sqlRunnableMove, maxMoves)), from, by).Scan(&moved, &next, nil)
		done()
		if err != nil || moved == 0 || !next.Valid {
			return err
		}
		from = next.Time
	}
}
