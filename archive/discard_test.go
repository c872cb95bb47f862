package archive_test

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"github.com/tapestore/tapestore/archive"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
)

// changingStore returns a store of one large run that is changed while it is read, before its head and
// after it. If purged is set, the last change is its purge.
func changingStore(t *testing.T, purged bool) *cutStore {
	t.Helper()
	s := newCutStore(memory.New(nil), noCut, false)
	must(s.CreateRun(t.Context(), runstore.RunSpec{ID: "run"}))(t)
	value := []byte(strings.Repeat("x", 2200<<10)) // two of them are more than a part
	writes := 0
	s.changed = func() {
		if writes++; writes > 5 {
			return
		}
		b := runstore.NewBatch("run", runstore.Unguarded("test"))
		if b.Purge = purged && writes == 5; b.Purge {
			must(s.Handle.Commit(t.Context(), b))(t)
			return
		}
		b.Append("kind", nil)
		b.Put("a", value)
		b.Put("b", value)
		must(s.Handle.Commit(t.Context(), b))(t)
	}
	s.changed()
	return s
}

// discardArchive returns an archive of a changingStore: the first lines of its run are void, and all of
// them if it was purged.
func discardArchive(t *testing.T, purged bool) []byte {
	t.Helper()
	var out bytes.Buffer
	must(archive.Export(t.Context(), changingStore(t, purged), &out, nil))(t)
	if !strings.Contains(out.String(), `{"discard":`) {
		t.Fatal("the archive has no discard")
	}
	return out.Bytes()
}

// purgeStore calls a function after each purge.
type purgeStore struct {
	*memory.Handle
	purged func()
}

func (s *purgeStore) Commit(ctx context.Context, b runstore.Batch) (runstore.Committed, error) {
	done, err := s.Handle.Commit(ctx, b)
	if b.Purge {
		s.purged()
	}
	return done, err
}

// A discard leaves a run alone that the target has already, and nothing is reported of the lines that it
// voids.
func TestDiscardOfAPresentRun(t *testing.T) {
	t.Parallel()
	moved := discardArchive(t, false)
	reported := 0
	opts := &archive.ImportOptions{Conflict: func(archive.Difference) { reported++ }}
	present := func(t *testing.T, report archive.ImportReport, err error) {
		t.Helper()
		if err != nil || report.Present != 1 || report.Imported.Runs != 0 || report.Conflicts != 0 || reported != 0 {
			t.Errorf("%+v, %v, %d differences", report, err, reported)
		}
	}
	t.Run("imported before", func(t *testing.T) {
		target := memory.New(nil).Open()
		must(archive.Import(t.Context(), stream(moved), target, opts))(t)
		report, err := archive.Import(t.Context(), stream(moved), target, opts)
		present(t, report, err)
	})
	t.Run("finished by another import after this one has purged it", func(t *testing.T) {
		store := memory.New(nil)
		must(store.Open().RaiseEpoch(t.Context(), "test"))(t)
		must(store.Open().CreateRun(t.Context(), runstore.RunSpec{ID: "run", Status: archive.StatusImporting}))(t)
		purges := 0
		target := &purgeStore{Handle: store.Open()}
		target.purged = func() {
			purges++
			must(archive.Import(t.Context(), stream(moved), store.Open(), nil))(t)
		}
		report, err := archive.Import(t.Context(), stream(moved), target, opts)
		present(t, report, err)
		if purges != 1 {
			t.Errorf("%d purges", purges)
		}
	})
	t.Run("a conflict is reported once", func(t *testing.T) {
		target := memory.New(nil).Open()
		must(target.RaiseEpoch(t.Context(), "test"))(t)
		must(target.CreateRun(t.Context(), runstore.RunSpec{ID: "run", Status: 9}))(t)
		var problems []string
		report, err := archive.Import(t.Context(), stream(moved), target, &archive.ImportOptions{
			Conflict: func(d archive.Difference) { problems = append(problems, d.String()) },
		})
		if err == nil || report.Conflicts != 1 || strings.Count(strings.Join(problems, "\n"), "the status is") != 1 {
			t.Errorf("%+v, %v, %q", report, err, problems)
		}
	})
}

// TestVerifyIgnoresDiscardedLines checks that verification reports nothing of the lines that a discard
// voids, and a difference of the lines that follow once. A run whose lines are all void is one that only
// the copy has.
func TestVerifyIgnoresDiscardedLines(t *testing.T) {
	t.Parallel()
	moved := discardArchive(t, false)
	target := memory.New(nil).Open()
	must(archive.Import(t.Context(), stream(moved), target, nil))(t)
	var problems []string
	opts := &archive.VerifyOptions{Found: func(d archive.Difference) { problems = append(problems, d.String()) }}
	report := must(archive.VerifyArchive(t.Context(), stream(moved), target, opts))(t)
	if report.Differing != 0 || report.Compared.Runs != 1 || len(problems) > 0 {
		t.Errorf("%+v, %q", report, problems)
	}
	b := runstore.NewBatch("run", runstore.Unguarded("test"))
	status := runstore.Status(9)
	b.Status = &status
	must(target.Commit(t.Context(), b))(t)
	report = must(archive.VerifyArchive(t.Context(), stream(moved), target, opts))(t)
	if report.Differing != 1 || len(problems) != 1 || !strings.Contains(problems[0], "the status is") {
		t.Errorf("a run that differs: %+v, %q", report, problems)
	}
	problems = nil
	report = must(archive.VerifyArchive(t.Context(), stream(discardArchive(t, true)), target, opts))(t)
	if report.Differing != 1 || report.Compared.Runs != 0 || len(problems) != 1 || !strings.Contains(problems[0], "only the copy has this run") {
		t.Errorf("a run that was purged: %+v, %q", report, problems)
	}
	problems = nil
	report = must(archive.Verify(t.Context(), changingStore(t, false), memory.New(nil).Open(), opts))(t)
	if report.Differing != 1 || len(problems) != 1 || !strings.Contains(problems[0], "the copy has no such run") {
		t.Errorf("a run that is changed while it is compared: %+v, %q", report, problems)
	}
}
