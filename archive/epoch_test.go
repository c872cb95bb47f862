package archive_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tapestore/tapestore/archive"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
)

// leasedRuns creates runs with leases, so that they have tokens of the present epoch.
func leasedRuns(t *testing.T, s runstore.RunStore, ids ...runstore.RunID) {
	t.Helper()
	for _, id := range ids {
		spec := runstore.RunSpec{ID: id, Lease: &runstore.LeaseSpec{Owner: "driver", TTL: time.Minute}}
		spec.Writes.Append("kind", []byte("data"))
		must(s.CreateRun(t.Context(), spec))(t)
	}
}

// raiseOnce returns options of an export that raise the epoch of the store after the first run, and let
// its other runs have a token of it.
func raiseOnce(t *testing.T, s *memory.Handle, ids ...runstore.RunID) *archive.ExportOptions {
	raised := false
	return &archive.ExportOptions{Progress: func(archive.Counts) {
		if raised {
			return
		}
		raised = true
		must(s.RaiseEpoch(t.Context(), "during the export"))(t)
		for _, id := range ids {
			must(s.AcquireLease(t.Context(), runstore.AcquireRequest{Run: id, LeaseSpec: runstore.LeaseSpec{Owner: "next", TTL: time.Minute}}))(t)
		}
	}}
}

// An epoch that is raised during an export fails it if it has one file, and begins a new file in a
// directory. The archive of the directory can be imported.
func TestEpochIsRaisedDuringAnExport(t *testing.T) {
	t.Parallel()
	ids := []runstore.RunID{"a", "b", "c"}
	store := memory.New(nil).Open()
	leasedRuns(t, store, ids...)
	var out bytes.Buffer
	if _, err := archive.Export(t.Context(), store, &out, raiseOnce(t, store, ids...)); !errors.Is(err, archive.ErrEpochRaised) {
		t.Errorf("a stream: %v", err)
	}
	dir := t.TempDir()
	must(archive.ExportDir(t.Context(), store, dir, raiseOnce(t, store, ids...)))(t)
	if files := must(os.ReadDir(dir))(t); len(files) != 2 {
		t.Errorf("%d files, want one for each epoch", len(files))
	}
	source := must(archive.Open(dir))(t)
	if counts := must(archive.Check(t.Context(), source))(t); counts.Runs != 3 {
		t.Errorf("%+v", counts)
	}
	target := memory.New(nil).Open()
	must(archive.Import(t.Context(), source, target, nil))(t)
	if report := must(archive.VerifyArchive(t.Context(), source, target, nil))(t); report.Differing != 0 {
		t.Errorf("%+v", report)
	}
}

// A run with a token above the epoch of the header is damage: no import can accept it.
func TestTokenAboveTheHeader(t *testing.T) {
	t.Parallel()
	store := memory.New(nil).Open()
	must(store.RaiseEpoch(t.Context(), "first"))(t)
	leasedRuns(t, store, "run")
	whole := string(export(t, store))
	stale := archive.Resum(strings.Replace(whole, `"epoch":1,"epochs"`, `"epoch":0,"epochs"`, 1))
	var damage *archive.DamageError
	if _, err := archive.Check(t.Context(), stream([]byte(stale))); !errors.As(err, &damage) || damage.Line != 2 || !strings.Contains(err.Error(), "epoch") {
		t.Errorf("%v, want damage in line 2", err)
	}
	must(archive.Check(t.Context(), stream([]byte(whole))))(t)
}

// Files of two epochs are imported under one epoch of the target, above both: it is not raised while runs
// are imported.
func TestFilesOfTwoEpochs(t *testing.T) {
	t.Parallel()
	store := memory.New(nil).Open()
	leasedRuns(t, store, "a", "b", "c")
	dir := t.TempDir()
	must(archive.ExportDir(t.Context(), store, dir, raiseOnce(t, store, "a", "b", "c")))(t)
	target := &partStore{Handle: memory.New(nil).Open()}
	var mu sync.Mutex
	var tokens []runstore.Token
	target.part = func(_ context.Context, part runstore.Import, apply func() error) error {
		mu.Lock()
		defer mu.Unlock()
		tokens = append(tokens, part.Fence.Token())
		return apply()
	}
	report := must(archive.Import(t.Context(), must(archive.Open(dir))(t), target, nil))(t)
	if report.Epoch != 2 || len(tokens) != 3 {
		t.Errorf("%+v, %d parts", report, len(tokens))
	}
	for _, token := range tokens {
		if token.Epoch() != 2 {
			t.Errorf("a run is imported under the token %v, of epoch %d instead of 2", token, token.Epoch())
		}
	}
}

// TestRaisedSourceIsBelowItsTarget checks the cut-over of docs/moving.md: if the epoch of the source is
// raised before the export, a forgotten driver that acquires a run there again has a token below those of
// the target, so that a service with a fence.Checker refuses the driver.
func TestRaisedSourceIsBelowItsTarget(t *testing.T) {
	t.Parallel()
	source, target := memory.New(nil).Open(), memory.New(nil).Open()
	leasedRuns(t, source, "run")
	must(source.RaiseEpoch(t.Context(), "cut-over"))(t)
	must(archive.Import(t.Context(), stream(export(t, source)), target, nil))(t)
	acquire := func(s runstore.RunStore) runstore.Token {
		granted := must(s.AcquireLease(t.Context(), runstore.AcquireRequest{
			Run: "run", Preempt: "test", LeaseSpec: runstore.LeaseSpec{Owner: "driver", TTL: time.Minute},
		}))(t)
		return granted.Fence().Token()
	}
	first := acquire(target)
	for range 3 {
		acquire(source)
	}
	if forgotten := acquire(source); forgotten >= first || forgotten.Epoch() != 1 || first.Epoch() != 2 {
		t.Errorf("the source grants %v, and the target %v", forgotten, first)
	}
}

// TestEpochIsRaisedAfterTheLastRun checks an epoch that is raised at the end of an export, so that no run
// of the archive has a token of it. The archive of a directory names it; a stream has no complete archive.
// Otherwise the target would be in the same epoch as the source, with the same tokens.
func TestEpochIsRaisedAfterTheLastRun(t *testing.T) {
	t.Parallel()
	store := memory.New(nil).Open()
	leasedRuns(t, store, "a", "b")
	afterTheLast := func() *archive.ExportOptions {
		return &archive.ExportOptions{Progress: func(c archive.Counts) {
			if c.Runs == 2 {
				must(store.RaiseEpoch(t.Context(), "during the export"))(t)
			}
		}}
	}
	var out bytes.Buffer
	if _, err := archive.Export(t.Context(), store, &out, afterTheLast()); !errors.Is(err, archive.ErrEpochRaised) {
		t.Errorf("a stream: %v", err)
	}
	if _, err := archive.Check(t.Context(), stream(out.Bytes())); !errors.Is(err, runstore.ErrCorrupt) {
		t.Errorf("the archive of the stream: %v", err)
	}
	dir := t.TempDir()
	must(archive.ExportDir(t.Context(), store, dir, afterTheLast()))(t)
	source, target := must(archive.Open(dir))(t), memory.New(nil).Open()
	report := must(archive.Import(t.Context(), source, target, nil))(t)
	epochs := must(store.Epochs(t.Context()))(t)
	if current := epochs[len(epochs)-1].Epoch; current != 2 || report.Epoch != current+1 || report.Imported.Runs != 2 {
		t.Errorf("the source is in epoch %d: %+v", current, report)
	}
	if verified := must(archive.VerifyArchive(t.Context(), source, target, nil))(t); verified.Differing != 0 || verified.Compared.Runs != 2 {
		t.Errorf("%+v", verified)
	}
}
