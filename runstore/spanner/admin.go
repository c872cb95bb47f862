package spanner

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"cloud.google.com/go/iam/apiv1/iampb"
	database "cloud.google.com/go/spanner/admin/database/apiv1"
	"cloud.google.com/go/spanner/admin/database/apiv1/databasepb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter/outcome"
	"github.com/tapestore/tapestore/runstore/admin"
)

func init() {
	admin.Register("spanner", admin.Engine{
		Plan: func(ctx context.Context, u runstore.URL) (p admin.Plan, err error) {
			err = withAdmin(ctx, u, func(s *engine, client *database.DatabaseAdminClient) (err error) {
				p, err = s.plan(ctx, client)
				return err
			})
			return p, err
		},
		Apply: func(ctx context.Context, u runstore.URL) error {
			return withAdmin(ctx, u, func(s *engine, client *database.DatabaseAdminClient) error {
				s.opts.NoCreate = false
				if err := s.ensure(ctx, client); err != nil {
					return err
				}
				return s.withClient(ctx, func() error {
					return s.retryUnbounded(ctx, func(ctx context.Context) error { return s.migrate(ctx, client) })
				})
			})
		},
		Check: func(ctx context.Context, u runstore.URL) []admin.Finding {
			var r admin.Report
			err := withAdmin(ctx, u, func(s *engine, client *database.DatabaseAdminClient) error {
				s.check(ctx, client, &r)
				return nil
			})
			if err != nil {
				r.Fail("connection", err.Error(), "check the URL and the credentials")
			}
			return r
		},
	})
}

// withAdmin calls f with an engine that has no client, and a client of the Admin API.
func withAdmin(ctx context.Context, u runstore.URL, f func(s *engine, client *database.DatabaseAdminClient) error) error {
	const op = "administer spanner store"
	opts, err := ParseURL(u)
	if err != nil {
		return err
	}
	s, err := newEngine(ctx, nil, opts)
	if err != nil {
		return outcome.Wrap(op, "", err)
	}
	defer s.stop()
	client, err := database.NewDatabaseAdminClient(ctx, s.clientOptions()...)
	if err == nil {
		defer func() { _ = client.Close() }() // no call is pending
		err = f(s, client)
	}
	if err != nil {
		return outcome.Wrap(op, "", outcome.NotApplied(ctx, err))
	}
	return nil
}

// withClient calls f while the engine has a client of the database.
func (s *engine) withClient(ctx context.Context, f func() error) error {
	if err := s.dial(ctx); err != nil {
		return err
	}
	defer s.closeClient()
	return f()
}

// describe returns the database's description, nil if the account may not read it, or errMissing. It
// stores the database's creation time in s.created.
func (s *engine) describe(ctx context.Context, client *database.DatabaseAdminClient) (found *databasepb.Database, err error) {
	err = s.retry(ctx, func(ctx context.Context) (err error) {
		found, err = client.GetDatabase(ctx, &databasepb.GetDatabaseRequest{Name: s.opts.database()})
		switch status.Code(err) {
		case codes.NotFound:
			return errMissing
		case codes.PermissionDenied:
			found, err = nil, nil
		}
		return err
	})
	if created := found.GetCreateTime(); err == nil && created != nil {
		s.created = created.AsTime().Format(time.RFC3339Nano)
	}
	return found, err
}

// plan compares the schema with this program's.
func (s *engine) plan(ctx context.Context, client *database.DatabaseAdminClient) (admin.Plan, error) {
	p := admin.Plan{Holder: "database " + s.opts.database(), Program: len(migrations)}
	_, err := s.describe(ctx, client)
	if errors.Is(err, errMissing) {
		p.Steps = []admin.Step{{Name: "create the database", Statements: []string{"CREATE DATABASE `" + s.opts.Database + "`;"}}}
		for i, statements := range migrations {
			p.Steps = append(p.Steps, ddl(i, statements))
		}
		return p, nil
	}
	if err != nil {
		return p, err
	}
	err = s.withClient(ctx, func() (err error) {
		if p.Version, _, err = s.version(ctx); err != nil {
			return err
		}
		if p.Version > len(migrations) {
			return newerSchema(p.Version)
		}
		for i := p.Version; i < len(migrations); i++ {
			pending, err := s.pending(ctx, migrations[i])
			if err != nil {
				return err
			}
			p.Steps = append(p.Steps, ddl(i, pending))
		}
		return nil
	})
	return p, err
}

// ddl returns the step of a migration, which is the index of its version less 1.
func ddl(i int, statements []string) admin.Step {
	step := admin.Step{Name: fmt.Sprintf("version %d", i+1)}
	for _, one := range statements {
		step.Statements = append(step.Statements, one+";")
	}
	return step
}

// servingPermissions are the permissions that serving needs, and identifyPermission the one that
// notices a restore under the same name. All are in roles/spanner.databaseUser.
var servingPermissions = []string{
	"spanner.databases.select", "spanner.databases.write", "spanner.databases.beginOrRollbackReadWriteTransaction",
	"spanner.databases.beginReadOnlyTransaction", "spanner.databases.beginPartitionedDmlTransaction",
	"spanner.sessions.create", "spanner.sessions.delete", "spanner.sessions.get",
}

const identifyPermission = "spanner.databases.get"

// check checks the database.
func (s *engine) check(ctx context.Context, client *database.DatabaseAdminClient, r *admin.Report) {
	found, err := s.describe(ctx, client)
	switch {
	case errors.Is(err, errMissing):
		r.Fail("schema", "there is no database "+s.opts.database(), "check the URL, or create the store: tapestore migrate --apply, as an account that may create it")
		return
	case err != nil:
		r.Fail("connection", err.Error(), "check the URL, the credentials and the network")
		return
	case found == nil:
		r.Warn("database", "this account may not read its description ("+identifyPermission+"): a restore under the same name is not noticed",
			"grant roles/spanner.databaseUser, or raise the epoch by hand after a restore")
	case found.GetState() == databasepb.Database_CREATING:
		r.Fail("database", "is being created", "repeat when it is ready")
		return
	case found.GetDatabaseDialect() == databasepb.DatabaseDialect_POSTGRESQL:
		r.Fail("database", "has the PostgreSQL dialect", "give the store a database in the GoogleSQL dialect")
		return
	default:
		r.OK("database", "%s, GoogleSQL, versions kept for %s", strings.ToLower(found.GetState().String()), orUnknown(found.GetVersionRetentionPeriod()))
	}
	p, err := s.plan(ctx, client)
	r.Schema(p, err)
	if err != nil || len(p.Steps) > 0 {
		return
	}
	s.checkPermissions(ctx, client, r)
	r.OK("isolation", "every write is SERIALIZABLE with pessimistic locks, set in each transaction")
	if err := s.withClient(ctx, func() error { return s.checkStoreRow(ctx, r) }); err != nil {
		r.Fail("incarnation", err.Error(), "see the message")
	}
}

func orUnknown(text string) string {
	if text == "" {
		return "an unknown time"
	}
	return text
}

// checkPermissions asks which permissions the account has.
func (s *engine) checkPermissions(ctx context.Context, client *database.DatabaseAdminClient, r *admin.Report) {
	switch {
	case s.opts.Role != "":
		r.OK("permissions", "those of the database role %q, which Spanner checks at each request", s.opts.Role)
		return
	case s.local != "":
		r.OK("permissions", "an emulator checks none")
		return
	}
	asked := append([]string{identifyPermission}, servingPermissions...)
	var granted *iampb.TestIamPermissionsResponse
	err := s.retry(ctx, func(ctx context.Context) (err error) {
		granted, err = client.TestIamPermissions(ctx, &iampb.TestIamPermissionsRequest{Resource: s.opts.database(), Permissions: asked})
		return err
	})
	if err != nil {
		r.Warn("permissions", "cannot be asked: "+err.Error(), "check by hand that the account has roles/spanner.databaseUser")
		return
	}
	missing := slices.DeleteFunc(slices.Clone(servingPermissions), func(p string) bool { return slices.Contains(granted.GetPermissions(), p) })
	if len(missing) > 0 {
		r.Fail("permissions", "the account lacks "+strings.Join(missing, ", "), "grant roles/spanner.databaseUser on the database")
		return
	}
	r.OK("permissions", "the account may read and write the database")
}

// checkStoreRow compares the database with the one that the epoch belongs to.
func (s *engine) checkStoreRow(ctx context.Context, r *admin.Report) error {
	now, err := s.readStoreRow(ctx)
	switch {
	case err != nil:
		return err
	case !now.initialized():
		r.KeepClosed("incarnation", "no program has opened the store yet", "start the server, and repeat")
	case !s.sameIncarnation(now.Incarnation):
		r.KeepClosed("incarnation", fmt.Sprintf("the epoch belongs to %s, and this is %s: the next program that opens the store raises the epoch", now.Incarnation, s.incarnation()),
			"expected after a restore or a copy: start the server; otherwise check the URL")
	case !now.Ended:
		r.KeepClosed("incarnation", "a raise of the epoch was cut short: the next program that opens the store finishes it", "start the server, or tapestore epoch raise again")
	default:
		r.OK("incarnation", "%s, as the epoch has it", now.Incarnation)
	}
	return nil
}
