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

// TestReadersKeepTheLog commits while a read of the same handle, or of another process, runs. The writer leaves the log as
// it is, and truncates it once the read has ended.
func TestReadersKeepTheLog(t *testing.T) {
	t.Parallel()
	for _, by := range []string{"the same handle", "another handle"} {
		t.Run("a read of "+by, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "tape.db")
			s, err := sqlite.Open(t.Context(), path, sqlite.Options{Clock: embedded.NewHost()}.TruncatingLogFrom(1))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = s.Close() })
			lease := held(t, s, runstore.MaxTTL)
			reader := s
			if by != "the same handle" {
				reader = openAt(t, path, embedded.NewHost())
			}
			commits := func() (truncated bool) {
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
				return truncated
			}
			during := false
			if err := sqlite.ReadRows(t.Context(), reader, 1, func() { during = commits() }); err != nil {
				t.Fatal(err)
			}
			if during {
				t.Error("the log was truncated during the read")
			}
			if !commits() {
				t.Error("the log was not truncated after the read")
			}
		})
	}
}
