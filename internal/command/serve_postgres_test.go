package command

import (
	"strings"
	"testing"
)

// newStoreURL returns the URL of an empty database of the test's own.
func newStoreURL(t *testing.T) string {
	t.Helper()
	db, err := sharedServer(t).NewDatabase(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { query(t, sharedServer(t).URL(), "DROP DATABASE IF EXISTS "+db.Name+" WITH (FORCE)") })
	return db.URL
}

// Runs, effects and grants outlive the server, and inspect shows them.
func TestAPostgresStoreSurvivesAKill(t *testing.T) {
	t.Parallel()
	store := newStoreURL(t)
	id := survivesAKill(t, store)
	for _, url := range []string{store, "alloydb" + strings.TrimPrefix(store, "postgres")} {
		for args, wants := range map[string][]string{
			"runs":          {id, "running"},
			"run " + id:     {id, "running", "confirmed"},
			"journal " + id: {"confirmed"},
			"leases":        {id, "live"},
		} {
			out, errs, status := run(t, append([]string{"inspect", "--store", url}, strings.Fields(args)...)...)
			if status != 0 || errs != "" {
				t.Errorf("inspect %s: status %d: %s", args, status, errs)
			}
			for _, want := range wants {
				if !strings.Contains(out, want) {
					t.Errorf("inspect %s: no %q in\n%s", args, want, out)
				}
			}
		}
	}
}

// Looking makes no store where there is none, whatever the URL says.
func TestInspectMigratesNothing(t *testing.T) {
	t.Parallel()
	store := newStoreURL(t)
	for _, url := range []string{store, store + "&migrate=yes"} {
		out, errs, status := run(t, "inspect", "runs", "--store", url)
		const says = "is at version 0"
		if status != 1 || out != "" || strings.Count(errs, "\n") != 1 || !strings.Contains(errs, says) {
			t.Errorf("got status %d, %q and %q, want one line that says %q", status, out, errs, says)
		}
	}
	if left := query(t, store, "SELECT nspname FROM pg_namespace WHERE nspname LIKE 'tapestore%'"); len(left) > 0 {
		t.Errorf("created: %v", left)
	}
}
