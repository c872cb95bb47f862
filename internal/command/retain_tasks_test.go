package command

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tapestore/tapestore/retain"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
)

// TestRetainEndsBeforeTheTasks checks that a pass which is ended between the runs and the tasks is no
// success, because no task was deleted.
func TestRetainEndsBeforeTheTasks(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		store := memory.New(nil).Open()
		defer func() { _ = store.Close() }()
		endedTapeRun(t, store, "a", true)
		time.Sleep(72 * time.Hour)
		ctx, cancel := context.WithCancelCause(t.Context())
		stop := errors.New("stop")
		r := &retention{journals: 48 * time.Hour, tasks: 48 * time.Hour, archive: dir, maxRuns: 1, decided: func(retain.Decision) { cancel(stop) }}
		if err := r.open(t.Context()); err != nil {
			t.Fatal(err)
		}
		done, err := r.pass(ctx, store)
		if done.runs.Purged != 1 || !done.runs.Complete || done.trimmed || !errors.Is(err, stop) {
			t.Errorf("%+v, %v", done, err)
		}
	})
}

// unscannable is a store that cannot list its runs.
type unscannable struct {
	*memory.Handle
	err error
}

func (s *unscannable) ScanRuns(ctx context.Context, after runstore.RunID, limit int) ([]runstore.RunID, error) {
	if s.err != nil {
		return nil, s.err
	}
	return s.Handle.ScanRuns(ctx, after, limit)
}

// TestRetainOnlyRunsFailed checks that a pass in which runs failed has exit status 2 only if the tasks were
// all looked at.
func TestRetainOnlyRunsFailed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		store := &unscannable{Handle: memory.New(nil).Open()}
		defer func() { _ = store.Close() }()
		endedTapeRun(t, store, "a", true)
		time.Sleep(72 * time.Hour)
		r := &retention{journals: 48 * time.Hour, tasks: 48 * time.Hour, archive: filepath.Join(dir, "archive")}
		if err := os.Mkdir(r.archive, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := r.open(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(r.archive); err != nil { // so that the run cannot be archived
			t.Fatal(err)
		}
		done, err := r.pass(t.Context(), store)
		if done.runs.Failed != 1 || !done.onlyRunsFailed(err) {
			t.Errorf("%+v, %v", done, err)
		}
		store.err = errors.New("the runs cannot be listed")
		done, err = r.pass(t.Context(), store)
		if done.runs.Failed != 1 || done.onlyRunsFailed(err) || !errors.Is(err, store.err) || !errors.Is(err, retain.ErrFailed) {
			t.Errorf("without the tasks: %+v, %v", done, err)
		}
	})
}

// TestExportedFileIsDurable checks that the directory of a complete file is synced after the file has got
// its name.
func TestExportedFileIsDurable(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	to := filepath.Join(dir, "backup.jsonl")
	if err := os.WriteFile(to+".partial", []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	var synced []string
	err := publish(to+".partial", to, func(dir string) error {
		synced = append(synced, dir)
		_, err := os.Stat(to)
		return err
	})
	if err != nil || !slices.Equal(synced, []string{dir}) {
		t.Errorf("synced %q, %v", synced, err)
	}
	if err := publish(to+".partial", to, func(string) error { return nil }); err == nil {
		t.Error("a file that is missing")
	}
}
