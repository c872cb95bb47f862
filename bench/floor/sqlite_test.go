package floor

import (
	"path/filepath"
	"testing"
)

// TestSQLiteSyncs checks the settings that decide when a commit of the floor is on disk: they are
// those of the store.
func TestSQLiteSyncs(t *testing.T) {
	t.Parallel()
	f, err := OpenSQLite(t.Context(), filepath.Join(t.TempDir(), "tape.db"), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for pragma, want := range map[string]int64{"synchronous": 2, "fullfsync": 1, "checkpoint_fullfsync": 1} {
		if got, err := f.number("PRAGMA " + pragma); err != nil || got != want {
			t.Errorf("%s is %d, %v, want %d", pragma, got, err, want)
		}
	}
}
