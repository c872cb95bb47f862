package postgres

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter/outcome"
	"github.com/tapestore/tapestore/runstore/adapter/sqlfile"
)

//go:embed schema/*.sql
var schemaFiles embed.FS

// migrations are the steps of the schema.
//
// A program refuses to open a schema that is newer than its own. Once it is open, its statements do
// not check the version, which would add to the cost of each write. So a migration that older
// programs must not write through renames or drops a table, column or function that they use. Their
// statements then fail with ErrUnsupported, and nothing is applied (see rejected).
var migrations = sqlfile.Steps(schemaFiles)

// startVersions creates the table of versions.
const startVersions = `CREATE TABLE tapestore.migrations (version integer PRIMARY KEY, at timestamptz NOT NULL DEFAULT clock_timestamp())`

// migrate brings the schema to this program's version, one migration at a time.
func (e *engine) migrate(ctx context.Context, config *pgx.ConnConfig) error {
	for t := e.backoff(); ; {
		err := e.migrateOnce(ctx, config)
		if err == nil || outcome.Definite(err) {
			return err
		}
		// If a connection is lost midway, a whole number of migrations was applied.
		if f := classify(err); f != classRetryable && f != classAmbiguous || ctx.Err() != nil || !t.More(ctx) {
			return outcome.Unavailable(outcome.Cause(ctx, err))
		}
	}
}

func (e *engine) migrateOnce(ctx context.Context, config *pgx.ConnConfig) error {
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return notSent{err}
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }() // the error before it is the one to return
	for {
		version, err := e.schemaVersion(ctx, conn)
		if err != nil || version == len(migrations) {
			return err
		}
		if e.opts.NoMigrate {
			return &runstore.InputError{Kind: runstore.ErrUnsupported, Field: "schema", Problem: fmt.Sprintf(
				"%q is at version %d, this program needs %d, and migration is turned off", e.opts.Schema, version, len(migrations))}
		}
		if err := e.step(ctx, conn, len(migrations)); err != nil {
			return e.explainMigration(err, version)
		}
	}
}

// schemaVersion returns the version of the schema, or 0 if there is none. It refuses a schema that
// is newer than this program.
func (e *engine) schemaVersion(ctx context.Context, conn interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}) (version int, err error) {
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

// step runs the next migration up to version upTo under the lock, unless another replica has run it
// meanwhile.
func (e *engine) step(ctx context.Context, conn *pgx.Conn, upTo int) error {
	at, err := incarnationOf(ctx, conn) // before the transaction, because it may fail
	if err != nil {
		return err
	}
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, e.inQuotes(sqlSchemaLock)); err != nil {
			return err
		}
		version, err := e.schemaVersion(ctx, tx)
		if err != nil || version >= upTo {
			return err
		}
		if version == 0 {
			if err := e.start(ctx, tx); err != nil {
				return err
			}
		}
		// A text of several statements can only be sent without arguments.
		if _, err := tx.Exec(ctx, e.sql(migrations[version].Text)); err != nil {
			return err
		}
		if version == 0 {
			if _, err := tx.Exec(ctx, e.sql(sqlStoreInsert), at.cluster, at.timeline); err != nil {
				return err
			}
		}
		_, err = tx.Exec(ctx, e.sql(sqlSchemaInsertVersion), version+1)
		return err
	})
}

// start creates the schema, unless it exists: another role may have created it for this one.
func (e *engine) start(ctx context.Context, tx pgx.Tx) error {
	var there bool
	if err := tx.QueryRow(ctx, e.inQuotes(sqlSchemaFind)).Scan(&there); err != nil {
		return err
	}
	if !there {
		if _, err := tx.Exec(ctx, `CREATE SCHEMA "`+e.opts.Schema+`"`); err != nil {
			return err
		}
	}
	_, err := tx.Exec(ctx, e.sql(startVersions))
	return err
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
