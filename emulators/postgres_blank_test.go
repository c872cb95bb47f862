package emulators

import (
	"os"
	"path/filepath"
	"testing"
)

// The first server's data directory is kept for the next, and an archive that is damaged is made
// again.
func TestBlankIsMadeOnce(t *testing.T) {
	cache := t.TempDir() // where the systems look for it
	t.Setenv("XDG_CACHE_HOME", cache)
	t.Setenv("HOME", cache)
	identifier := func() string {
		s := startPostgres(t, nil)
		return ask[string](t, s.URL(), "SELECT system_identifier::text FROM pg_control_system()")
	}
	first := identifier()
	if got := identifier(); got != first {
		t.Errorf("the second server is %s, want a copy of %s", got, first)
	}
	root, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	archives, err := filepath.Glob(filepath.Join(root, "tapestore", "postgres-*"))
	if err != nil || len(archives) != 1 {
		t.Fatalf("the archives are %v, %v, want one", archives, err)
	}
	if err := os.Truncate(archives[0], 1<<20); err != nil {
		t.Fatal(err)
	}
	second := identifier()
	if second == first {
		t.Error("a server started from half an archive")
	}
	if got := identifier(); got != second {
		t.Errorf("the next server is %s, want a copy of %s", got, second)
	}
}
