package sqlite

import (
	"context"
	"crypto/rand"
	"embed"
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter"
)

//go:embed schema/*.sql
var schema embed.FS

// applicationID marks the databases of this package ("Tape"), so that a file of another program is
// refused before anything is written to it.
const applicationID = 0x54617065

// migrations returns the schema's steps in order: migrations[0] leads from an empty file to version
// 1.
func migrations() []string {
	names, err := fs.Glob(schema, "schema/*.sql")
	if err != nil {
		panic(err) // the pattern is constant
	}
	steps := make([]string, len(names))
	for i, name := range names { // Glob sorts
		if want := fmt.Sprintf("schema/%04d_", i+1); !strings.HasPrefix(name, want) {
			panic(fmt.Sprintf("sqlite: migration %s is out of order, want %s…", name, want))
		}
		sql, err := schema.ReadFile(name)
		if err != nil {
			panic(err)
		}
		steps[i] = string(sql)
	}
	return steps
}

// identify returns the schema version of a file without changing the file: 0 for an empty one. It
// reads in its own transaction: another process that migrates may commit at any moment, and
// separate reads could mix the states before and after that commit.
func identify(ctx context.Context, c *conn, known int) (version int, err error) {
	if err := c.script(ctx, "BEGIN"); err != nil {
		return 0, err
	}
	defer func() {
		if ended := c.script(context.WithoutCancel(ctx), "ROLLBACK"); err == nil {
			err = ended
		}
	}()
	return schemaVersion(ctx, c, known)
}

// schemaVersion is identify within a transaction that the caller has begun.
func schemaVersion(ctx context.Context, c *conn, known int) (version int, err error) {
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
	case version > known:
		return 0, newerSchema(version, known)
	}
	return version, nil
}

// newerSchema returns the error for a database that a newer program has migrated.
func newerSchema(version, known int) error {
	return &runstore.InputError{Kind: runstore.ErrUnsupported, Field: "schema", Problem: fmt.Sprintf(
		"version %d of the database is newer than this program's %d; use a newer program", version, known)}
}

// refuseNewer returns an error in a transaction that has just begun if a newer program has migrated
// the database since this handle opened it, because this program might drop data that it does not
// know. The check is cheap: the version is in the file's header, which the transaction has read.
func (db *database) refuseNewer(ctx context.Context, c *conn) error {
	row, err := c.one(ctx, "PRAGMA user_version")
	if err == nil && row[0].(int64) <= int64(db.known) {
		return nil
	}
	if err != nil {
		return err
	}
	return newerSchema(int(row[0].(int64)), db.known)
}

// migrate brings the schema up to date in one transaction. When several processes start at once,
// each sees the steps that the previous process completed.
func migrate(ctx context.Context, c *conn) error {
	steps := migrations()
	version := 0
	// Even a read meets a lock while another process changes the journal mode.
	err := retryWhileBusy(ctx, func() (err error) {
		version, err = identify(ctx, c, len(steps))
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
	if version == len(steps) {
		return nil
	}
	if err := retryWhileBusy(ctx, func() error { return c.script(ctx, "BEGIN IMMEDIATE") }); err != nil {
		return err
	}
	if err := takeSteps(ctx, c, steps); err != nil {
		_ = c.script(ctx, "ROLLBACK") // the first error is the one to report
		return err
	}
	return retryWhileBusy(ctx, func() error { return c.script(ctx, "COMMIT") })
}

func takeSteps(ctx context.Context, c *conn, steps []string) error {
	version, err := schemaVersion(ctx, c, len(steps))
	if err != nil {
		return err
	}
	for i := version; i < len(steps); i++ {
		if err := c.script(ctx, steps[i]); err != nil {
			return fmt.Errorf("schema version %d: %w", i+1, err)
		}
	}
	if version == 0 {
		_, err := c.exec(ctx, sqlStoreInsert, rand.Text())
		if err != nil {
			return err
		}
	}
	return c.script(ctx, "PRAGMA application_id = "+strconv.Itoa(applicationID)+
		"; PRAGMA user_version = "+strconv.Itoa(len(steps)))
}

// oldestSound is the oldest SQLite without the WAL-reset bug. In older versions, two connections
// that wrote or checkpointed at the same moment could corrupt the file (fixed in 3.51.3 of March
// 2026).
const oldestSound = "3.51.3"

// checkVersion refuses a version of the library that may corrupt the file.
func checkVersion(version string) error {
	var have, want [3]int
	for i, v := range []string{version, oldestSound} {
		n := &have
		if i == 1 {
			n = &want
		}
		if _, err := fmt.Sscanf(v, "%d.%d.%d", &n[0], &n[1], &n[2]); err != nil {
			return &runstore.InputError{Kind: runstore.ErrUnsupported, Field: "SQLite version", Problem: fmt.Sprintf("%q cannot be read", v)}
		}
	}
	for i := range have {
		if have[i] > want[i] {
			return nil
		}
		if have[i] < want[i] {
			return &runstore.InputError{Kind: runstore.ErrUnsupported, Field: "SQLite version", Problem: fmt.Sprintf(
				"%s may corrupt a database that two connections write to; the oldest allowed is %s", version, oldestSound)}
		}
	}
	return nil
}
