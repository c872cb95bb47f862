package bigtable

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"cloud.google.com/go/bigtable"
	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"
	"google.golang.org/api/option"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter/outcome"
	"github.com/tapestore/tapestore/runstore/admin"
)

// The column families. A run's row uses several, so that each read selects only the cells that it needs.
// In all of them only the latest version of a cell counts, and every read selects only that version, so
// correctness does not depend on when Bigtable collects the older ones.
const (
	familyHead    = "h" // the head, and when its lease was last granted or renewed
	familyEvents  = "e" // the recent events, by seq
	familyRecords = "r" // the records, by key
	familyBatches = "b" // the results of the last batches that carried an id
	familyFeed    = "f" // how many of the run's events the feed has, see highwater.go
	familyClock   = "c" // the clock cell, written by read-modify-write only
	familyOther   = "x" // the cells of all other rows; in a run's row the former grants and the list of moves
)

var families = map[string]bigtable.GCPolicy{
	familyHead: keepOne, familyEvents: keepOne, familyRecords: keepOne, familyBatches: keepOne,
	familyFeed: keepOne, familyClock: keepOne, familyOther: keepOne,
}

var keepOne = bigtable.MaxVersionsPolicy(1)

// prepare creates the table and its families if they are missing.
func (s *engine) prepare(ctx context.Context, tables *bigtable.AdminClient) error {
	info, err := s.tableInfo(ctx, tables)
	if err != nil {
		return err
	}
	steps := s.steps(info)
	switch {
	case len(steps) == 0:
		return nil
	case s.opts.NoCreate:
		problem := "the table " + s.opts.Table + " lacks families; create them: "
		if info == nil {
			problem = "there is no table " + s.opts.Table + "; create it: "
		}
		var commands []string
		for _, step := range steps {
			commands = append(commands, step.Statements...)
		}
		return outcome.Unavailable(errors.New("bigtable: " + problem + strings.Join(commands, "; ")))
	case info == nil:
		err := tables.CreateTableFromConf(ctx, &bigtable.TableConf{TableID: s.opts.Table, Families: families})
		return unlessExists(err)
	}
	for _, family := range missingFamilies(info) {
		config := bigtable.Family{GCPolicy: families[family]}
		if err := unlessExists(tables.CreateColumnFamilyWithConfig(ctx, s.opts.Table, family, config)); err != nil {
			return err
		}
	}
	return nil
}

// unlessExists returns err, or nil if another handle has created the same.
func unlessExists(err error) error {
	if status.Code(err) == codes.AlreadyExists {
		return nil
	}
	return err
}

// tableInfo returns what the Admin API says about the table, and nil if there is none. It refuses a family whose
// cells may be collected by age: the timestamps of most cells name epochs and are no times (failover.go), so all
// would be deleted.
func (s *engine) tableInfo(ctx context.Context, tables *bigtable.AdminClient) (*bigtable.TableInfo, error) {
	info, err := tables.TableInfo(ctx, s.opts.Table)
	if status.Code(err) == codes.NotFound {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	for _, f := range info.FamilyInfos {
		if _, ours := families[f.Name]; ours && strings.Contains(f.GCPolicy, "age") {
			return nil, outcome.Unavailable(fmt.Errorf("bigtable: the garbage collection of family %s (%s) goes by age and would delete the store; set maxversions=1", f.Name, f.GCPolicy))
		}
	}
	return info, nil
}

// missingFamilies returns the families that a table lacks; all of them if info is nil.
func missingFamilies(info *bigtable.TableInfo) []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(families)), func(family string) bool {
		return info != nil && slices.Contains(info.Families, family)
	})
}

// steps returns the steps that create what a table lacks. info is nil if there is no table.
func (s *engine) steps(info *bigtable.TableInfo) (steps []admin.Step) {
	cbt := fmt.Sprintf("cbt -project %s -instance %s ", s.opts.Project, s.opts.Instance)
	missing := missingFamilies(info)
	if info == nil {
		all := strings.Join(missing, ":maxversions=1,") + ":maxversions=1"
		return []admin.Step{{Name: "create the table", Statements: []string{cbt + "createtable " + s.opts.Table + " families=" + all}}}
	}
	for _, family := range missing {
		steps = append(steps, admin.Step{Name: "create the family " + family, Statements: []string{
			cbt + "createfamily " + s.opts.Table + " " + family,
			cbt + "setgcpolicy " + s.opts.Table + " " + family + " maxversions=1",
		}})
	}
	return steps
}

// readRestored sets restored to the name and the start time of the backup from which the table was restored,
// or to "" if it was not restored. A backup has only what was written before its start, so the table that is
// restored from it records another backup, or none.
func (s *engine) readRestored(ctx context.Context, tables *bigtable.AdminClient) error {
	return s.retry(ctx, func(ctx context.Context) error {
		table, err := tables.TableAdminClientV2().GetTable(ctx, &adminpb.GetTableRequest{
			Name: fmt.Sprintf("projects/%s/instances/%s/tables/%s", s.opts.Project, s.opts.Instance, s.opts.Table), View: adminpb.Table_FULL,
		})
		if err != nil {
			return err
		}
		if s.restored = ""; table.GetRestoreInfo() != nil {
			backup := table.GetRestoreInfo().GetBackupInfo()
			s.restored = backup.GetBackup() + "@" + backup.GetStartTime().AsTime().Format(time.RFC3339Nano)
		}
		return nil
	})
}

// checkProfile returns an error if the app profile does not allow conditional mutations. If the account may
// not read app profiles, it logs a warning, and the first write fails.
func (s *engine) checkProfile(ctx context.Context, clientOpts []option.ClientOption) error {
	problem, change, err := s.readProfile(ctx, clientOpts)
	switch c := status.Code(err); {
	case c == codes.PermissionDenied || c == codes.Unimplemented:
		s.opts.Logger.Warn("bigtable: the app profile cannot be read; it must route to a single cluster and allow single-row transactions",
			"profile", s.profileName(), "error", err)
		return nil
	case problem != "":
		return outcome.Unavailable(fmt.Errorf("bigtable: the app profile %s; change it: %s", problem, change))
	}
	return err
}

// readProfile reads the app profile and judges it.
func (s *engine) readProfile(ctx context.Context, clientOpts []option.ClientOption) (problem, change string, err error) {
	instances, err := bigtable.NewInstanceAdminClient(ctx, s.opts.Project, clientOpts...)
	if err != nil {
		return "", "", err
	}
	defer func() { _ = instances.Close() }() // no call is pending
	err = s.retry(ctx, func(ctx context.Context) error {
		found, err := instances.GetAppProfile(ctx, s.opts.Instance, s.profileName())
		if err == nil {
			problem, change = s.judgeProfile(found)
		}
		return err
	})
	return problem, change, err
}

// judgeProfile sets the cluster if the app profile allows conditional mutations. Otherwise it returns the problem, and
// the command that changes the profile.
func (s *engine) judgeProfile(found *adminpb.AppProfile) (problem, change string) {
	problem = "routes to several clusters, where conditional mutations are not atomic"
	if single := found.GetSingleClusterRouting(); single.GetAllowTransactionalWrites() {
		s.cluster = single.GetClusterId()
		return "", ""
	} else if single != nil {
		problem = "routes to the cluster " + single.GetClusterId() + " but allows no single-row transactions"
	}
	return s.profileName() + " " + problem, fmt.Sprintf("gcloud bigtable app-profiles update %s --project=%s --instance=%s --route-to=CLUSTER --transactional-writes",
		s.profileName(), s.opts.Project, s.opts.Instance)
}

// profileName returns the name of the app profile.
func (s *engine) profileName() string {
	if s.opts.AppProfile == "" {
		return "default"
	}
	return s.opts.AppProfile
}

// Describe implements runstore.Describer.
func (s *Store) Describe(context.Context) (runstore.Description, error) {
	d := runstore.Description{Engine: "bigtable", Version: "v2 API", Tier: "service"}
	if s.engine.emulated {
		d.Tier = "emulator"
	}
	return d, nil
}

// LeaseVector describes how the engine keeps leases.
func LeaseVector() runstore.LeaseVector {
	return runstore.EngineLeases(
		"the head cell of the run's row; timestamps that Bigtable assigns to cells",
		"in the predicate of the one conditional mutation of each write")
}
