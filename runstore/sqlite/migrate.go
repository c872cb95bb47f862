package sqlite

import (
	"context"
	"crypto/rand"
	"embed"
	"fmt"
	"strconv"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter"
	"github.com/tapestore/tapestore/runstore/adapter/sqlfile"
)

//go:embed schema/*.sql
var schema embed.FS

// applicationID marks the databases of this package ("Tape"), so that a file of another program is
// refused before anything is written to it.
const applicationID = 0x54617065

// migrations are the steps of the schema: migrations[0] leads from an empty file to version 1.
var migrations = sqlfile.Steps(schema)

// identify returns the schema version of a file without changing the file: 0 for an empty one. It
// reads in its own transaction: another process that migrates may commit at any moment, and
// separate reads could mix the states before and after that commit.
func identify(ctx context.Context, c *conn) (version int, err error) {
	if err := c.script(ctx, "BEGIN"); err != nil {
		return 0, err
	}
	defer func() {
		if ended := c.script(context.WithoutCancel(ctx), "ROLLBACK"); err == nil {
			err = ended
		}
	}()
	return schemaVersion(ctx, c)
}

// schemaVersion is identify within a transaction that the caller has begun.
func schemaVersion(ctx context.Context, c *conn) (version int, err error) {
	read := func(query string) (n int64) {
		row, queryErr := c.one(ctx, query)
		if queryErr != nil {
			err = queryErr
			return 0
		}
		return row[0].(int64)
	}
	app, tables := read("PRAGMA application_id"), read(sqlSchemaTables)
	version = int(read("PRAGMA user_version"))
	switch {
	case err != nil:
		return 0, err
	case app == 0 && version == 0 && tables == 0:
		return 0, nil
	case app != applicationID:
		return 0, adapter.Invalid("store URL", "the file is a database of another application")
	case version > len(migrations):
		return 0, newerSchema(version)
	}
	return version, nil
}

// newerSchema returns the error for a database that a newer program has migrated.
func newerSchema(version int) error {
	return &runstore.InputError{Kind: runstore.ErrUnsupported, Field: "schema", Problem: fmt.Sprintf(
		"version %d of the database is newer than this program's %d; use a newer program", version, len(migrations))}
}

// refuseNewer returns an error in a transaction that has just begun if a newer program has migrated
// the database since this handle opened it, because this program might drop data that it does not
// know. The check is cheap: the version is in the file's header, which the transaction has read.
func refuseNewer(ctx context.Context, c *conn) error {
	row, err := c.one(ctx, "PRAGMA user_version")
	if err == nil && row[0].(int64) > int64(len(migrations)) {
		err = newerSchema(int(row[0].(int64)))
	}
	return err
}

// migrate brings the schema up to date in one transaction. When several processes start at once,
// each sees the steps that the previous process completed.
func migrate(ctx context.Context, c *conn) error {
	version := 0
	// Even a read meets a lock while another process changes the journal mode.
	err := retryWhileBusy(ctx, func() (err error) {
		version, err = identify(ctx, c)
		return err
	})
	if err != nil {
		return err
	}
	// The mode is a property of the file and cannot change within a transaction. A copy made by
	// VACUUM INTO does not have it.
	if err := retryWhileBusy(ctx, func() error { return c.script(ctx, "PRAGMA journal_mode = WAL") }); err != nil {
		return err
	}
	if version == len(migrations) {
		return nil
	}
	if err := retryWhileBusy(ctx, func() error { return c.script(ctx, "BEGIN IMMEDIATE") }); err != nil {
		return err
	}
	if err := takeSteps(ctx, c); err != nil {
		_ = c.script(ctx, "ROLLBACK") // the first error is the one to report
		return err
	}
	return c.script(ctx, "COMMIT")
}

func takeSteps(ctx context.Context, c *conn) error {
	version, err := schemaVersion(ctx, c)
	if err != nil {
		return err
	}
	for _, step := range migrations[version:] {
		if err := c.script(ctx, step.Text); err != nil {
			return fmt.Errorf("schema version %s: %w", step.Name, err)
		}
	}
	if version == 0 {
		_, err := c.exec(ctx, sqlStoreInsert, rand.Text())
		if err != nil {
			return err
		}
	}
	return c.script(ctx, "PRAGMA application_id = "+strconv.Itoa(applicationID)+
		"; PRAGMA user_version = "+strconv.Itoa(len(migrations)))
}
