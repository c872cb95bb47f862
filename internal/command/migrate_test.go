package command

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tapestore/tapestore/runstore"
)

// adminEngines are the engines that the tests of migrate, doctor and run purge use: quick ones.
func adminEngines(t *testing.T, memory string) map[string]func(t *testing.T) string {
	t.Helper()
	all := engineURLs(memory)
	if os.Getenv("TAPESTORE_EFFORT") != "full" {
		delete(all, "spanner")
		delete(all, "alloydb")
	}
	return all
}

// Nothing is created by a plan, applying it makes a store that a server opens without rights to
// change it, and after that there is nothing to do.
func TestMigrateCommand(t *testing.T) {
	t.Parallel()
	for engine, url := range adminEngines(t, "migrate-command") {
		if engine == "memory" {
			continue
		}
		t.Run(engine, func(t *testing.T) {
			t.Parallel()
			url := url(t)
			var first, second, after planView
			out, _, err := here(t, "", "migrate", "--json", "--store", url)
			if exitStatus(err) != exitRefused || json.Unmarshal([]byte(out), &first) != nil || len(first.Steps) == 0 || first.Applied || first.Version != 0 {
				t.Fatalf("the plan of an empty store: got %s, %v", out, err)
			}
			for _, step := range first.Steps {
				if step.Name == "" || len(step.Statements) == 0 && step.Name != "create the file" {
					t.Errorf("a step without a name or statements: %+v", step)
				}
			}
			if s, err := runstore.Open(t.Context(), readOnly(url)); err == nil {
				t.Error("a plan has created the store")
				_ = s.Close()
			}
			out, _, err = here(t, "", "migrate", "--store", url)
			if exitStatus(err) != exitRefused || !strings.Contains(out, first.Steps[0].Name) || !strings.Contains(out, "-- 1. ") {
				t.Errorf("the plan as text: got %s, %v", out, err)
			}
			out, _, err = here(t, "", "migrate", "--apply", "--json", "--store", existing(url))
			if err != nil || json.Unmarshal([]byte(out), &second) != nil || !second.Applied || len(second.Steps) != len(first.Steps) {
				t.Fatalf("apply: got %s, %v", out, err)
			}
			out, _, err = here(t, "", "migrate", "--json", "--store", url)
			if err != nil || json.Unmarshal([]byte(out), &after) != nil || len(after.Steps) != 0 || after.Version != after.Program || after.Program != first.Program {
				t.Errorf("the plan of a store that is up to date: got %s, %v", out, err)
			}
			if out, _, err := here(t, "", "migrate", "--apply", "--store", url); err != nil || !strings.Contains(out, "nothing to do") {
				t.Errorf("apply where nothing is to do: got %s, %v", out, err)
			}
			s, err := runstore.Open(t.Context(), existing(url))
			if err != nil {
				t.Fatalf("open without the right to migrate: %v", err)
			}
			if _, err := s.CreateRun(t.Context(), runstore.RunSpec{ID: "run"}); err != nil {
				t.Error(err)
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// What cannot be planned is an error, and nothing is created.
func TestMigrateRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	other := filepath.Join(dir, "other.db")
	if err := os.WriteFile(other, []byte(strings.Repeat("not a database ", 100)), 0o600); err != nil {
		t.Fatal(err)
	}
	for url, says := range map[string]string{
		"memory:":                                "memory: has no schema to migrate",
		"sqlite::memory:":                        "a database in memory",
		"sqlite:" + other:                        "it is not a database",
		"sqlite:" + dir + "/missing/tape.db":     "there is no directory",
		"sqlite:" + dir + "/tape.db?plutonium=1": "plutonium",
		"mysql://host/database":                  "unknown scheme",
		"postgres://u@127.0.0.1:1/db":            "connect",
	} {
		for _, args := range [][]string{{"migrate"}, {"migrate", "--apply"}} {
			out, _, err := here(t, "", append(args, "--store", url)...)
			if err == nil || out != "" || exitStatus(err) != 1 || !strings.Contains(err.Error(), says) {
				t.Errorf("%v of %s: got %q, %v, want an error that says %q", args, url, out, err, says)
			}
		}
	}
	if left, err := filepath.Glob(filepath.Join(dir, "*")); err != nil || len(left) != 1 {
		t.Errorf("files afterwards: %v, %v", left, err)
	}
	if text, err := os.ReadFile(other); err != nil || !strings.HasPrefix(string(text), "not a database") {
		t.Errorf("the file of another program was changed: %v", err)
	}
	if _, _, err := here(t, "", "migrate"); err == nil || errors.As(err, new(*exitError)) {
		t.Errorf("without a store: got %v", err)
	}
}
