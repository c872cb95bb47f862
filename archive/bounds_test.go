package archive_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tapestore/tapestore/archive"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
)

// headStore calls a function around the first reading of a head.
type headStore struct {
	*memory.Handle
	before, after func()
}

func (s *headStore) GetRun(ctx context.Context, id runstore.RunID) (runstore.Run, error) {
	before, after := s.before, s.after
	s.before, s.after = func() {}, func() {}
	before()
	defer after()
	return s.Handle.GetRun(ctx, id)
}

// TestExportSeesARecordThatComesAndGoes checks that a run is read again if a record existed only while its
// head was read: both readings of the records agree, and the head belongs to neither.
func TestExportSeesARecordThatComesAndGoes(t *testing.T) {
	t.Parallel()
	s := &headStore{Handle: memory.New(nil).Open()}
	must(s.CreateRun(t.Context(), runstore.RunSpec{ID: "run"}))(t)
	change := func(f func(b *runstore.Batch)) func() {
		return func() {
			b := runstore.NewBatch("run", runstore.Unguarded("test"))
			b.Append("kind", nil)
			f(&b)
			must(s.Commit(t.Context(), b))(t)
		}
	}
	change(func(b *runstore.Batch) { b.Put("stays", nil) })()
	s.before = change(func(b *runstore.Batch) { b.Put("goes", nil) })
	s.after = change(func(b *runstore.Batch) { b.Delete("goes") })
	var out bytes.Buffer
	must(archive.Export(t.Context(), s, &out, nil))(t)
	state := must(archive.ReadState(t.Context(), stream(out.Bytes())))(t)
	if state.Run.LastSeq != 3 || state.Records != 1 || state.Events != 3 {
		t.Errorf("exported %+v, want the state after seq 3", state)
	}
}

// floorStore imports runs without their floor of versions.
type floorStore struct{ *memory.Handle }

func (s floorStore) Import(ctx context.Context, part runstore.Import) (runstore.Committed, error) {
	part.Floor = 0
	return s.Handle.Import(ctx, part)
}

// TestVerifyChecksTokenAndFloor checks that a copy whose last token or floor of versions is below that of
// its original differs.
func TestVerifyChecksTokenAndFloor(t *testing.T) {
	t.Parallel()
	original := memory.New(nil).Open()
	leasedRuns(t, original, "run")
	for _, write := range []func(b *runstore.Batch){
		func(b *runstore.Batch) { b.Put("goes", nil) },
		func(b *runstore.Batch) { b.Delete("goes") },
	} {
		b := runstore.NewBatch("run", runstore.Unguarded("test"))
		write(&b)
		must(original.Commit(t.Context(), b))(t)
	}
	copied := memory.New(nil).Open()
	must(archive.Import(t.Context(), stream(export(t, original)), floorStore{copied}, nil))(t)
	verify := func(want ...string) {
		t.Helper()
		var problems []string
		report := must(archive.Verify(t.Context(), original, copied, &archive.VerifyOptions{
			Found: func(d archive.Difference) { problems = append(problems, d.Problem) },
		}))(t)
		if report.Differing != 1 || len(problems) != len(want) {
			t.Fatalf("%+v, %q", report, problems)
		}
		for i, text := range want {
			if !strings.HasPrefix(problems[i], text) {
				t.Errorf("%q, want %q", problems[i], text)
			}
		}
	}
	const floor, token = "new records begin above version", "the last token is"
	verify(floor)
	for range 2 { // above the epoch of the copy
		must(original.RaiseEpoch(t.Context(), "test"))(t)
	}
	must(original.AcquireLease(t.Context(), runstore.AcquireRequest{Run: "run", LeaseSpec: runstore.LeaseSpec{Owner: "next", TTL: time.Minute}}))(t)
	verify(token, floor)
}

// TestImportRenewsItsLease checks that an import holds the lease of a run that takes longer than a TTL.
func TestImportRenewsItsLease(t *testing.T) {
	t.Parallel()
	source := newMemory(t)
	queuedRun(t, source, "run", 1, 1, 15_000)
	moved := export(t, source)
	synctest.Test(t, func(t *testing.T) {
		target := &partStore{Handle: memory.New(nil).Open()}
		parts := 0
		target.part = func(ctx context.Context, part runstore.Import, apply func() error) error {
			parts++
			time.Sleep(3 * time.Second) // eight of them are shorter than the TTL, 30 s
			run := must(target.GetRun(ctx, part.Fence.Run()))(t)
			if now := must(target.Now(ctx))(t); !run.Live(now) {
				t.Errorf("part %d: the lease ended %v ago", parts, now.Sub(run.ExpiresAt))
			}
			return apply()
		}
		must(archive.Import(t.Context(), stream(moved), target, nil))(t)
		if parts < 20 {
			t.Errorf("%d parts", parts)
		}
	})
}

// TestNewDirectoriesAreDurable checks that the parent of each new directory of an export is synced.
func TestNewDirectoriesAreDurable(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	dir := filepath.Join(root, "new", "backup") + "/"
	var synced []string
	sync := func(dir string) error {
		synced = append(synced, dir)
		return nil
	}
	for range 2 { // the first call may have been killed before it synced
		synced = nil
		must(0, archive.MakeDir(dir, sync))(t)
		if parent := filepath.Join(root, "new"); len(synced) == 0 || synced[len(synced)-1] != parent {
			t.Errorf("synced %q, want %q last", synced, parent)
		}
	}
	if err := archive.MakeDir(dir, func(string) error { return os.ErrPermission }); err != nil {
		t.Errorf("a directory that exists, in a parent that cannot be read: %v", err)
	}
	must(archive.ExportDir(t.Context(), smallStore(t), filepath.Join(root, "other", "backup")+"/", nil))(t)
	file := filepath.Join(root, "file")
	must(0, os.WriteFile(file, nil, 0o600))(t)
	if _, err := archive.ExportDir(t.Context(), smallStore(t), filepath.Join(file, "backup"), nil); err == nil {
		t.Error("a directory below a file")
	}
}
