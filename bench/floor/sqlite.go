package floor

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"
	"sync"
	"time"

	driversqlite "modernc.org/sqlite"

	"github.com/tapestore/tapestore/bench"
	"github.com/tapestore/tapestore/runstore/sqlite"
)

// SQLite is the floor of SQLite: prepared statements on one writing connection to the store's file,
// through the same driver without database/sql, with the same journal mode, the same synchronous
// setting and the same way of syncing on macOS (fullfsync). The names of its tables begin with bench_.
//
// Commit is one immediate transaction: UPDATE of the run's row by its number, last seq, token and
// grant id, and one INSERT for each event, id and record. Without an event a SELECT checks the
// token, which is sufficient because the transaction holds the only write lock. The number and the
// last seq are remembered from the previous commit, as in the store. Events need no index: run and
// seq are the key of an event's row. The time is the host's, in microseconds; unlike the store's it
// goes back when the host's does.
//
// One commit is one transaction and one sync, so writers wait for each other: the statement does
// not include the store's group commit.
type SQLite struct {
	mu    sync.Mutex // guards the connection
	conn  driver.Conn
	stmts map[string]driver.Stmt
	args  []driver.NamedValue
	runs  []sqliteRun
	base  int64 // the number of run 0
}

type sqliteRun struct {
	no, last int64
	grant    string
	plain    plain
}

var sqliteTables = []string{"bench_runs", "bench_events", "bench_batches", "bench_records", "bench_plain"}

const sqliteSchema = `
CREATE TABLE bench_runs (no INTEGER PRIMARY KEY, token INTEGER NOT NULL, grant_id TEXT NOT NULL, last_seq INTEGER NOT NULL) STRICT;
CREATE TABLE bench_events (pos INTEGER PRIMARY KEY, kind TEXT NOT NULL, data BLOB NOT NULL, time INTEGER NOT NULL,
	token INTEGER NOT NULL, owner BLOB NOT NULL) STRICT; -- pos is run << 32 | seq
CREATE TABLE bench_batches (run INTEGER NOT NULL, id TEXT NOT NULL, seq INTEGER NOT NULL, time INTEGER NOT NULL,
	PRIMARY KEY (run, id)) STRICT, WITHOUT ROWID;
CREATE TABLE bench_records (run INTEGER NOT NULL, key BLOB NOT NULL, version INTEGER NOT NULL, value BLOB NOT NULL,
	seq INTEGER NOT NULL, time INTEGER NOT NULL, PRIMARY KEY (run, key)) STRICT, WITHOUT ROWID;
CREATE TABLE bench_plain (pos INTEGER PRIMARY KEY, kind TEXT NOT NULL, data BLOB NOT NULL, time INTEGER NOT NULL) STRICT;
`

const (
	sqliteExtend = `UPDATE bench_runs SET last_seq = ? WHERE no = ? AND last_seq = ? AND token = ? AND grant_id = ?`
	sqliteCheck  = `SELECT last_seq FROM bench_runs WHERE no = ? AND token = ? AND grant_id = ?`
	sqliteEvent  = `INSERT INTO bench_events (pos, kind, data, time, token, owner) VALUES (?, ?, ?, ?, ?, ?)`
	sqliteBatch  = `INSERT INTO bench_batches (run, id, seq, time) VALUES (?, ?, ?, ?)`
	sqliteNew    = `INSERT INTO bench_records (run, key, version, value, seq, time) VALUES (?, ?, 1, ?, ?, ?)`
	sqlitePut    = sqliteNew + ` ON CONFLICT (run, key) DO UPDATE SET version = version + 1, value = excluded.value, seq = excluded.seq, time = excluded.time`
	sqlitePlain  = `INSERT INTO bench_plain (pos, kind, data, time) VALUES (?, ?, ?, ?)`
)

// OpenSQLite creates the tables in the store's file.
func OpenSQLite(ctx context.Context, path string, opts *sqlite.Options) (*SQLite, error) {
	synchronous := sqlite.Full
	if opts != nil && opts.Synchronous != "" {
		synchronous = opts.Synchronous
	}
	// 10 s: longer than any transaction of the store that may still be in progress.
	params := url.Values{"_pragma": {"busy_timeout(10000)", "journal_mode(WAL)", "synchronous(" + string(synchronous) + ")", "fullfsync(1)", "checkpoint_fullfsync(1)"}}
	conn, err := new(driversqlite.Driver).Open("file:" + (&url.URL{Path: path}).EscapedPath() + "?" + params.Encode())
	if err != nil {
		return nil, err
	}
	f := &SQLite{conn: conn, stmts: map[string]driver.Stmt{}}
	if err := f.script(ctx, f.drop()+sqliteSchema); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return f, nil
}

func (f *SQLite) drop() (script string) {
	for _, table := range sqliteTables {
		script += "DROP TABLE IF EXISTS " + table + ";"
	}
	return script
}

func (f *SQLite) script(ctx context.Context, statements string) error {
	_, err := f.conn.(driver.ExecerContext).ExecContext(ctx, statements, nil)
	return err
}

// Hold implements bench.Floor.
func (f *SQLite) Hold(_ context.Context, n int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.base += int64(len(f.runs)) + 1
	f.runs = make([]sqliteRun, n)
	return f.transaction(func() error {
		for i := range f.runs {
			r := &f.runs[i]
			r.no, r.grant = f.base+int64(i), newGrant()
			if _, err := f.exec(`INSERT INTO bench_runs (no, token, grant_id, last_seq) VALUES (?, ?, ?, 0)`, r.no, int64(firstToken), r.grant); err != nil {
				return err
			}
		}
		return nil
	})
}

// TakeOver implements Floor.
func (f *SQLite) TakeOver(_ context.Context, run int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, err := f.exec(`UPDATE bench_runs SET token = token + 1, grant_id = ? WHERE no = ?`, newGrant(), f.runs[run].no)
	return err
}

// Commit implements bench.Floor.
func (f *SQLite) Commit(_ context.Context, run int, w bench.Write) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := &f.runs[run]
	last := r.last + int64(w.Events)
	err := f.transaction(func() error {
		if err := f.check(r, last); err != nil {
			return err
		}
		now := time.Now().UnixMicro()
		for i := range w.Events {
			if _, err := f.exec(sqliteEvent, r.no<<32|(r.last+1+int64(i)), kind, w.Event(i), now, int64(firstToken), []byte(owner)); err != nil {
				return err
			}
		}
		if w.BatchID != "" {
			if _, err := f.exec(sqliteBatch, r.no, w.BatchID, last, now); err != nil {
				return err
			}
		}
		put := sqlitePut
		if w.New {
			put = sqliteNew
		}
		for key := range w.Keys() {
			if _, err := f.exec(put, r.no, []byte(key), w.Data, last, now); err != nil {
				return err
			}
		}
		return nil
	})
	if err == nil {
		r.last = last
	}
	return err
}

// check checks the token and advances the run's last seq.
func (f *SQLite) check(r *sqliteRun, last int64) error {
	if last == r.last {
		found, err := f.number(sqliteCheck, r.no, int64(firstToken), r.grant)
		if err == nil && found < 0 {
			return ErrStale
		}
		return err
	}
	changed, err := f.exec(sqliteExtend, last, r.no, r.last, int64(firstToken), r.grant)
	if err == nil && changed == 0 {
		return ErrStale
	}
	return err
}

// Insert implements bench.Floor: one INSERT for each event, id and record, in one transaction if
// there are several.
func (f *SQLite) Insert(_ context.Context, run int, w bench.Write) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := &f.runs[run]
	all := func() error {
		now := time.Now().UnixMicro()
		at := r.no<<32 | r.plain.take(w.Rows())
		return w.EachRow(func(kind bench.RowKind, name string, data []byte) error {
			_, err := f.exec(sqlitePlain, at, string(kind)+name, data, now)
			at++
			return err
		})
	}
	if w.Rows() == 1 {
		return all() // a single statement is its own transaction
	}
	return f.transaction(all)
}

// Stored implements bench.Floor.
func (f *SQLite) Stored(context.Context) (committed, inserted int, err error) {
	return f.count(`SELECT count(*) FROM bench_events WHERE pos >= ?`, f.base<<32, `SELECT count(*) FROM bench_plain WHERE kind LIKE 'e%' AND pos >= ?`)
}

// StoredRecords implements bench.RecordCounter.
func (f *SQLite) StoredRecords(context.Context) (committed, inserted int, err error) {
	return f.count(`SELECT coalesce(sum(version), 0) FROM bench_records WHERE run >= ?`, f.base, `SELECT count(*) FROM bench_plain WHERE kind LIKE 'r%' AND pos >= ?`)
}

func (f *SQLite) count(commits string, from int64, inserts string) (committed, inserted int, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c, err := f.number(commits, from)
	if err != nil {
		return 0, 0, err
	}
	i, err := f.number(inserts, f.base<<32)
	return int(c), int(i), err
}

// About implements bench.Floor.
func (f *SQLite) About(w bench.Write) string {
	steps := []string{"BEGIN IMMEDIATE"}
	if w.Events > 0 {
		steps = append(steps, sqliteExtend, sqliteEvent)
	} else {
		steps = append(steps, sqliteCheck)
	}
	if w.Events > 1 {
		steps[len(steps)-1] += fmt.Sprintf(" /* %d times */", w.Events)
	}
	if w.BatchID != "" {
		steps = append(steps, sqliteBatch)
	}
	switch {
	case w.Key != "" && w.New:
		steps = append(steps, sqliteNew)
	case w.Key != "":
		steps = append(steps, sqlitePut)
	}
	return strings.Join(append(steps, "COMMIT"), ";\n") + ";"
}

// Close drops the tables.
func (f *SQLite) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	var errs []error
	for _, s := range f.stmts {
		errs = append(errs, s.Close())
	}
	errs = append(errs, f.script(context.Background(), f.drop()), f.conn.Close())
	return errors.Join(errs...)
}

// transaction calls do between BEGIN and COMMIT.
func (f *SQLite) transaction(do func() error) error {
	if _, err := f.exec("BEGIN IMMEDIATE"); err != nil {
		return err
	}
	err := do()
	if err == nil {
		_, err = f.exec("COMMIT")
	}
	if err != nil {
		_, _ = f.exec("ROLLBACK") // the earlier error is the one to report
	}
	return err
}

func (f *SQLite) prepared(query string) (driver.Stmt, error) {
	if s := f.stmts[query]; s != nil {
		return s, nil
	}
	s, err := f.conn.Prepare(query)
	if err == nil {
		f.stmts[query] = s
	}
	return s, err
}

func (f *SQLite) named(args []driver.Value) []driver.NamedValue {
	f.args = f.args[:0]
	for i, v := range args {
		f.args = append(f.args, driver.NamedValue{Ordinal: i + 1, Value: v})
	}
	return f.args
}

// exec executes a statement and returns the number of changed rows. It takes no context, because
// the driver starts a goroutine for a context that can end.
func (f *SQLite) exec(query string, args ...driver.Value) (int64, error) {
	s, err := f.prepared(query)
	if err != nil {
		return 0, err
	}
	result, err := s.(driver.StmtExecContext).ExecContext(context.Background(), f.named(args))
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

// number returns the only value of a query, or -1 if the query returns no row.
func (f *SQLite) number(query string, args ...driver.Value) (int64, error) {
	s, err := f.prepared(query)
	if err != nil {
		return 0, err
	}
	rows, err := s.(driver.StmtQueryContext).QueryContext(context.Background(), f.named(args))
	if err != nil {
		return 0, err
	}
	value := [1]driver.Value{int64(-1)}
	err = rows.Next(value[:])
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return value[0].(int64), errors.Join(err, rows.Close())
}
