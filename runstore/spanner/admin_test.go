package spanner_test

import (
	"strings"
	"testing"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/admin"
	"github.com/tapestore/tapestore/runstore/spanner"
)

// A plan of an older database names the versions that are missing and changes nothing, and apply
// makes them.
func TestPlanOfAnOlderDatabase(t *testing.T) {
	t.Parallel()
	last := len(spanner.Migrations())
	p := ofVersion(t, int64(last-1))
	u, err := runstore.ParseURL("spanner://" + p.Project + "/" + p.Instance + "/" + p.Database + "?create=no&emulator=" + p.server.Address())
	if err != nil {
		t.Fatal(err)
	}
	engine := admin.Of("spanner")
	for range 2 { // the second finds what the first has left
		plan, err := engine.Plan(t.Context(), u)
		if err != nil || plan.Version != last-1 || plan.Program != last || len(plan.Steps) != 1 || len(plan.Steps[0].Statements) == 0 {
			t.Fatalf("got %+v, %v", plan, err)
		}
		if found := engine.Check(t.Context(), u); found[len(found)-1].Check != "schema" || found[len(found)-1].Status != admin.Fail {
			t.Errorf("the check: got %+v", found)
		}
	}
	if err := engine.Apply(t.Context(), u); err != nil {
		t.Fatal(err)
	}
	if plan, err := engine.Plan(t.Context(), u); err != nil || len(plan.Steps) != 0 || plan.Version != last {
		t.Errorf("after apply: got %+v, %v", plan, err)
	}
	for _, f := range engine.Check(t.Context(), u) {
		if f.Status != admin.OK && !strings.Contains(f.Found, "the next program that opens") {
			t.Errorf("after apply: %+v", f)
		}
	}
}
