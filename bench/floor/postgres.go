package floor

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tapestore/tapestore/bench"
)

// Postgres is the floor of PostgreSQL and AlloyDB: a pool of the store's size on the same database,
// with the store's settings for plans. Its tables are in the schema tapestore_bench.
//
// Commit is one statement and one round trip: UPDATE of the run's row by its id, token and grant
// id, which locks the row, and INSERT … SELECT from its RETURNING for events, id and records.
// Without an event SELECT … FOR NO KEY UPDATE replaces the UPDATE. Several events, or records, are
// passed as arrays. The time is the server's clock_timestamp. The indexed id of the transaction
// orders events in a feed of all runs. If the token is stale the statement returns no row; if the
// id or a new record exists it fails by the unique index.
//
// Concurrent commits on one run wait for its row, and each syncs for itself: the statement does not
// include the store's merging of such commits.
type Postgres struct {
	pool *pgxpool.Pool
	done func() error // after the pool was closed
	runs []postgresRun
	base int64 // the number of run 0
}

type postgresRun struct {
	id    []byte
	grant string
	plain plain
}

const postgresSchema = `
DROP SCHEMA IF EXISTS tapestore_bench CASCADE;
CREATE SCHEMA tapestore_bench;
CREATE TABLE tapestore_bench.runs (no bigint PRIMARY KEY, id bytea NOT NULL UNIQUE, token bigint NOT NULL, grant_id text NOT NULL,
	owner text NOT NULL, last_seq bigint NOT NULL) WITH (fillfactor = 70);
CREATE TABLE tapestore_bench.events (run bigint NOT NULL, seq bigint NOT NULL, token bigint NOT NULL, time timestamptz NOT NULL,
	kind text NOT NULL, owner text NOT NULL, data bytea NOT NULL, position xid8 NOT NULL DEFAULT pg_current_xact_id(), PRIMARY KEY (run, seq));
CREATE INDEX ON tapestore_bench.events (position);
CREATE TABLE tapestore_bench.batches (run bigint NOT NULL, seq bigint NOT NULL, time timestamptz NOT NULL, id text NOT NULL, PRIMARY KEY (run, id));
CREATE TABLE tapestore_bench.records (run bigint NOT NULL, version bigint NOT NULL, seq bigint NOT NULL, time timestamptz NOT NULL,
	key bytea NOT NULL, value bytea NOT NULL, PRIMARY KEY (run, key)) WITH (fillfactor = 70);
CREATE TABLE tapestore_bench.plain (run bigint NOT NULL, n bigint NOT NULL, time timestamptz NOT NULL, kind text NOT NULL, name text NOT NULL,
	data bytea NOT NULL, PRIMARY KEY (run, n));
`

// OpenPostgres creates the schema. It takes ownership of config.
func OpenPostgres(ctx context.Context, config *pgxpool.Config) (*Postgres, error) {
	return openPostgres(ctx, config, func() error { return nil })
}

func openPostgres(ctx context.Context, config *pgxpool.Config, done func() error) (*Postgres, error) {
	for name, value := range map[string]string{
		"application_name": "tapestore-bench", "plan_cache_mode": "force_generic_plan",
		"enable_seqscan": "off", "enable_bitmapscan": "off", "jit": "off",
	} {
		config.ConnConfig.RuntimeParams[name] = value
	}
	config.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return false } // as in the store
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, errors.Join(err, done())
	}
	f := &Postgres{pool: pool, done: done}
	if _, err := pool.Exec(ctx, postgresSchema, pgx.QueryExecModeSimpleProtocol); err != nil {
		pool.Close()
		return nil, errors.Join(err, done())
	}
	return f, nil
}

// Hold implements bench.Floor.
func (f *Postgres) Hold(ctx context.Context, n int) error {
	f.base += int64(len(f.runs)) + 1
	f.runs = make([]postgresRun, n)
	var rows [][]any
	for i := range f.runs {
		r := &f.runs[i]
		r.grant = newGrant()
		r.id = []byte(runName(r.grant, i))
		rows = append(rows, []any{f.base + int64(i), r.id, int64(firstToken), r.grant, owner, int64(0)})
	}
	_, err := f.pool.CopyFrom(ctx, pgx.Identifier{"tapestore_bench", "runs"}, []string{"no", "id", "token", "grant_id", "owner", "last_seq"}, pgx.CopyFromRows(rows))
	return err
}

// TakeOver implements Floor.
func (f *Postgres) TakeOver(ctx context.Context, run int) error {
	_, err := f.pool.Exec(ctx, `UPDATE tapestore_bench.runs SET token = token + 1, grant_id = $2 WHERE id = $1`, f.runs[run].id, newGrant())
	return err
}

// Commit implements bench.Floor.
func (f *Postgres) Commit(ctx context.Context, run int, w bench.Write) error {
	r := &f.runs[run]
	args := append(make([]any, 0, 10), r.id, int64(firstToken), r.grant)
	switch {
	case w.Events == 1:
		args = append(args, kind, w.Event(0))
	case w.Events > 1 && w.Each != nil:
		args = append(args, kind, w.Each)
	case w.Events > 1:
		args = append(args, kind, repeat(w.Data, w.Events))
	}
	if w.BatchID != "" {
		args = append(args, w.BatchID)
	}
	switch {
	case w.Records > 1:
		args = append(args, keys(w), repeat(w.Data, w.Records))
	case w.Key != "":
		args = append(args, []byte(w.Key), w.Data)
	}
	var number int64
	err := f.pool.QueryRow(ctx, postgresCommit(w), args...).Scan(&number)
	if errors.Is(err, pgx.ErrNoRows) {
		return ErrStale
	}
	return err
}

// Insert implements bench.Floor: one INSERT of all rows.
func (f *Postgres) Insert(ctx context.Context, run int, w bench.Write) error {
	no, at := f.base+int64(run), f.runs[run].plain.take(w.Rows())
	const columns = `INSERT INTO tapestore_bench.plain (run, n, time, kind, name, data) `
	if w.Rows() == 1 {
		return w.EachRow(func(kind bench.RowKind, name string, data []byte) error {
			_, err := f.pool.Exec(ctx, columns+`VALUES ($1, $2, clock_timestamp(), $3, $4, $5)`, no, at, string(kind), name, data)
			return err
		})
	}
	var kinds, names []string
	var values [][]byte
	_ = w.EachRow(func(kind bench.RowKind, name string, data []byte) error { // never fails
		kinds, names, values = append(kinds, string(kind)), append(names, name), append(values, data)
		return nil
	})
	_, err := f.pool.Exec(ctx, columns+`SELECT $1, $2 + i - 1, clock_timestamp(), kind, name, data
		FROM unnest($3::text[], $4::text[], $5::bytea[]) WITH ORDINALITY AS new (kind, name, data, i)`, no, at, kinds, names, values)
	return err
}

// Stored implements bench.Floor.
func (f *Postgres) Stored(ctx context.Context) (committed, inserted int, err error) {
	return f.count(ctx, `SELECT (SELECT count(*) FROM tapestore_bench.events WHERE run >= $1),
		(SELECT count(*) FROM tapestore_bench.plain WHERE run >= $1 AND kind = 'e')`)
}

// StoredRecords implements bench.RecordCounter.
func (f *Postgres) StoredRecords(ctx context.Context) (committed, inserted int, err error) {
	return f.count(ctx, `SELECT (SELECT coalesce(sum(version), 0)::bigint FROM tapestore_bench.records WHERE run >= $1),
		(SELECT count(*) FROM tapestore_bench.plain WHERE run >= $1 AND kind = 'r')`)
}

func (f *Postgres) count(ctx context.Context, sql string) (committed, inserted int, err error) {
	err = f.pool.QueryRow(ctx, sql, f.base).Scan(&committed, &inserted)
	return committed, inserted, err
}

// About implements bench.Floor.
func (f *Postgres) About(w bench.Write) string { return postgresCommit(w) }

// Close drops the schema.
func (f *Postgres) Close() error {
	_, err := f.pool.Exec(context.Background(), `DROP SCHEMA tapestore_bench CASCADE`)
	f.pool.Close()
	return errors.Join(err, f.done())
}

func repeat(data []byte, n int) [][]byte {
	all := make([][]byte, n)
	for i := range all {
		all[i] = data
	}
	return all
}

func keys(w bench.Write) (all [][]byte) {
	for key := range w.Keys() {
		all = append(all, []byte(key))
	}
	return all
}
