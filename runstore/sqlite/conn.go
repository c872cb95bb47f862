package sqlite

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"slices"

	"modernc.org/sqlite"
)

// init selects open file description locks for database files, on Linux, before any file is opened. A
// lock of POSIX ends when the process closes any descriptor of the file. Then a process with an SQLite
// before 3.51 may take itself for the last user of the file, and remove the log to which this process
// still commits. Locks of the two kinds exclude each other in the kernel, so other programs may use either. The
// locks of the shared memory (-shm) remain those of POSIX. The driver's variable, if it is set, decides
// instead: for a file system that has locks of POSIX only.
//
// Elsewhere the call fails and changes nothing, as in a process that locked a database before this
// package was initialized.
func init() {
	if os.Getenv("MODERNC_SQLITE_OFD_LOCK") == "" {
		_, _ = sqlite.OFDLocking(true)
	}
}

// conn is one connection with its prepared statements. It calls the driver without database/sql in
// between: the writer runs tens of thousands of statements a second on one connection, where the
// locks of database/sql are a third of their cost. A conn is used by one goroutine at a time.
type conn struct {
	raw    driver.Conn
	stmts  map[string]driver.Stmt
	args   []driver.NamedValue // the arguments of the running statement, reused by the next
	text   []byte              // the last stored result, likewise
	damage *damage             // records the errors of all statements
}

// connect opens a connection to the store's file. Pragmas apply to one connection, so the name with
// which every connection is opened contains them. On macOS a sync flushes the drive with fullfsync only:
// https://www.sqlite.org/pragma.html#pragma_fullfsync
//
// Opening reads the schema, so it may meet a lock like any statement.
func (db *database) connect(ctx context.Context, pragmas ...string) (*conn, error) {
	pragmas = append(slices.Clone(pragmas), "fullfsync(1)", "checkpoint_fullfsync(1)")
	path, params := db.path, url.Values{"_pragma": pragmas, "_error_rc": {"1"}}
	if db.opts.vfs != "" {
		params.Set("vfs", db.opts.vfs)
	}
	name := "file:" + (&url.URL{Path: path}).EscapedPath() + "?" + params.Encode()
	if path == Memory {
		name = ":memory:?" + params.Encode()
	}
	var raw driver.Conn
	err := retryWhileBusy(ctx, func() (err error) {
		raw, err = new(sqlite.Driver).Open(name)
		return err
	})
	if err != nil {
		return nil, err
	}
	return &conn{raw: raw, stmts: map[string]driver.Stmt{}, damage: &db.damage}, nil
}

func (c *conn) close() error {
	errs := make([]error, 0, len(c.stmts)+1)
	for _, s := range c.stmts {
		errs = append(errs, s.Close())
	}
	return errors.Join(append(errs, c.raw.Close())...)
}

func (c *conn) prepare(ctx context.Context, query string) (driver.Stmt, error) {
	if s := c.stmts[query]; s != nil {
		return s, nil
	}
	s, err := c.raw.(driver.ConnPrepareContext).PrepareContext(ctx, query)
	if err != nil {
		return nil, fmt.Errorf("prepare %.40q: %w", query, err)
	}
	c.stmts[query] = s
	return s, nil
}

// exec runs a statement and returns how many rows it changed.
func (c *conn) exec(ctx context.Context, query string, args ...driver.Value) (n int64, err error) {
	defer func() { c.damage.note(err) }()
	s, err := c.prepare(ctx, query)
	if err != nil {
		return 0, err
	}
	result, err := s.(driver.StmtExecContext).ExecContext(ctx, c.named(args))
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

// script runs several statements without preparing them.
func (c *conn) script(ctx context.Context, statements string) error {
	_, err := c.raw.(driver.ExecerContext).ExecContext(ctx, statements, nil)
	c.damage.note(err)
	return err
}

// errEnough stops a query early.
var errEnough = errors.New("enough rows")

// enough returns errEnough if a page is full.
func enough(full bool) error {
	if full {
		return errEnough
	}
	return nil
}

// rowsPerLook is after how many rows a query looks at its context: 256, which are read in about a
// millisecond. The driver watches the context until the first row only.
const rowsPerLook = 256

// query calls each for every row until each returns an error. It returns that error, but nil for
// errEnough. If ctx ends, query returns its error at most rowsPerLook rows later. The caller may keep
// the blobs of a row.
func (c *conn) query(ctx context.Context, query string, each func(row []driver.Value) error, args ...driver.Value) (err error) {
	defer func() { c.damage.note(err) }()
	s, err := c.prepare(ctx, query)
	if err != nil {
		return err
	}
	rows, err := s.(driver.StmtQueryContext).QueryContext(ctx, c.named(args))
	if err != nil {
		return err
	}
	defer func() {
		if closed := rows.Close(); err == nil {
			err = closed
		}
	}()
	row := make([]driver.Value, len(rows.Columns()))
	for n := 1; ; n++ {
		switch err := rows.Next(row); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		if err := each(row); err != nil {
			if errors.Is(err, errEnough) {
				return nil
			}
			return err
		}
		if n%rowsPerLook == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

// one returns the only row of a query, nil if there is none.
func (c *conn) one(ctx context.Context, query string, args ...driver.Value) (row []driver.Value, err error) {
	err = c.query(ctx, query, func(r []driver.Value) error {
		row = append(row, r...)
		return nil
	}, args...)
	return row, err
}

// dataVersion returns SQLite's data version. Within a transaction and after its COMMIT, the version
// differs from every earlier one if any connection has changed the database since.
func (c *conn) dataVersion() (uint32, error) {
	return c.raw.(sqlite.FileControl).FileControlDataVersion("main")
}

func (c *conn) named(args []driver.Value) []driver.NamedValue {
	c.args = c.args[:0]
	for i, v := range args {
		c.args = append(c.args, driver.NamedValue{Ordinal: i + 1, Value: v})
	}
	return c.args
}

// blob returns the value of a string that may contain any bytes.
func blob[S ~string](s S) driver.Value { return []byte(s) }

// data returns the value of a slice; the driver copies the slice. An empty slice is an empty blob,
// not NULL.
func data(b []byte) driver.Value {
	if b == nil {
		return []byte{}
	}
	return b
}

func text[S ~string](v driver.Value) S { return S(v.(string)) }

func bytesOf(v driver.Value) []byte {
	b, _ := v.([]byte) // the driver may return an empty blob as nil
	return b
}

func flag(b bool) driver.Value {
	if b {
		return int64(1)
	}
	return int64(0)
}
