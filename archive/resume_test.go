package archive_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/tapestore/tapestore/archive"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
)

var errCut = errors.New("cut")

// cutWriter fails after a number of bytes.
type cutWriter struct {
	bytes.Buffer
	left int
}

func (w *cutWriter) Write(b []byte) (int, error) {
	n, _ := w.Buffer.Write(b[:min(len(b), w.left)])
	if w.left -= n; n < len(b) {
		return n, errCut
	}
	return n, nil
}

// An export whose output fails at any byte reports it, and leaves an archive that is refused.
func TestExportIsCut(t *testing.T) {
	t.Parallel()
	s := smallStore(t)
	var all bytes.Buffer
	must(archive.Export(t.Context(), s, &all, nil))(t)
	whole := all.Len()
	for left := 0; left < whole; left += 97 {
		w := &cutWriter{left: left}
		if _, err := archive.Export(t.Context(), s, w, nil); !errors.Is(err, errCut) {
			t.Fatalf("cut after %d bytes: %v", left, err)
		}
		if _, err := archive.Check(t.Context(), stream(w.Bytes())); !errors.Is(err, runstore.ErrCorrupt) {
			t.Errorf("an archive of %d bytes: %v", left, err)
		}
	}
}

// cutStore is a store whose process dies at its n-th call: that call and all later ones fail. It
// stands for a kill, so its lease stays. If late is set, the call is applied before it fails.
type cutStore struct {
	*memory.Handle
	calls, most atomic.Int64
	late        bool
	changed     func() // after each read of records
}

// step counts one call.
func (s *cutStore) step(call func() error) error {
	n := s.calls.Add(1)
	switch most := s.most.Load(); {
	case n > most, n == most && !s.late:
		return errCut
	case n == most:
		_ = call() // its reply is lost
		return errCut
	}
	return call()
}

func (s *cutStore) CreateRun(ctx context.Context, spec runstore.RunSpec) (done runstore.Created, err error) {
	err = s.step(func() (err error) { done, err = s.Handle.CreateRun(ctx, spec); return err })
	return done, err
}

func (s *cutStore) GetRun(ctx context.Context, id runstore.RunID) (run runstore.Run, err error) {
	err = s.step(func() (err error) { run, err = s.Handle.GetRun(ctx, id); return err })
	return run, err
}

func (s *cutStore) AcquireLease(ctx context.Context, req runstore.AcquireRequest) (done runstore.Granted, err error) {
	err = s.step(func() (err error) { done, err = s.Handle.AcquireLease(ctx, req); return err })
	return done, err
}

func (s *cutStore) Commit(ctx context.Context, b runstore.Batch) (done runstore.Committed, err error) {
	err = s.step(func() (err error) { done, err = s.Handle.Commit(ctx, b); return err })
	return done, err
}

func (s *cutStore) Import(ctx context.Context, part runstore.Import) (done runstore.Committed, err error) {
	err = s.step(func() (err error) { done, err = s.Handle.Import(ctx, part); return err })
	return done, err
}

func (s *cutStore) RaiseEpoch(ctx context.Context, reason string) (epoch runstore.Epoch, err error) {
	err = s.step(func() (err error) { epoch, err = s.Handle.RaiseEpoch(ctx, reason); return err })
	return epoch, err
}

func (s *cutStore) ReadPlaced(ctx context.Context, id runstore.RunID, after runstore.RecordKey, limit int) (page runstore.PlacedPage, err error) {
	err = s.step(func() (err error) { page, err = s.Handle.ReadPlaced(ctx, id, after, limit); return err })
	if s.changed != nil {
		s.changed()
	}
	return page, err
}

func newCutStore(store *memory.Store, most int64, late bool) *cutStore {
	s := &cutStore{Handle: store.Open(), late: late}
	s.most.Store(most)
	return s
}

const noCut = 1 << 40

// An import that dies at any call of the store, before or after it is applied, is repeated and
// completes; a run that takes several parts is imported too.
func TestImportContinues(t *testing.T) {
	t.Parallel()
	source := smallStore(t)
	spec := runstore.RunSpec{ID: "large"}
	for range 700 {
		spec.Writes.Append("kind", []byte("data"))
	}
	for k := range 150 {
		spec.Writes.Put(runstore.RecordKey(fmt.Sprint(k)), []byte("value"))
	}
	must(source.CreateRun(t.Context(), spec))(t)
	moved := export(t, source)
	for _, late := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			cuts := 0
			for most := int64(1); ; most++ {
				store := memory.New(nil)
				_, err := archive.Import(t.Context(), stream(moved), newCutStore(store, most, late), nil)
				if err == nil {
					break
				}
				cuts++
				if !errors.Is(err, errCut) {
					t.Fatalf("cut at call %d: %v", most, err)
				}
				report, err := archive.Import(t.Context(), stream(moved), store.Open(), nil)
				if err != nil || report.Imported.Runs+report.Present != 4 {
					t.Fatalf("the repeat after a cut at call %d: %+v, %v", most, report, err)
				}
				mustEqual(t, source, store.Open())
			}
			if cuts < 12 {
				t.Errorf("%d cuts", cuts)
			}
		})
	}
}

// An export into a directory that dies at any call continues, and the archive is that of an export
// that was not cut.
func TestExportDirContinues(t *testing.T) {
	t.Parallel()
	store := memory.New(nil)
	s := store.Open()
	randomStore(t, s, 7, 6)
	opts := &archive.ExportOptions{PartBytes: 1, Label: "source"}
	want := must(archive.Export(t.Context(), s, &bytes.Buffer{}, nil))(t)
	cuts := 0
	for most := int64(1); ; most += 3 {
		dir := t.TempDir()
		_, err := archive.ExportDir(t.Context(), newCutStore(store, most, false), dir, opts)
		if err == nil {
			break
		}
		cuts++
		before, _ := os.ReadDir(dir)
		counts := must(archive.ExportDir(t.Context(), s, dir, opts))(t)
		source := must(archive.Open(dir))(t)
		if checked := must(archive.Check(t.Context(), source))(t); checked != counts || counts != want {
			t.Errorf("checked %+v of %+v, want %+v", checked, counts, want)
		}
		report := must(archive.VerifyArchive(t.Context(), source, s, &archive.VerifyOptions{Found: func(d archive.Difference) { t.Error(d) }}))(t)
		if report.Differing != 0 || report.Compared != counts {
			t.Errorf("cut at call %d, with %d files: %+v", most, len(before), report)
		}
		if _, err := archive.ExportDir(t.Context(), s, dir, opts); !errors.Is(err, archive.ErrComplete) {
			t.Errorf("an export into a complete archive: %v", err)
		}
	}
	if cuts < 5 {
		t.Errorf("%d cuts", cuts)
	}
}

// Of two imports at once each run is imported once, and the runs are as they were.
func TestTwoImportsAtOnce(t *testing.T) {
	t.Parallel()
	source := newMemory(t)
	randomStore(t, source, 3, 20)
	moved := export(t, source)
	synctest.Test(t, func(t *testing.T) {
		store := memory.New(nil)
		must(store.Open().RaiseEpoch(t.Context(), "a"))(t)
		for range 20 {
			must(store.Open().RaiseEpoch(t.Context(), "above the source"))(t)
		}
		errs := make(chan error)
		for range 2 {
			go func() {
				_, err := archive.Import(t.Context(), stream(moved), store.Open(), nil)
				errs <- err
			}()
		}
		for range 2 {
			if err := <-errs; err != nil && !errors.Is(err, runstore.ErrLeaseHeld) && !errors.Is(err, runstore.ErrFenced) {
				t.Error(err)
			}
		}
		must(archive.Import(t.Context(), stream(moved), store.Open(), nil))(t)
		mustEqual(t, source, store.Open())
	})
}

// A target with other runs keeps them and its leases, and a run that differs is a conflict.
func TestImportIntoAStoreInUse(t *testing.T) {
	t.Parallel()
	moved := export(t, smallStore(t))
	target := memory.New(nil).Open()
	spec := runstore.RunSpec{ID: "run-1", Lease: &runstore.LeaseSpec{Owner: "driver", TTL: 30e9}}
	spec.Writes.Append("own", nil)
	lease := must(target.CreateRun(t.Context(), spec))(t).Lease
	if _, err := archive.Import(t.Context(), stream(moved), target, nil); !errors.Is(err, archive.ErrEpoch) {
		t.Fatalf("without a new epoch: %v", err)
	}
	b := runstore.NewBatch("run-1", lease.Fence())
	b.Append("own", nil)
	must(target.Commit(t.Context(), b))(t)
	var found []string
	report, err := archive.Import(t.Context(), stream(moved), target, &archive.ImportOptions{
		RaiseEpoch: true, Conflict: func(d archive.Difference) { found = append(found, d.String()) },
	})
	if !errors.Is(err, archive.ErrConflicts) || report.Conflicts != 1 || report.Imported.Runs != 2 || len(found) == 0 {
		t.Errorf("%+v, %v, %q", report, err, found)
	}
	if run := must(target.GetRun(t.Context(), "run-1"))(t); run.LastSeq != 2 {
		t.Errorf("the run of the target has changed: %+v", run)
	}
}

// A run that changes while it is read is exported in one state: the export reads it again.
func TestExportIsConsistent(t *testing.T) {
	t.Parallel()
	for _, large := range []bool{false, true} {
		store := memory.New(nil)
		s := newCutStore(store, noCut, false)
		must(s.CreateRun(t.Context(), runstore.RunSpec{ID: "run"}))(t)
		value := []byte(strings.Repeat("x", 100))
		if large {
			value = []byte(strings.Repeat("x", 2200<<10)) // two of them are more than a page
		}
		writes, stopped := 0, 5
		write := func() {
			if writes++; writes > stopped {
				return
			}
			b := runstore.NewBatch("run", runstore.Unguarded("test"))
			b.Append("kind", []byte(fmt.Sprint(writes)))
			for _, key := range []runstore.RecordKey{"a", "b"} { // always written together
				b.Put(key, value)
			}
			must(s.Handle.Commit(t.Context(), b))(t)
		}
		write()
		s.changed = write
		var out bytes.Buffer
		must(archive.Export(t.Context(), s, &out, nil))(t)
		if discards := strings.Count(out.String(), `{"discard":`); (discards > 0) != large {
			t.Errorf("large %t: %d discards", large, discards)
		}
		s.changed = nil
		target := memory.New(nil).Open()
		must(archive.Import(t.Context(), stream(out.Bytes()), target, nil))(t)
		run := must(target.GetRun(t.Context(), "run"))(t)
		for _, r := range must(target.ReadRecords(t.Context(), "run", runstore.RecordQuery{Limit: 10}))(t) {
			if int64(r.Version) != int64(run.LastSeq) || run.LastSeq < 2 {
				t.Errorf("large %t: record %q has version %d, and the run seq %d", large, r.Key, r.Version, run.LastSeq)
			}
		}
		if large {
			continue
		}
		writes, stopped, s.changed = 0, noCut, write
		if _, err := archive.Export(t.Context(), s, &bytes.Buffer{}, nil); err == nil || !strings.Contains(err.Error(), "stop its driver") {
			t.Errorf("a run that changes all the time: %v", err)
		}
	}
}

// TestLabelIsCut checks that an export is continued whose label is cut inside of a character, or is no valid
// UTF-8: a JSON string cannot hold the rest of the bytes.
func TestLabelIsCut(t *testing.T) {
	t.Parallel()
	for _, label := range []string{"a" + strings.Repeat("ü", 200), "sqlite:/data/\xff.db", "\xfc"} {
		store := memory.New(nil)
		s := store.Open()
		randomStore(t, s, 7, 6)
		opts := &archive.ExportOptions{PartBytes: 1, Label: label}
		dir := t.TempDir()
		if _, err := archive.ExportDir(t.Context(), newCutStore(store, 20, false), dir, opts); !errors.Is(err, errCut) {
			t.Fatalf("the first export: %v", err)
		}
		if files := must(os.ReadDir(dir))(t); len(files) < 2 {
			t.Fatalf("the first export leaves %v", files)
		}
		must(archive.ExportDir(t.Context(), s, dir, opts))(t)
		must(archive.Check(t.Context(), must(archive.Open(dir))(t)))(t)
	}
}
