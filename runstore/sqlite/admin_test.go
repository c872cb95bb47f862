package sqlite_test

import (
	"os"
	"strings"
	"testing"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/admin"
)

// A plan of an older file names the versions that are missing and changes no byte of it; apply
// makes them; a newer file is refused by both.
func TestPlanOfAnOlderFile(t *testing.T) {
	t.Parallel()
	path := version1(t)
	u := runstore.URL{Scheme: "sqlite", Address: path}
	engine := admin.Of("sqlite")
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	plan, err := engine.Plan(t.Context(), u)
	if err != nil || plan.Version != 1 || len(plan.Steps) != plan.Program-1 || !strings.HasPrefix(plan.Steps[0].Name, "version 0002") {
		t.Fatalf("got %+v, %v", plan, err)
	}
	found := engine.Check(t.Context(), u)
	if found[0].Check != "schema" || found[0].Status != admin.Fail {
		t.Errorf("the check: got %+v", found[0])
	}
	if after, err := os.ReadFile(path); err != nil || string(after) != string(before) {
		t.Errorf("the plan or the check has changed the file: %v", err)
	}
	if err := engine.Apply(t.Context(), u); err != nil {
		t.Fatal(err)
	}
	if plan, err := engine.Plan(t.Context(), u); err != nil || plan.Version != plan.Program || len(plan.Steps) != 0 {
		t.Errorf("after apply: got %+v, %v", plan, err)
	}
	exec(t, path, "PRAGMA user_version = 99")
	if _, err := engine.Plan(t.Context(), u); err == nil || !strings.Contains(err.Error(), "newer") {
		t.Errorf("the plan of a newer file: got %v", err)
	}
	if err := engine.Apply(t.Context(), u); err == nil || !strings.Contains(err.Error(), "newer") {
		t.Errorf("apply to a newer file: got %v", err)
	}
}
