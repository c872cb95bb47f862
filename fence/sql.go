package fence

import (
	"context"
	"database/sql"
	"fmt"
	"regexp"
	"strings"

	"github.com/tapestore/tapestore/runstore"
)

// Dialect is the SQL that a database speaks.
type Dialect int

// The dialects of [NewSQL].
const (
	// Postgres is PostgreSQL and what is compatible with it.
	Postgres Dialect = iota + 1
	// SQLite is SQLite 3.35 or later, which has RETURNING.
	SQLite
)

// String returns the dialect's name.
func (d Dialect) String() string {
	switch d {
	case Postgres:
		return "postgres"
	case SQLite:
		return "sqlite"
	default:
		return fmt.Sprintf("dialect %d", int(d))
	}
}

// tableForm is a table's name, with or without a schema. 63 bytes is PostgreSQL's limit: it would
// cut a longer name.
var tableForm = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,62}(\.[A-Za-z_][A-Za-z0-9_]{0,62})?$`)

// SQL is a [Checker] in a table, which the replicas of a service share and which outlives them. The
// table has one row per resource and grows with their number: no row is ever deleted. To drop one
// by hand means what [Memory.Forget] says.
//
// A check is as durable as a commit of the database. If the database loses commits, for example by a
// failover to an asynchronous replica, it loses tokens, and stale ones pass again.
//
// Each check writes its row, a refused one too, and checks of one resource run one after the other.
type SQL struct {
	db     *sql.DB
	create string
	check  string
}

var _ Checker = (*SQL)(nil)

// NewSQL returns a checker that keeps its tokens in a table of db, which the caller closes. The name
// of the table may have a schema ("app.fence"); it is used as written, upper case included.
// [SQL.CreateTable] creates the table. On SQLite set a busy_timeout: without one, checks fail while
// another connection writes, and a driver may wait that long even if the context ends. Errors:
// ErrInvalid.
func NewSQL(db *sql.DB, table string, dialect Dialect) (*SQL, error) {
	if db == nil {
		return nil, invalid("db", "is nil")
	}
	if !tableForm.MatchString(table) {
		return nil, invalid("table", "%q is not a name of letters, digits and _, with or without a schema", table)
	}
	quoted := `"` + strings.Replace(table, ".", `"."`, 1) + `"`
	s := &SQL{db: db}
	var text, greatest string
	switch dialect {
	case Postgres:
		// "C" compares bytes, also in a database with another collation.
		text, greatest = `text COLLATE "C"`, "GREATEST"
	case SQLite:
		text, greatest = "TEXT", "max"
	default:
		return nil, invalid("dialect", "%d is not a dialect", int(dialect))
	}
	s.create = fmt.Sprintf(`CREATE TABLE IF NOT EXISTS %s (resource %s NOT NULL PRIMARY KEY, token bigint NOT NULL)`, quoted, text)
	// One statement compares, records and returns the highest token. It locks the row until its
	// transaction ends: a concurrent check of the resource waits, and then compares with the row
	// that was committed. A WHERE clause instead of the maximum would return no row to a stale
	// token, which would need a second statement to name the current one.
	s.check = fmt.Sprintf(`INSERT INTO %s AS seen (resource, token) VALUES ($1, $2)
ON CONFLICT (resource) DO UPDATE SET token = %s(seen.token, excluded.token)
RETURNING token`, quoted, greatest)
	return s, nil
}

// CreateTable creates the table unless it exists. A service that has migrations may create it there:
// a text column resource, which is the primary key and compares bytes, and a column token of 64
// bits, not null. Replicas that create it at the same moment may get an error from PostgreSQL; a
// repeat succeeds.
func (s *SQL) CreateTable(ctx context.Context) error {
	if _, err := s.db.ExecContext(ctx, s.create); err != nil {
		return fmt.Errorf("fence: create table: %w", err)
	}
	return nil
}

// Check implements [Checker] with one statement, which is its own transaction. Any error of the
// database is ErrUnknownOutcome, with the driver's error in the chain: the token may have been
// recorded, and may be stale.
func (s *SQL) Check(ctx context.Context, resource string, token runstore.Token) error {
	return s.checkIn(ctx, s.db, Presented{resource, token}, runstore.ErrUnknownOutcome)
}

// CheckTx checks in a transaction of the caller's on the checker's database, so that the check is
// atomic with the caller's own writes: they are committed only if no higher token was recorded
// before the commit. CheckTx locks the row of the resource until the transaction ends. A check of a
// newer token waits for that, and so comes after the caller's writes.
//
// Call it outside of savepoints: a ROLLBACK TO a savepoint that was set before CheckTx undoes the
// check. On PostgreSQL it also releases the lock, so a newer token may be recorded before the
// caller's remaining writes are committed. CheckTx does not detect savepoints; the FenceTx of a store
// refuses them.
//
// Call it first in the transaction: what was read before it may be older than the check. On SQLite
// begin the transaction as IMMEDIATE; on PostgreSQL above READ COMMITTED a concurrent check makes it
// fail, and the caller repeats the transaction. Two transactions that each check several resources
// must check them in the same order, or they may deadlock, which the database resolves by an error.
//
// The token is recorded if the transaction commits. If the outcome of that commit is unknown, so is
// the outcome of the caller's writes, and both are applied or neither.
//
// On an error CheckTx rolls the transaction back, so that a caller that ignores the error commits
// nothing. Errors: as of Check, but any error of the database is ErrUnavailable: nothing was
// recorded.
func (s *SQL) CheckTx(ctx context.Context, tx *sql.Tx, resource string, token runstore.Token) error {
	err := s.checkIn(ctx, tx, Presented{resource, token}, runstore.ErrUnavailable)
	if err != nil {
		_ = tx.Rollback() // a transaction that cannot be rolled back cannot commit either
	}
	return err
}

// querier is a *sql.DB or a *sql.Tx.
type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// checkIn runs the check. failed is the kind of an error of the database.
func (s *SQL) checkIn(ctx context.Context, q querier, p Presented, failed error) error {
	if err := ready(ctx, p); err != nil {
		return err
	}
	current, err := highest(q.QueryContext(ctx, s.check, p.Resource, int64(p.Token)))
	switch {
	case err != nil:
		return fmt.Errorf("fence: check %q: %w: %w", p.Resource, failed, err)
	case current > p.Token:
		return &StaleError{Resource: p.Resource, Presented: p.Token, Current: current}
	case current < p.Token: // a trigger or a rule of the database has changed the statement
		return fmt.Errorf("fence: check %q: %w: token %v was presented and %v recorded", p.Resource, failed, p.Token, current)
	default:
		return nil
	}
}

// highest returns the token of the only row. It reads to the end of the rows: a statement without a
// transaction may commit only there, and so may fail only there.
func highest(rows *sql.Rows, err error) (runstore.Token, error) {
	if err != nil {
		return 0, err
	}
	defer func() { _ = rows.Close() }() // after Next has returned false it reports nothing new
	var token runstore.Token
	n := 0
	for ; rows.Next(); n++ {
		if err := rows.Scan((*int64)(&token)); err != nil {
			return 0, err
		}
	}
	if err := rows.Err(); err != nil {
		return 0, err
	}
	if n != 1 {
		return 0, fmt.Errorf("the statement returned %d rows instead of 1", n)
	}
	return token, rows.Close()
}
