package bigtable

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"cloud.google.com/go/bigtable"
	"cloud.google.com/go/iam/apiv1/iampb"
	"google.golang.org/api/option"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter/outcome"
	"github.com/tapestore/tapestore/runstore/admin"
)

func init() {
	admin.Register("bigtable", admin.Engine{
		Plan: func(ctx context.Context, u runstore.URL) (p admin.Plan, err error) {
			err = withAdmin(ctx, u, func(a *administration) (err error) {
				p, err = a.plan(ctx)
				return err
			})
			return p, err
		},
		Apply: func(ctx context.Context, u runstore.URL) error {
			return withAdmin(ctx, u, func(a *administration) error { return a.apply(ctx) })
		},
		Check: func(ctx context.Context, u runstore.URL) []admin.Finding {
			var r admin.Report
			err := withAdmin(ctx, u, func(a *administration) error {
				a.check(ctx, &r)
				return nil
			})
			if err != nil {
				r.Fail("connection", err.Error(), "check the URL and the credentials")
			}
			return r
		},
	})
}

// administration is an engine without background work, and a client of the Admin API.
type administration struct {
	*engine
	tables     *bigtable.AdminClient
	clientOpts []option.ClientOption
}

// withAdmin calls f with an administration of the table that a URL names.
func withAdmin(ctx context.Context, u runstore.URL, f func(a *administration) error) error {
	const op = "administer bigtable store"
	opts, err := ParseURL(u)
	if err != nil {
		return err
	}
	s, err := newEngine(ctx, nil, opts)
	if err != nil {
		return outcome.Wrap(op, "", err)
	}
	defer s.stop()
	if err := s.administer(ctx, f); err != nil {
		return outcome.Wrap(op, "", outcome.NotApplied(ctx, err))
	}
	return nil
}

func (s *engine) administer(ctx context.Context, f func(a *administration) error) error {
	clientOpts, adminOpts, err := s.transport()
	if err != nil {
		return err
	}
	if s.conn != nil {
		defer func() { _ = s.conn.Close() }() // unless the data client has closed it
	}
	tables, err := bigtable.NewAdminClient(ctx, s.opts.Project, s.opts.Instance, adminOpts...)
	if err != nil {
		return err
	}
	defer func() { _ = tables.Close() }() // no call is pending
	a := &administration{engine: s, tables: tables, clientOpts: clientOpts}
	defer a.close()
	return f(a)
}

// close closes the data client, if there is one.
func (a *administration) close() {
	if a.client != nil {
		_ = a.client.Close() // no request is under way
	}
}

// needClient makes the data client, unless there is one.
func (a *administration) needClient(ctx context.Context) error {
	if a.client != nil {
		return nil
	}
	return a.dialData(ctx, a.clientOpts)
}

// raiseFormat begins the name of the step that [engine.upgradeFormat] makes.
const raiseFormat = "raise the format of the store"

// plan compares the table with what this program needs. The format of the store is compared only if
// the account may read the table, so that an account that may only change tables can migrate.
func (a *administration) plan(ctx context.Context) (admin.Plan, error) {
	p := admin.Plan{Holder: fmt.Sprintf("table %s of instance %s in project %s", a.opts.Table, a.opts.Instance, a.opts.Project)}
	var info *bigtable.TableInfo
	err := a.retry(ctx, func(ctx context.Context) (err error) {
		info, err = a.tableInfo(ctx, a.tables)
		return err
	})
	if err != nil {
		return p, err
	}
	p.Steps = a.steps(info)
	if slices.Contains(missingFamilies(info), familyOther) {
		return p, nil // the family of the format is missing, so there is no store of any format
	}
	x, err := a.storedEpochs(ctx)
	switch {
	case err != nil:
		return p, err
	case x != nil && x.stored != nil && x.Format < format:
		p.Steps = append(p.Steps, admin.Step{
			Name:       fmt.Sprintf(raiseFormat+" from %d to %d: older programs can no longer open it", max(x.Format, 1), format),
			Statements: []string{fmt.Sprintf("conditional mutation of the row %q", epochKey(0))},
		})
	}
	return p, nil
}

// storedEpochs reads the row of epochs; nil if the account may not.
func (a *administration) storedEpochs(ctx context.Context) (*epochs, error) {
	if err := a.needClient(ctx); err != nil {
		return nil, err
	}
	x, err := a.readEpochs(ctx)
	if status.Code(err) == codes.PermissionDenied {
		return nil, nil
	}
	return x, err
}

// apply creates what is missing, and raises the format of a store that exists.
func (a *administration) apply(ctx context.Context) error {
	a.opts.NoCreate = false
	if err := a.retry(ctx, func(ctx context.Context) error { return a.prepare(ctx, a.tables) }); err != nil {
		return err
	}
	for {
		x, err := a.storedEpochs(ctx)
		if err != nil || x == nil || x.stored == nil || x.Format >= format {
			return err
		}
		if err := a.upgradeFormat(ctx, x); err != nil {
			return err
		}
	}
}

// servingPermissions are the permissions that serving needs. All are in roles/bigtable.user.
var servingPermissions = []string{"bigtable.tables.get", "bigtable.tables.readRows", "bigtable.tables.mutateRows"}

// check checks the table and the app profile.
func (a *administration) check(ctx context.Context, r *admin.Report) {
	p, err := a.plan(ctx)
	if err == nil && len(p.Steps) == 1 && strings.HasPrefix(p.Steps[0].Name, raiseFormat) {
		r.KeepClosed("schema", p.Holder+" needs a step: "+p.Steps[0].Name, "replace the older programs first; the next program that opens the store, or tapestore migrate --apply, does it")
	} else {
		r.Schema(p, err)
	}
	if err != nil || len(p.Steps) > 0 {
		return
	}
	if a.emulated {
		r.OK("app profile", "an emulator has none: every request is on one cluster")
		r.OK("permissions", "an emulator checks none")
	} else {
		a.profile(ctx, r)
		a.permissions(ctx, r)
	}
	a.checkIncarnation(ctx, r)
}

// profile checks the routing of the app profile.
func (a *administration) profile(ctx context.Context, r *admin.Report) {
	name := a.profileName()
	problem, change, err := a.readProfile(ctx, a.clientOpts)
	switch {
	case err != nil:
		r.Warn("app profile", fmt.Sprintf("%s cannot be read: %v", name, err),
			"check by hand that it routes to a single cluster and allows single-row transactions; or grant bigtable.appProfiles.get")
	case problem != "":
		r.Fail("app profile", problem, change)
	default:
		r.OK("app profile", "%s routes to the cluster %s and allows single-row transactions", name, a.cluster)
	}
}

// permissions asks which permissions the account has.
func (a *administration) permissions(ctx context.Context, r *admin.Report) {
	resource := fmt.Sprintf("projects/%s/instances/%s/tables/%s", a.opts.Project, a.opts.Instance, a.opts.Table)
	var granted *iampb.TestIamPermissionsResponse
	err := a.retry(ctx, func(ctx context.Context) (err error) {
		granted, err = a.tables.TableAdminClientV2().TestIamPermissions(ctx, &iampb.TestIamPermissionsRequest{Resource: resource, Permissions: servingPermissions})
		return err
	})
	if err != nil {
		r.Warn("permissions", "cannot be asked: "+err.Error(), "check by hand that the account has roles/bigtable.user")
		return
	}
	missing := slices.DeleteFunc(slices.Clone(servingPermissions), func(p string) bool { return slices.Contains(granted.GetPermissions(), p) })
	if len(missing) > 0 {
		r.Fail("permissions", "the account lacks "+strings.Join(missing, ", "), "grant roles/bigtable.user on the table or the instance")
		return
	}
	r.OK("permissions", "the account may read and write the table")
}

// checkIncarnation compares the table with the one that the epoch belongs to.
func (a *administration) checkIncarnation(ctx context.Context, r *admin.Report) {
	err := a.readRestored(ctx, a.tables)
	var x *epochs
	if err == nil {
		x, err = a.storedEpochs(ctx)
	}
	if err != nil {
		r.Fail("incarnation", err.Error(), "see the message")
		return
	}
	a.judgeIncarnation(x, r)
}

// judgeIncarnation judges the stored epochs, nil if the account may not read them.
func (a *administration) judgeIncarnation(x *epochs, r *admin.Report) {
	const start = "start the server, and repeat"
	switch {
	case x == nil:
		r.Fail("permissions", "the account may not read the table", "grant roles/bigtable.user on the table or the instance")
	case x.stored == nil:
		r.KeepClosed("incarnation", "no program has opened the store yet", start)
	case !a.sameIncarnation(x.Incarnation):
		r.KeepClosed("incarnation", fmt.Sprintf("the epoch belongs to %s, and this is %s: the next program that opens the store raises the epoch", x.Incarnation, a.incarnation()),
			"expected after a restore, a copy or a failover: start the server; otherwise check the URL")
	case !x.Ended:
		r.KeepClosed("incarnation", "a raise of the epoch was cut short: the next program that opens the store finishes it", start)
	case strings.Contains(x.Incarnation, unknownCluster) && !a.emulated:
		r.Warn("incarnation", fmt.Sprintf("%s has no cluster, so a failover does not raise the epoch", x.Incarnation),
			"grant bigtable.appProfiles.get to the server's account, and start the server again")
	default:
		r.OK("incarnation", "%s, as the epoch has it; format %d", x.Incarnation, x.Format)
	}
}
