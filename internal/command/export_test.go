package command

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/tapestore/tapestore/archive"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
)

// TestExportIntoOneFile checks that the second of two exports into one file is refused, that the archive of
// the first is whole, that only its user can read it, and that what a killed export has left is replaced.
func TestExportIntoOneFile(t *testing.T) {
	t.Parallel()
	store := memory.New(nil).Open()
	for _, id := range []runstore.RunID{"a", "b"} {
		if _, err := store.CreateRun(t.Context(), runstore.RunSpec{ID: id}); err != nil {
			t.Fatal(err)
		}
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "backup.jsonl")
	if err := os.WriteFile(file+".partial", []byte("of an export that was killed"), 0o644); err != nil {
		t.Fatal(err)
	}
	export := func(ctx context.Context, progress func(archive.Counts)) (archive.Counts, error) {
		return exportTo(ctx, store, file, io.Discard, &archive.ExportOptions{Progress: progress})
	}
	var mode os.FileMode
	counts, err := export(t.Context(), func(archive.Counts) {
		if _, err := export(t.Context(), nil); !errors.Is(err, archive.ErrInUse) {
			t.Errorf("the second export: %v", err)
		}
		if info, err := os.Stat(file + ".partial"); err == nil {
			mode = info.Mode().Perm()
		}
	})
	if err != nil || counts.Runs != 2 {
		t.Fatalf("%+v, %v", counts, err)
	}
	source, err := archive.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	if checked, err := archive.Check(t.Context(), source); err != nil || checked != counts {
		t.Errorf("checked %+v, %v", checked, err)
	}
	if mode != 0o600 && runtime.GOOS != "windows" {
		t.Errorf("the mode is %v", mode)
	}
	if all, err := os.ReadDir(dir); err != nil || len(all) != 1 {
		t.Errorf("the directory has %v, %v", all, err)
	}
	if _, err := export(t.Context(), nil); err == nil || errors.Is(err, archive.ErrInUse) {
		t.Errorf("an export into a file that exists: %v", err)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	if _, err := export(ctx, func(archive.Counts) { cancel() }); err == nil {
		t.Error("an export that is interrupted")
	}
	if all, err := os.ReadDir(dir); err != nil || len(all) != 0 {
		t.Errorf("an interrupted export leaves %v, %v", all, err)
	}
}

// TestExportOfARestoredFile checks that the export of an SQLite file that is older than its witness file,
// which it opens without the step that raises the epoch, warns, and that epoch raise ends the warning.
func TestExportOfARestoredFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "tape.db")
	url := "sqlite:" + file
	create := func(id runstore.RunID) {
		t.Helper()
		store, err := runstore.Open(t.Context(), url)
		if err != nil {
			t.Fatal(err)
		}
		spec := runstore.RunSpec{ID: id}
		spec.Writes.Append("kind", nil)
		if _, err := store.CreateRun(t.Context(), spec); err != nil {
			t.Fatal(err)
		}
		if err := store.Close(); err != nil {
			t.Fatal(err)
		}
	}
	export := func() (errs string) {
		t.Helper()
		_, errs, err := here(t, "", "export", "--store", url, "--to", "-")
		if err != nil {
			t.Fatal(err)
		}
		return errs
	}
	create("a")
	if errs := export(); strings.Contains(errs, "epoch") {
		t.Errorf("before: %s", errs)
	}
	backup, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	create("b")
	if err := os.WriteFile(file, backup, 0o600); err != nil {
		t.Fatal(err)
	}
	if errs := export(); !strings.Contains(errs, "tapestore epoch raise") || !strings.Contains(errs, "exported 1 runs") {
		t.Errorf("a restored file: %s", errs)
	}
	if _, _, err := here(t, "", "epoch", "raise", "--yes", "--store", url, "--reason", "test"); err != nil {
		t.Fatal(err)
	}
	if errs := export(); strings.Contains(errs, "epoch") {
		t.Errorf("after epoch raise: %s", errs)
	}
}
