package emulators

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// endSessions ends the sessions in a database and waits, not for long, until they
// are gone.
func endSessions(ctx context.Context, c *pgx.Conn, database string) error {
	const query = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1"
	if _, err := c.Exec(ctx, query, database); err != nil {
		return err
	}
	_, err := awaitNoSessions(ctx, c, database, time.Second)
	return err
}

// awaitNoSessions waits until the last session in a database is gone: that of a
// connection that was closed outlives it by a moment. It tells how many are left
// after the patience.
func awaitNoSessions(ctx context.Context, c *pgx.Conn, database string, patience time.Duration) (open int, err error) {
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	for until := time.Now().Add(patience); ; {
		const query = "SELECT count(*) FROM pg_stat_activity WHERE datname = $1"
		if err := c.QueryRow(ctx, query, database).Scan(&open); err != nil {
			return open, err
		}
		if open == 0 || time.Now().After(until) {
			return open, nil
		}
		select {
		case <-ctx.Done():
			return open, ctx.Err()
		case <-ticker.C:
		}
	}
}
