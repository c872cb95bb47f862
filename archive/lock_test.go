package archive_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/tapestore/tapestore/archive"
	"github.com/tapestore/tapestore/runstore/memory"
)

// TestTwoExportsIntoOneDirectory checks that the second of two exports into one directory is refused, at any
// run of the first, and that the archive of the first is whole.
func TestTwoExportsIntoOneDirectory(t *testing.T) {
	t.Parallel()
	store, dir := memory.New(nil).Open(), t.TempDir()
	leasedRuns(t, store, "a", "b", "c")
	tries := 0
	counts := must(archive.ExportDir(t.Context(), store, dir, &archive.ExportOptions{PartBytes: 1, Progress: func(archive.Counts) {
		tries++
		if _, err := archive.ExportDir(t.Context(), store, dir, &archive.ExportOptions{PartBytes: 1}); !errors.Is(err, archive.ErrInUse) {
			t.Errorf("the second export: %v", err)
		}
	}}))(t)
	if tries != 3 {
		t.Errorf("%d tries", tries)
	}
	if checked := must(archive.Check(t.Context(), must(archive.Open(dir))(t)))(t); checked != counts || counts.Runs != 3 {
		t.Errorf("checked %+v of %+v", checked, counts)
	}
	if files := must(os.ReadDir(dir))(t); len(files) != 3 {
		t.Errorf("%d files: %v", len(files), files)
	}
}

// TestLock checks the lock of a name, also over a file that a killed process has left.
func TestLock(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "file")
	must(0, os.WriteFile(name+".lock", nil, 0o600))(t)
	for range 2 {
		unlock := must(archive.Lock(name))(t)
		if _, err := archive.Lock(name); !errors.Is(err, archive.ErrInUse) {
			t.Errorf("a second lock: %v", err)
		}
		unlock()
	}
	if _, err := os.Stat(name + ".lock"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the lock file stays: %v", err)
	}
}

// TestArchivesArePrivate checks that only their user can read the archive in a directory: it has what lets a
// reader write to the source.
func TestArchivesArePrivate(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("not applicable: modes are those of Unix")
	}
	root := t.TempDir()
	dir := filepath.Join(root, "new", "backup")
	must(archive.ExportDir(t.Context(), smallStore(t), dir, nil))(t)
	must(0, filepath.WalkDir(filepath.Join(root, "new"), func(path string, e fs.DirEntry, err error) error {
		want := os.FileMode(0o600)
		if must(e, err)(t).IsDir() {
			want = 0o700
		}
		if mode := must(e.Info())(t).Mode().Perm(); mode != want {
			t.Errorf("%s has the mode %v, want %v", path, mode, want)
		}
		return nil
	}))(t)
	// A file that an interrupted export of an earlier version has left.
	interrupted := filepath.Join(root, "interrupted")
	must(0, os.Mkdir(interrupted, 0o700))(t)
	must(0, os.WriteFile(filepath.Join(interrupted, "runs-000001.jsonl.partial"), []byte("x"), 0o644))(t)
	must(archive.ExportDir(t.Context(), smallStore(t), interrupted, nil))(t)
	if mode := must(os.Stat(filepath.Join(interrupted, "runs-000001.jsonl")))(t).Mode().Perm(); mode != 0o600 {
		t.Errorf("the continued file has the mode %v", mode)
	}
}
