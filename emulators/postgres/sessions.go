package postgres

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tapestore/tapestore/emulators/internal/host"
)

// sessions is a pool of idle sessions of the maintenance database: a new session costs the server 5
// ms of CPU.
type sessions struct {
	mu     sync.Mutex
	idle   []*pgx.Conn
	closed bool
}

// take returns a session that answers: an idle one, or a new one.
func (s *sessions) take(ctx context.Context, url string) (*pgx.Conn, error) {
	for {
		s.mu.Lock()
		last := len(s.idle) - 1
		if last < 0 {
			s.mu.Unlock()
			return pgx.Connect(ctx, url)
		}
		c := s.idle[last]
		s.idle = slices.Delete(s.idle, last, last+1)
		s.mu.Unlock()
		if c.Ping(ctx) == nil { // else the server was restarted, or ctx has ended
			return c, nil
		}
		_ = closeConn(ctx, c)
	}
}

// put returns a session to the pool, or closes it if it broke or the pool is closed.
func (s *sessions) put(ctx context.Context, c *pgx.Conn) error {
	s.mu.Lock()
	keep := !s.closed && !c.IsClosed()
	if keep {
		s.idle = append(s.idle, c)
	}
	s.mu.Unlock()
	if keep {
		return nil
	}
	return closeConn(ctx, c)
}

// close closes the idle sessions. Sessions in use are closed by put.
func (s *sessions) close() error {
	s.mu.Lock()
	idle := s.idle
	s.idle, s.closed = nil, true
	s.mu.Unlock()
	var failed []error
	for _, c := range idle {
		failed = append(failed, closeConn(context.Background(), c))
	}
	return errors.Join(failed...)
}

// endSessions ends the sessions in a database and waits up to a second until they are gone.
func endSessions(ctx context.Context, c *pgx.Conn, database string) error {
	const query = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1"
	if _, err := c.Exec(ctx, query, database); err != nil {
		return err
	}
	_, err := awaitNoSessions(ctx, c, database, time.Second)
	return err
}

// awaitNoSessions waits until the last session in a database is gone, for at most patience, and
// returns how many are left. A session outlives its closed connection by a moment.
func awaitNoSessions(ctx context.Context, c *pgx.Conn, database string, patience time.Duration) (open int, err error) {
	ticker := time.NewTicker(host.PollInterval)
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
