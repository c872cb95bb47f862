package sqlite_test

import (
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/tapestore/tapestore/conformance/engines/embedded"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/sqlite"
)

func exec(t *testing.T, path string, statements ...string) {
	t.Helper()
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range statements {
		if _, err := db.Exec(s); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestOpenRefuses opens files that cannot be a database of this package. Each is refused with one
// line that describes the fault, and is left byte for byte unchanged.
func TestOpenRefuses(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		make func(t *testing.T, path string)
		path string // instead of a file in an empty directory
		want error
		says string
	}{
		{name: "a text file", make: func(t *testing.T, path string) {
			if err := os.WriteFile(path, []byte(strings.Repeat("no database\n", 500)), 0o600); err != nil {
				t.Fatal(err)
			}
		}, want: runstore.ErrInvalid, says: "not a database"},
		{name: "another application's database", make: func(t *testing.T, path string) {
			exec(t, path, "CREATE TABLE theirs (x)")
		}, want: runstore.ErrInvalid, says: "another application"},
		{name: "a schema from the future", make: func(t *testing.T, path string) {
			s := openAt(t, path, embedded.NewHost())
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			exec(t, path, "PRAGMA user_version = 99")
		}, want: runstore.ErrUnsupported, says: "version 99 of the database is newer than this program's"},
		{name: "a directory", make: func(t *testing.T, path string) {
			if err := os.Mkdir(path, 0o700); err != nil {
				t.Fatal(err)
			}
		}, want: runstore.ErrInvalid, says: "no regular file"},
		{name: "a directory that is not there", path: "/no/such/directory/tape.db", want: runstore.ErrInvalid, says: "no directory"},
		{name: "a directory that cannot be written", path: "/proc/tape.db", want: runstore.ErrUnavailable, says: "/proc/tape.db: it cannot be opened"},
		{name: "an empty name", path: "", make: nil, want: runstore.ErrInvalid, says: "has no file"},
		{name: "a NUL byte", path: "a\x00b", want: runstore.ErrInvalid, says: "NUL"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			path := tc.path
			var before []byte
			if tc.make != nil {
				path = filepath.Join(t.TempDir(), "tape.db")
				tc.make(t, path)
				before, _ = os.ReadFile(path) // a directory has none
			}
			s, err := sqlite.Open(t.Context(), path, nil)
			if err == nil {
				_ = s.Close()
				t.Fatal("it was opened")
			}
			if !errors.Is(err, tc.want) || !strings.Contains(err.Error(), tc.says) || strings.Contains(err.Error(), "\n") {
				t.Errorf("got %q, want one line that matches %v and says %q", err, tc.want, tc.says)
			}
			if tc.make != nil {
				if after, _ := os.ReadFile(path); string(after) != string(before) {
					t.Errorf("the file was changed")
				}
			}
		})
	}
}

func TestOpenByURL(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, tc := range []struct {
		url  string
		says string // empty: it opens
	}{
		{"sqlite:" + dir + "/a.db", ""},
		{"sqlite://" + dir + "/b%20 c#d.db?synchronous=normal&group=1&readers=2", ""},
		{"sqlite::memory:", ""},
		{"sqlite:", "has no file"},
		{"sqlite:" + dir + "/a.db?nope=1", `unknown key "nope"; sqlite knows create, group, readers, readonly, synchronous`},
		{"sqlite:" + dir + "/a.db?synchronous=off", `invalid synchronous: "OFF" is neither FULL nor NORMAL`},
		{"sqlite:" + dir + "/a.db?create=no", ""},
		{"sqlite:" + dir + "/missing.db?create=no", "there is no file"},
		{"sqlite:" + dir + "/a.db?readonly=yes", ""},
		{"sqlite:" + dir + "/a.db?readonly=yes&create=yes", "does not go with"},
		{"sqlite:" + dir + "/a.db?create=maybe", "neither yes nor no"},
		{"sqlite:" + dir + "/a.db?group=0", "invalid group"},
		{"sqlite:" + dir + "/a.db?group=x", "invalid group"},
		{"sqlite:" + dir + "/a.db?group=1000000", "the limits are 1 and 10000"},
		{"sqlite:" + dir + "/a.db?readers=-1", "the limits are 1 and 1000"},
	} {
		t.Run(tc.url, func(t *testing.T) {
			s, err := runstore.Open(t.Context(), tc.url)
			if tc.says == "" {
				if err != nil {
					t.Fatalf("open: %v", err)
				}
				if err := s.Close(); err != nil {
					t.Errorf("close: %v", err)
				}
				return
			}
			if err == nil || !errors.Is(err, runstore.ErrInvalid) || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("got %v, want ErrInvalid that says %q", err, tc.says)
			}
		})
	}
	if _, err := os.Stat(filepath.Join(dir, "b%20 c#d.db")); err != nil {
		t.Errorf("the file name was not taken as written: %v", err)
	}
}

// TestOpenAtOnce starts ten processes at once on an empty file. They share one schema.
func TestOpenAtOnce(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "tape.db")
	start := make(chan struct{})
	var wg sync.WaitGroup
	for i := range 10 {
		wg.Go(func() {
			<-start
			s, err := sqlite.Open(t.Context(), path, nil)
			if err != nil {
				t.Errorf("open: %v", err)
				return
			}
			defer func() { _ = s.Close() }()
			id := runstore.RunID(fmt.Sprintf("run-%d", i))
			if _, err := s.CreateRun(t.Context(), runstore.RunSpec{ID: id}); err != nil {
				t.Errorf("create: %v", err)
			}
		})
	}
	close(start)
	wg.Wait()
	s := openAt(t, path, embedded.NewHost())
	n := 0
	for _, err := range runstore.Entries(t.Context(), s, runstore.IndexQuery{Index: runstore.IndexRuns, Until: runstore.EndOfTime}) {
		if err != nil {
			t.Fatal(err)
		}
		n++
	}
	if n != 10 {
		t.Errorf("got %d runs, want 10", n)
	}
}
