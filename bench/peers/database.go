package peers

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tapestore/tapestore/bench/engines"
	postgresemulator "github.com/tapestore/tapestore/emulators/postgres"
)

// database is a database on the store's server that the PostgreSQL peers share. The peers take
// turns, so each has the pools to itself while it is measured.
type database struct {
	// pool executes statements and transactions. It is as large as the store's pool.
	pool *pgxpool.Pool
	// sessions holds the connections that keep session-level locks while the event is written
	// through pool.
	sessions *pgxpool.Pool
	version  string
	drop     func(ctx context.Context) error
	contests atomic.Int64
}

const tables = `
CREATE TABLE event (contest bigint, lease int, seq bigserial PRIMARY KEY, data bytea NOT NULL);
CREATE INDEX ON event (contest);
CREATE TABLE lock_row (contest bigint, lease int, PRIMARY KEY (contest, lease));
CREATE TABLE lease_row (contest bigint, lease int, owner text, expires_at timestamptz, PRIMARY KEY (contest, lease));
`

// openDatabase creates a database on the server, with its pools and tables.
func openDatabase(ctx context.Context, server *postgresemulator.Server) (_ *database, err error) {
	made, err := server.NewDatabase(ctx, "")
	if err != nil {
		return nil, err
	}
	db := &database{drop: made.Drop}
	defer func() {
		if err != nil {
			err = errors.Join(err, db.close())
		}
	}()
	if db.pool, err = openPool(ctx, made.URL); err != nil {
		return nil, err
	}
	if db.sessions, err = openPool(ctx, made.URL); err != nil {
		return nil, err
	}
	if _, err := db.pool.Exec(ctx, tables); err != nil {
		return nil, err
	}
	return db, db.pool.QueryRow(ctx, "SHOW server_version").Scan(&db.version)
}

func openPool(ctx context.Context, url string) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	config.MaxConns = engines.Pool
	config.ConnConfig.Tracer = counter{}
	return pgxpool.NewWithConfig(ctx, config)
}

func (db *database) close() error {
	for _, pool := range []*pgxpool.Pool{db.pool, db.sessions} {
		if pool != nil {
			pool.Close()
		}
	}
	return db.drop(context.Background())
}

// counter counts the requests of a connection. A statement, or a batch of them, is one request.
type counter struct{}

func (counter) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	called(ctx)
	return ctx
}
func (counter) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func (counter) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	called(ctx)
	return ctx
}
func (counter) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}
func (counter) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData)     {}

// execer is a pool, a connection or a transaction.
type execer interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// events is the part of the event table that one contest writes.
type events struct {
	db *database
	id int64 // of the contest
}

func (db *database) newEvents() events { return events{db, db.contests.Add(1)} }

// insert stores one event through e.
func (e events) insert(ctx context.Context, through execer, lease int) error {
	_, err := through.Exec(ctx, "INSERT INTO event (contest, lease, data) VALUES ($1, $2, $3)", e.id, lease, payload)
	return err
}

func (e events) count(ctx context.Context) (n int, err error) {
	err = e.db.pool.QueryRow(ctx, "SELECT count(*) FROM event WHERE contest = $1", e.id).Scan(&n)
	return n, err
}

// rows inserts a row into a table for each of n leases.
func (e events) rows(ctx context.Context, table string, n int) error {
	_, err := e.db.pool.Exec(ctx, fmt.Sprintf("INSERT INTO %s (contest, lease) SELECT $1, generate_series(0, $2 - 1)", table), e.id, n)
	return err
}

// terminate makes the server end the session of conn, and waits until the session's locks are free.
func (db *database) terminate(ctx context.Context, conn *pgx.Conn) error {
	// The timeout is in milliseconds; with a timeout, the function waits for the end of the
	// process.
	var ended bool
	err := db.pool.QueryRow(ctx, "SELECT pg_terminate_backend($1, 60000)", conn.PgConn().PID()).Scan(&ended)
	if err == nil && !ended {
		err = errors.New("the session did not end within a minute")
	}
	return err
}
