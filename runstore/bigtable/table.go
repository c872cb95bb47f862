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
	tableadmin "cloud.google.com/go/bigtable/admin/apiv2"
	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter/outcome"
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
func (s *engine) prepare(ctx context.Context, admin *bigtable.AdminClient) error {
	for {
		info, err := admin.TableInfo(ctx, s.opts.Table)
		switch {
		case status.Code(err) == codes.NotFound && s.opts.NoCreate:
			return outcome.Unavailable(fmt.Errorf("bigtable: there is no table %s; create it: cbt -project %s -instance %s createtable %s families=%s",
				s.opts.Table, s.opts.Project, s.opts.Instance, s.opts.Table, familiesFor(slices.Sorted(maps.Keys(families)), ":maxversions=1", ",")))
		case status.Code(err) == codes.NotFound:
			conf := &bigtable.TableConf{TableID: s.opts.Table, Families: families}
			if err := admin.CreateTableFromConf(ctx, conf); err != nil && status.Code(err) != codes.AlreadyExists {
				return err
			}
			return nil
		case err != nil:
			return err
		}
		var missing []string
		for family := range families {
			if !slices.Contains(info.Families, family) {
				missing = append(missing, family)
			}
		}
		slices.Sort(missing)
		if err := checkCollection(info); err != nil {
			return err
		}
		if len(missing) == 0 {
			return nil
		}
		if s.opts.NoCreate {
			return outcome.Unavailable(fmt.Errorf("bigtable: the table %s lacks families; create them: %s", s.opts.Table,
				familiesFor(missing, "", "; ", "cbt -project "+s.opts.Project+" -instance "+s.opts.Instance+" createfamily "+s.opts.Table+" ")))
		}
		for _, family := range missing {
			if err := admin.CreateColumnFamily(ctx, s.opts.Table, family); err != nil && status.Code(err) != codes.AlreadyExists {
				return err
			}
			if err := admin.SetGCPolicy(ctx, s.opts.Table, family, families[family]); err != nil {
				return err
			}
		}
	}
}

// restoredFrom returns the name and the start time of the backup from which the table was restored, or
// "" if it was not restored. A backup has only what was written before its start, so the table that is
// restored from it records another backup, or none.
func (s *engine) restoredFrom(ctx context.Context, admin *tableadmin.BigtableTableAdminClient) (string, error) {
	table, err := admin.GetTable(ctx, &adminpb.GetTableRequest{
		Name: fmt.Sprintf("projects/%s/instances/%s/tables/%s", s.opts.Project, s.opts.Instance, s.opts.Table), View: adminpb.Table_FULL,
	})
	if err != nil || table.GetRestoreInfo() == nil {
		return "", err
	}
	backup := table.GetRestoreInfo().GetBackupInfo()
	return backup.GetBackup() + "@" + backup.GetStartTime().AsTime().Format(time.RFC3339Nano), nil
}

// checkCollection refuses a family whose cells may be collected by age. The timestamps of most cells
// name epochs and are no times (failover.go), so all would be deleted.
func checkCollection(info *bigtable.TableInfo) error {
	for _, f := range info.FamilyInfos {
		if _, ours := families[f.Name]; ours && strings.Contains(f.GCPolicy, "age") {
			return outcome.Unavailable(fmt.Errorf("bigtable: the garbage collection of family %s (%s) goes by age and would delete the store; set maxversions=1", f.Name, f.GCPolicy))
		}
	}
	return nil
}

func familiesFor(names []string, suffix, separator string, prefix ...string) string {
	all := make([]string, len(names))
	for i, n := range names {
		all[i] = strings.Join(prefix, "") + n + suffix
	}
	return strings.Join(all, separator)
}

// checkProfile returns errProfile if the app profile does not allow conditional mutations. If the account may
// not read app profiles, it logs a warning, and the first write fails.
func (s *engine) checkProfile(ctx context.Context, admin *bigtable.InstanceAdminClient) error {
	name := s.profileName()
	profile, err := admin.GetAppProfile(ctx, s.opts.Instance, name)
	if err != nil {
		if c := status.Code(err); c == codes.PermissionDenied || c == codes.Unimplemented {
			s.opts.Logger.Warn("bigtable: the app profile cannot be read; it must route to a single cluster and allow single-row transactions",
				"profile", name, "error", err)
			return nil
		}
		return err
	}
	single := profile.GetSingleClusterRouting()
	if single == nil || !single.GetAllowTransactionalWrites() {
		return outcome.Unavailable(fmt.Errorf("%w; change it: gcloud bigtable app-profiles update %s --project=%s --instance=%s --route-to=CLUSTER --transactional-writes",
			errProfile, name, s.opts.Project, s.opts.Instance))
	}
	s.cluster = single.GetClusterId()
	return nil
}

// profileName returns the name of the app profile.
func (s *engine) profileName() string {
	if s.opts.AppProfile == "" {
		return "default"
	}
	return s.opts.AppProfile
}

var errProfile = errors.New("bigtable: the app profile must route to a single cluster and allow single-row transactions: elsewhere conditional mutations are not atomic")

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
