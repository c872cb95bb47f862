package postgres

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter/outcome"
	"github.com/tapestore/tapestore/runstore/adapter/sqlfile"
	"github.com/tapestore/tapestore/runstore/admin"
)

//go:embed schema/*.sql functions/*.sql
var schemaFiles embed.FS

// migrations are the steps of the schema: its tables and types. Each migration ends with all functions,
// so no step has any, and each function is in one file as it is now. A change of a function needs a step,
// which may be a comment alone. A step drops functions whose parameters change.
//
// A program refuses to open a schema that is newer than its own. Once it is open, its statements do
// not check the version, which would add to the cost of each write. So a migration that older
// programs must not write through renames or drops a table, column or function that they use. Their
// statements then fail with ErrUnsupported, and nothing is applied (see rejected).
var (
	migrations = sqlfile.Steps(schemaFiles)
	functions  = sqlfile.Functions(schemaFiles)
)

// lockTables precedes the steps of a schema that exists. It takes the locks of all steps before any work, so
// that the work of a migration that meets a deadlock is not lost, and runs first: a write locks its run
// first, then other rows.
const lockTables = `LOCK TABLE tapestore.runs, tapestore.records, tapestore.batches, tapestore.events IN ACCESS EXCLUSIVE MODE`

// noTimeout returns the statement sql/no_timeout.sql. A lock of 0 is no bound.
func noTimeout(lock time.Duration) string {
	return strings.Replace(sqlNoTimeout, "$1", strconv.FormatInt(lock.Milliseconds(), 10), 1)
}

// startVersions creates the table of versions.
const startVersions = `CREATE TABLE tapestore.migrations (version integer PRIMARY KEY, at timestamptz NOT NULL DEFAULT clock_timestamp())`

// migrate brings the schema to this program's version. If a connection is lost midway, the whole migration was
// applied, or none of it.
func (e *engine) migrate(ctx context.Context, config *pgx.ConnConfig) error {
	return e.retry(ctx, func() error {
		err := e.migrateOnce(ctx, config)
		if classify(err) == classRolledBack { // rejected would need the pool
			return outcome.NotApplied(ctx, err)
		}
		return err
	}, nil)
}

func (e *engine) migrateOnce(ctx context.Context, config *pgx.ConnConfig) error {
	conn, err := e.connectAlone(ctx, config)
	if err != nil {
		return notSent{err}
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }() // the error before it is the one to return
	version, err := e.schemaVersion(ctx, conn)
	if err != nil || version == len(migrations) {
		return err
	}
	return e.migrateConn(ctx, conn, version)
}

// migrateConn migrates the schema from a version over a connection, if this program may.
func (e *engine) migrateConn(ctx context.Context, conn *pgx.Conn, version int) error {
	if e.opts.NoMigrate {
		return &runstore.InputError{Kind: runstore.ErrUnsupported, Field: "schema", Problem: fmt.Sprintf(
			"%q is at version %d, this program needs %d, and migration is turned off", e.opts.Schema, version, len(migrations))}
	}
	return e.explainMigration(e.migrateTo(ctx, conn, len(migrations)), version)
}

// migrateAgain migrates a schema that had this program's version when the handle was opened: the server was
// replaced by one that lacks the last migration, as it may lack the last commits.
func (e *engine) migrateAgain(ctx context.Context, conn *pgx.Conn, version int) error {
	ctx, cancel := context.WithTimeout(ctx, maxRaise)
	defer cancel()
	unbindStatement(conn)
	err := e.migrateConn(ctx, conn, version)
	if errors.Is(err, runstore.ErrUnsupported) {
		return oldSchema{err}
	}
	return err
}

// oldSchema is the error of a connection to a schema that this program may not migrate. Another handle may do
// so meanwhile, so an operation is retried.
type oldSchema struct{ error }

func (e oldSchema) Unwrap() error { return e.error }

// queryer is a connection or a transaction.
type queryer interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// schemaVersion returns the version of the schema, or 0 if there is none. It refuses a schema that
// is newer than this program.
func (e *engine) schemaVersion(ctx context.Context, conn queryer) (version int, err error) {
	var ours bool
	if err := conn.QueryRow(ctx, e.inQuotes(sqlSchemaFindVersions)).Scan(&ours); err != nil || !ours {
		return 0, err
	}
	if err := conn.QueryRow(ctx, e.sql(sqlSchemaVersion)).Scan(&version); err != nil {
		return 0, err
	}
	if version > len(migrations) {
		return 0, &runstore.InputError{Kind: runstore.ErrUnsupported, Field: "schema", Problem: fmt.Sprintf(
			"%q is at version %d, which is newer than this program's %d; use a newer program", e.opts.Schema, version, len(migrations))}
	}
	return version, nil
}

// migrateTo brings the schema to a version in one transaction under the lock, unless another replica has
// done so meanwhile. While another replica migrates, it waits until ctx ends.
func (e *engine) migrateTo(ctx context.Context, conn *pgx.Conn, upTo int) error {
	at, err := incarnationOf(ctx, conn) // before the transaction, because it may fail
	if err != nil {
		return err
	}
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if err := execAll(ctx, tx, noTimeout(0), e.inQuotes(sqlSchemaLock), noTimeout(e.opts.LockTimeout)); err != nil {
			return err
		}
		version, err := e.schemaVersion(ctx, tx)
		if err != nil || version >= upTo {
			return err
		}
		steps, err := e.stepsBetween(ctx, tx, version, upTo, at)
		if err != nil {
			return err
		}
		for _, step := range steps {
			if err := execAll(ctx, tx, step.Statements...); err != nil {
				return err
			}
		}
		return nil
	})
}

// execAll sends statements one after the other. A text of several statements can only be sent without
// arguments.
func execAll(ctx context.Context, tx pgx.Tx, statements ...string) error {
	for _, text := range statements {
		if _, err := tx.Exec(ctx, text); err != nil {
			return err
		}
	}
	return nil
}

// stepsBetween returns the statements that lead from one version of the schema to another.
func (e *engine) stepsBetween(ctx context.Context, conn queryer, from, to int, at incarnation) (steps []admin.Step, err error) {
	add := func(name string, statements ...string) {
		for i, text := range statements {
			statements[i] = e.sql(strings.TrimSuffix(strings.TrimSpace(text), ";")) + ";"
		}
		steps = append(steps, admin.Step{Name: name, Statements: statements})
	}
	if from > 0 {
		add("lock the tables", lockTables)
	} else {
		var there bool // another role may have created the schema for this one
		if err := conn.QueryRow(ctx, e.inQuotes(sqlSchemaFind)).Scan(&there); err != nil {
			return nil, err
		}
		if !there {
			add("create the schema", `CREATE SCHEMA "`+e.opts.Schema+`"`)
		}
		add("create the table of versions", startVersions)
	}
	for i, m := range migrations[from:to] {
		add("version "+m.Name, m.Text, fmt.Sprintf(`INSERT INTO tapestore.migrations (version) VALUES (%d)`, from+i+1))
	}
	if from == 0 {
		add("the store's row", fmt.Sprintf(`INSERT INTO tapestore.store (epoch, cluster, timeline, position_base, xid_base)
			VALUES (0, '%s', %d, 0, pg_current_xact_id()::text::bigint - 1)`, strings.ReplaceAll(at.cluster, "'", "''"), at.timeline))
	}
	if to == len(migrations) {
		add("the functions", functions)
	}
	return steps, nil
}

// inQuotes replaces the default schema's name in a statement that has it as a string literal.
func (e *engine) inQuotes(text string) string {
	return strings.ReplaceAll(text, "'"+defaultSchema, "'"+e.opts.Schema)
}

// explainMigration adds advice to the server's error about missing privileges.
func (e *engine) explainMigration(err error, version int) error {
	var server *pgconn.PgError
	if errors.As(err, &server) && server.Code == "42501" {
		return outcome.WithKind(&runstore.InputError{Kind: runstore.ErrUnsupported, Field: "schema", Problem: fmt.Sprintf(
			"%q is at version %d of %d, and this role may not migrate it; open it once as a role that may", e.opts.Schema, version, len(migrations))}, err)
	}
	return err
}
