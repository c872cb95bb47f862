package bigtable_test

import (
	"bytes"
	"strings"
	"testing"

	client "cloud.google.com/go/bigtable"
	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"

	bigtableemulator "github.com/tapestore/tapestore/emulators/bigtable"
	"github.com/tapestore/tapestore/runstore"
	operate "github.com/tapestore/tapestore/runstore/admin"
	"github.com/tapestore/tapestore/runstore/bigtable"
)

// urlOf returns the URL of a table, by which no handle may create anything.
func urlOf(t *testing.T, table bigtableemulator.TableName) runstore.URL {
	t.Helper()
	u, err := runstore.ParseURL("bigtable://" + table.Project + "/" + table.Instance + "/" + table.Table + "?create=no&emulator=" + server(t).Address())
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// A plan names a family that is missing and an older format, changes neither, and apply does both.
func TestAdminOfAnOlderStore(t *testing.T) {
	t.Parallel()
	table, tbl := format2(t)
	u, engine := urlOf(t, table), operate.Of("bigtable")
	before := epochRow(t, tbl)
	plan, err := engine.Plan(t.Context(), u)
	if err != nil || len(plan.Steps) != 1 || !strings.HasPrefix(plan.Steps[0].Name, "raise the format of the store from 2 to 5") {
		t.Fatalf("the plan: got %+v, %v", plan, err)
	}
	found := engine.Check(t.Context(), u)
	if len(found) != 1 || found[0].Check != "schema" || !found[0].KeepClosed || found[0].Status != operate.Warn {
		t.Errorf("the check: got %+v, want a warning, because opening would raise the format", found)
	}
	if after := epochRow(t, tbl); !bytes.Equal(before, after) {
		t.Fatalf("the plan or the check has changed the store: %s, %s", before, after)
	}
	if err := engine.Apply(t.Context(), u); err != nil {
		t.Fatal(err)
	}
	if after := epochRow(t, tbl); !bytes.Contains(after, []byte(`"format":5`)) || !bytes.Contains(after, []byte(`"reason":"Zml4dHVyZQ=="`)) {
		t.Errorf("after apply the epochs are %s", after)
	}
	if plan, err := engine.Plan(t.Context(), u); err != nil || len(plan.Steps) != 0 {
		t.Errorf("the plan after apply: got %+v, %v", plan, err)
	}
	for _, f := range engine.Check(t.Context(), u) {
		if f.Status != operate.OK {
			t.Errorf("after apply: %+v", f)
		}
	}
	place := bytes.Replace(epochRow(t, tbl), []byte("/tables/"), []byte("/tables/other-"), 1)
	set := client.NewMutation()
	set.Set("x", "", client.Now(), place)
	if err := tbl.Apply(t.Context(), "g\x00", set); err != nil {
		t.Fatal(err)
	}
	found = engine.Check(t.Context(), u)
	if last := found[len(found)-1]; last.Check != "incarnation" || !last.KeepClosed || last.Status != operate.Warn {
		t.Errorf("a copied table: got %+v, want a warning, because opening would raise the epoch", last)
	}
}

// An app profile is judged as opening judges it.
func TestJudgeProfile(t *testing.T) {
	t.Parallel()
	several := &adminpb.AppProfile{RoutingPolicy: &adminpb.AppProfile_MultiClusterRoutingUseAny_{}}
	for _, c := range []struct {
		profile *adminpb.AppProfile
		want    string // the problem
		change  string // the begin of the command
	}{
		{single("c1", true), "", ""},
		{single("c1", false), "default routes to the cluster c1 but allows no single-row transactions", "gcloud bigtable app-profiles update default "},
		{several, "default routes to several clusters, where conditional mutations are not atomic", "gcloud bigtable app-profiles update default "},
	} {
		problem, change := bigtable.JudgeProfile(c.profile)
		if problem != c.want || !strings.HasPrefix(change, c.change) || c.change == "" && change != "" {
			t.Errorf("got %q and %q, want %q and %q…", problem, change, c.want, c.change)
		}
	}
}
