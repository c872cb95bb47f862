package sqlite_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/tapestore/tapestore/conformance/engines/embedded"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/sqlite"
)

// TestLargeLogIsTruncated commits until the writer looks at the size of the log. A log that is too large is
// truncated, and another one is left.
func TestLargeLogIsTruncated(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		bound int64
		want  bool
	}{"too large": {1, true}, "small enough": {1 << 30, false}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "tape.db")
			s, err := sqlite.Open(t.Context(), path, sqlite.Options{Clock: embedded.NewHost()}.TruncatingLogFrom(tc.bound))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = s.Close() })
			lease := held(t, s, runstore.MaxTTL)
			truncated := false
			for range sqlite.TrimEvery {
				if err := appendEvent(t, s, lease); err != nil {
					t.Fatal(err)
				}
				info, err := os.Stat(path + "-wal")
				if err != nil {
					t.Fatal(err)
				}
				truncated = truncated || info.Size() == 0
			}
			if truncated != tc.want {
				t.Errorf("the log was truncated: %t, want %t", truncated, tc.want)
			}
		})
	}
}
