package spanner

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"slices"
	"strings"

	"cloud.google.com/go/spanner"
	database "cloud.google.com/go/spanner/admin/database/apiv1"
	"cloud.google.com/go/spanner/admin/database/apiv1/databasepb"
	instance "cloud.google.com/go/spanner/admin/instance/apiv1"
	"cloud.google.com/go/spanner/admin/instance/apiv1/instancepb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tapestore/tapestore/internal/pace"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter"
	"github.com/tapestore/tapestore/runstore/adapter/outcome"
	"github.com/tapestore/tapestore/runstore/adapter/sqlfile"
)

//go:embed schema/*.sql
var schema embed.FS

// migrations are the DDL statements of each version of the schema; index 0 is version 1.
//
// A program refuses to open a database whose version is newer than its own. An open handle does not
// check the version again, which would cost each transaction a read. So a migration that older
// programs must not write through renames a table or column that they name: their statements then
// fail, and nothing is applied.
var migrations = readMigrations()

func readMigrations() (all [][]string) {
	for _, step := range sqlfile.Steps(schema) {
		all = append(all, statements(step.Text))
	}
	return all
}

// statements splits a file into its statements and removes comments. It relies on no statement
// having a semicolon or two dashes inside a string.
func statements(text string) (all []string) {
	var code strings.Builder
	for line := range strings.Lines(text) {
		before, _, _ := strings.Cut(line, "--")
		code.WriteString(strings.TrimRight(before, " \t\n") + "\n")
	}
	for one := range strings.SplitSeq(code.String(), ";") {
		if one = strings.TrimSpace(one); one != "" {
			all = append(all, one)
		}
	}
	return all
}

// ensure creates the database if it is missing, waits until it is ready, and reads its creation
// time. If the account may not read the database's description, ensure assumes that it exists. Only
// ctx bounds a creation.
func (s *engine) ensure(ctx context.Context, admin *database.DatabaseAdminClient) error {
	for {
		found, err := s.describe(ctx, admin)
		switch {
		case err == nil && found == nil:
			s.opts.Logger.Warn("spanner: the account may not read when the database was created (spanner.databases.get): a restore under the same name is not noticed",
				"database", s.opts.database())
			return nil
		case err == nil && found.GetState() != databasepb.Database_CREATING:
			return nil
		case err == nil: // another handle is creating it
			if !pace.Pause(ctx, outcome.MaxPause) {
				return ctx.Err()
			}
		case !errors.Is(err, errMissing):
			return err
		case s.opts.NoCreate:
			return outcome.Unavailable(fmt.Errorf("spanner: there is no database %s; create it: gcloud spanner databases create %s --instance=%s --project=%s",
				s.opts.database(), s.opts.Database, s.opts.Instance, s.opts.Project))
		default:
			if err := s.retryUnbounded(ctx, func(ctx context.Context) error { return s.create(ctx, admin) }); err != nil {
				return err
			}
		}
	}
}

// errMissing reports that the database does not exist.
var errMissing = outcome.WithKind(runstore.ErrNotFound, errors.New("spanner: there is no such database"))

// create creates the database, and on an emulator its instance too.
func (s *engine) create(ctx context.Context, admin *database.DatabaseAdminClient) error {
	request := &databasepb.CreateDatabaseRequest{Parent: s.opts.instance(), CreateStatement: "CREATE DATABASE `" + s.opts.Database + "`"}
	made, err := admin.CreateDatabase(ctx, request)
	if err != nil && s.local != "" && status.Code(err) == codes.NotFound {
		if err := s.createInstance(ctx); err != nil {
			return err
		}
		made, err = admin.CreateDatabase(ctx, request)
	}
	switch {
	case status.Code(err) == codes.AlreadyExists:
		return nil
	case status.Code(err) == codes.NotFound:
		return outcome.Unavailable(fmt.Errorf("spanner: there is no instance %s in project %s: %w", s.opts.Instance, s.opts.Project, err))
	case err != nil:
		return err
	}
	_, err = made.Wait(ctx)
	return err
}

// createInstance creates the instance on an emulator.
func (s *engine) createInstance(ctx context.Context) error {
	instances, err := instance.NewInstanceAdminClient(ctx, s.clientOptions()...)
	if err != nil {
		return err
	}
	defer func() { _ = instances.Close() }() // no call is pending
	made, err := instances.CreateInstance(ctx, &instancepb.CreateInstanceRequest{
		Parent: "projects/" + s.opts.Project, InstanceId: s.opts.Instance,
		Instance: &instancepb.Instance{Config: "projects/" + s.opts.Project + "/instanceConfigs/emulator-config", DisplayName: s.opts.Instance, NodeCount: 1},
	})
	if status.Code(err) == codes.AlreadyExists {
		return nil
	}
	if err != nil {
		return err
	}
	_, err = made.Wait(ctx)
	return err
}

// feedRefers is the version of the schema since which a row of Feed only refers to its event. The
// migration to this version empties the older rows before it records the version, and programs of
// older versions can no longer write then, so a database of this version has no other rows.
const feedRefers = 4

// migrate brings the schema to the version of this program: one batch of DDL statements, the update
// that empties the rows of Feed if they may hold events, then one transaction that records the
// versions. Every statement can be repeated, so several replicas may migrate at once, and one may be
// killed at any point.
func (s *engine) migrate(ctx context.Context, admin *database.DatabaseAdminClient) error {
	version, empty, err := s.version(ctx)
	if err != nil {
		return err
	}
	if version > len(migrations) {
		return newerSchema(version)
	}
	if version < len(migrations) && s.opts.NoCreate {
		return &runstore.InputError{Kind: runstore.ErrUnsupported, Field: "schema", Problem: fmt.Sprintf(
			"the database is at version %d of %d, and may not be migrated; open it once without create=no, as an account with roles/spanner.databaseUser", version, len(migrations))}
	}
	if version == len(migrations) {
		return nil
	}
	pending := slices.Concat(migrations[version:]...)
	if !empty { // an empty database has no policy: it need not be asked
		if pending, err = s.pending(ctx, pending); err != nil {
			return err
		}
	}
	changed, err := admin.UpdateDatabaseDdl(ctx, &databasepb.UpdateDatabaseDdlRequest{
		Database: s.opts.database(), Statements: pending,
	})
	if err == nil {
		err = changed.Wait(ctx)
	}
	if status.Code(err) == codes.FailedPrecondition { // another replica is migrating, or on the emulator a transaction is open
		return status.Error(codes.Unavailable, err.Error())
	}
	if err != nil {
		if left, failed := s.pending(ctx, pending); failed == nil && len(left) < len(pending) { // another replica has migrated meanwhile
			return status.Error(codes.Unavailable, err.Error())
		}
		return err
	}
	if version > 0 && version < feedRefers {
		if _, err := s.client.PartitionedUpdateWithOptions(ctx, spanner.Statement{SQL: sqlSchemaEmptyFeed}, s.query("migrate")); err != nil {
			return err
		}
	}
	return s.migrated(ctx, version)
}

// pending returns the statements without ADD ROW DELETION POLICY if that was executed before: it is
// the only statement that cannot be repeated.
func (s *engine) pending(ctx context.Context, all []string) ([]string, error) {
	policies, _, err := selectOne[int64](ctx, s, s.sql("policies", spanner.Statement{SQL: sqlSchemaPolicies}))
	return slices.DeleteFunc(slices.Clone(all), func(one string) bool { return policies > 0 && strings.Contains(one, " ADD ROW DELETION POLICY ") }), err
}

// migrated records that the schema has this program's version and had the given one before. The
// same transaction writes the epoch to GrantEpochs, which replaced another table. No program can
// raise the epoch in between: programs of versions 2 and 3 write a table that is gone, and a
// program of this version first finishes opening the store.
func (s *engine) migrated(ctx context.Context, version int) error {
	return s.writeStoreRow(ctx, "migrate", func(now storeRow) (list []*spanner.Mutation, err error) {
		for v := version; v < len(migrations); v++ {
			list = append(list, spanner.InsertOrUpdate("TapestoreSchema", []string{"Version", "Migrated"}, []any{v + 1, spanner.CommitTimestamp}))
		}
		if now.initialized() {
			list = append(list, epochShards(now.Epoch)...)
		}
		return list, nil
	})
}

// schemaError returns ErrUnsupported if the database was migrated by a newer program while this
// handle was open, and err itself if that did not cause err. The statements of such a handle name a
// table that is gone, so none of its writes is applied. t bounds the read of the version.
func (s *engine) schemaError(ctx context.Context, t *outcome.Backoff, err error) error {
	if code := spanner.ErrCode(err); s.client == nil || code != codes.InvalidArgument && code != codes.NotFound {
		return err
	}
	bound, cancel := t.Attempt(ctx, s.attemptTimeout)
	defer cancel()
	if version, _, failed := s.readVersion(bound); failed == nil && version > len(migrations) {
		return newerSchema(version)
	}
	return err
}

func newerSchema(version int) error {
	return &runstore.InputError{Kind: runstore.ErrUnsupported, Field: "schema", Problem: fmt.Sprintf(
		"the database is at version %d, this program knows %d; use a newer one", version, len(migrations))}
}

// version returns the schema's version, which is 0 until the first migration is recorded, and
// whether the database has no tables at all. It refuses a database that holds other tables.
func (s *engine) version(ctx context.Context) (version int, empty bool, err error) {
	err = s.retry(ctx, func(ctx context.Context) (err error) { version, empty, err = s.readVersion(ctx); return err })
	return version, empty, err
}

// readVersion is one attempt of version.
func (s *engine) readVersion(ctx context.Context) (_ int, empty bool, err error) {
	var version int64
	err = s.client.Single().ReadWithOptions(ctx, "TapestoreSchema", spanner.AllKeys(), []string{"Version"}, s.read("version", 0)).Do(func(row *spanner.Row) error {
		return row.Columns(&version) // rows are in key order: the last is the highest
	})
	if spanner.ErrCode(err) != codes.NotFound { // NOT_FOUND: there is no table TapestoreSchema
		return int(version), false, err
	}
	var tables []string
	err = spanner.SelectAll(s.client.Single().QueryWithOptions(ctx, spanner.Statement{SQL: sqlSchemaTables}, s.query("tables")), &tables)
	if err != nil || len(tables) == 0 || slices.Contains(tables, "TapestoreSchema") {
		return 0, err == nil && len(tables) == 0, err
	}
	return 0, false, adapter.Invalid("database", "%s holds tables that are not a store's (%s); give the store a database of its own", s.opts.database(), tables[0])
}
