package sqlite_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tapestore/tapestore/conformance/engines/embedded"
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

// The examination of a file that was restored, or moved without its witness file, says that an
// opening raises the epoch, and opens it neither for reading nor for writing. A running server's file
// is as its witness file has it.
func TestExamineARestoredFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "tape.db")
	s := openAt(t, path, embedded.NewHost())
	lease := held(t, s, runstore.MaxTTL)
	older, moved := backup(t, path), backup(t, path)
	if err := appendEvent(t, s, lease); err != nil {
		t.Fatal(err)
	}
	copyFile(t, path+"-witness", older+"-witness")
	opened := 0
	examine := func(path string) []admin.Finding {
		return admin.Examination{
			URL: runstore.URL{Scheme: "sqlite", Address: path}, Write: true,
			Open: func(context.Context) (runstore.RunStore, error) {
				opened++
				return nil, errors.New("not opened by this test")
			},
		}.Run(t.Context())
	}
	incarnation := func(f admin.Finding) bool { return f.Check == "incarnation" }
	for file, want := range map[string]string{older: "a backup was restored", moved: "without its witness file"} {
		found := examine(file)
		i := slices.IndexFunc(found, incarnation)
		if i < 0 || !found[i].KeepClosed || found[i].Status != admin.Warn || !strings.Contains(found[i].Found, want) || opened != 0 {
			t.Errorf("want a finding that says %q and keeps the store closed; opened %d times, got %+v", want, opened, found)
		}
	}
	found := examine(path)
	if i := slices.IndexFunc(found, incarnation); i < 0 || found[i].Status != admin.OK || opened != 1 {
		t.Errorf("the file in use: opened %d times, got %+v", opened, found)
	}
	checkEpochRaised(t, openAt(t, older, embedded.NewHost())) // neither examination did it
}
