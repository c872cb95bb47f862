package peers

import (
	"context"
	"crypto/rand"
	"errors"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tapestore/tapestore/bench"
)

// A lease row is granted for handTTL, or for briefTTL where a holder is paused.
const (
	handTTL  = 30 * time.Second
	briefTTL = time.Second
)

// advisoryLock is a contest for session-level advisory locks. A connection of its own holds the
// lock and the event is written through the pool, as in programs whose lock guards more than one
// statement. With try, a contender polls for the lock instead of waiting in its queue.
func (db *database) advisoryLock(try bool) func(context.Context, int, int) (bench.Contest, error) {
	return func(ctx context.Context, contenders, leases int) (bench.Contest, error) {
		e := db.newEvents()
		c := &contest{leases: leases, committed: e.count}
		c.acquire = func(ctx context.Context, contender, lease int, _ bool) (*holding, error) {
			session, err := db.sessions.Acquire(ctx)
			if err != nil {
				return nil, err
			}
			key := e.id<<16 | int64(lease)
			h := &holding{
				write: func(ctx context.Context) error { return e.insert(ctx, db.pool, lease) },
				release: func(ctx context.Context) error {
					defer session.Release()
					var held bool
					err := session.QueryRow(ctx, "SELECT pg_advisory_unlock($1)", key).Scan(&held)
					if err == nil && !held {
						err = errors.New("the session does not hold the lock")
					}
					return err
				},
				pause:   func(ctx context.Context) error { return db.terminate(ctx, session.Conn()) },
				abandon: func() { discard(session) },
			}
			if try {
				err = h.poll(ctx, func(ctx context.Context) (granted bool, err error) {
					err = session.QueryRow(ctx, "SELECT pg_try_advisory_lock($1)", key).Scan(&granted)
					return granted, err
				})
			} else {
				h.attempts = 1
				_, err = session.Exec(ctx, "SELECT pg_advisory_lock($1)", key)
			}
			if err != nil {
				// A cancelled request may have taken the lock.
				discard(session)
				return h, err
			}
			return h, nil
		}
		return c, nil
	}
}

// discard closes a connection, and with it its session on the server.
func discard(conn *pgxpool.Conn) {
	conn.Conn().Close(context.Background())
	conn.Release()
}

// rowLock is a contest for rows that a transaction locks while it writes.
func (db *database) rowLock(ctx context.Context, contenders, leases int) (bench.Contest, error) {
	e := db.newEvents()
	c := &contest{leases: leases, committed: e.count}
	c.acquire = func(ctx context.Context, contender, lease int, _ bool) (*holding, error) {
		tx, err := db.pool.Begin(ctx)
		if err != nil {
			return nil, err
		}
		if _, err := tx.Exec(ctx, "SELECT FROM lock_row WHERE contest = $1 AND lease = $2 FOR UPDATE", e.id, lease); err != nil {
			tx.Rollback(context.WithoutCancel(ctx))
			return &holding{attempts: 1}, err
		}
		return &holding{
			attempts: 1,
			write:    func(ctx context.Context) error { return e.insert(ctx, tx, lease) },
			release: func(ctx context.Context) error {
				if err := tx.Commit(ctx); err != nil {
					tx.Rollback(ctx)
					return err
				}
				return nil
			},
			pause: func(ctx context.Context) error { return db.terminate(ctx, tx.Conn()) },
			// The event is stored when the transaction commits.
			wake: func(ctx context.Context) error {
				if err := e.insert(ctx, tx, lease); err != nil {
					return err
				}
				return tx.Commit(ctx)
			},
			abandon: func() { tx.Rollback(context.Background()) },
		}, nil
	}
	return c, e.rows(ctx, "lock_row", leases+1)
}

// leaseRow is a contest for rows with an owner and an expiry time, as people write them by hand:
// the row changes hands by compare-and-swap on the server's clock, and the event is written
// separately without a condition.
func (db *database) leaseRow(ctx context.Context, contenders, leases int) (bench.Contest, error) {
	e := db.newEvents()
	c := &contest{leases: leases, ttl: briefTTL, committed: e.count}
	c.acquire = func(ctx context.Context, contender, lease int, brief bool) (*holding, error) {
		owner, ttl := rand.Text(), handTTL
		if brief {
			ttl = briefTTL
		}
		h := &holding{
			write: func(ctx context.Context) error { return e.insert(ctx, db.pool, lease) },
			release: func(ctx context.Context) error {
				const release = "UPDATE lease_row SET owner = NULL WHERE contest = $1 AND lease = $2 AND owner = $3"
				done, err := db.pool.Exec(ctx, release, e.id, lease, owner)
				if err == nil && done.RowsAffected() == 0 {
					err = errors.New("the lease was lost")
				}
				return err
			},
			pause: func(context.Context) error { return nil }, // a turn renews nothing
		}
		const acquire = "UPDATE lease_row SET owner = $3, expires_at = now() + $4" +
			" WHERE contest = $1 AND lease = $2 AND (owner IS NULL OR expires_at < now())"
		return h, h.poll(ctx, func(ctx context.Context) (bool, error) {
			done, err := db.pool.Exec(ctx, acquire, e.id, lease, owner, ttl)
			return done.RowsAffected() == 1, err
		})
	}
	return c, e.rows(ctx, "lease_row", leases+1)
}
