package archive_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tapestore/tapestore/archive"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
)

// The replies to any part of an import are lost: the part was applied, was not, or is applied later,
// between the look at the run and the repeat. The store refuses records that exist, as Mover may.
func TestImportLosesReplies(t *testing.T) {
	t.Parallel()
	source := newMemory(t)
	queuedRun(t, source, "run", 300, 100, 600)
	moved := export(t, source)
	for name, lose := range map[string]func(apply func() error) (late func() error){
		"applied":      func(apply func() error) func() error { _ = apply(); return nil },
		"not applied":  func(func() error) func() error { return nil },
		"applied late": func(apply func() error) func() error { return apply },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				parts := 0
				for nth := 0; nth <= parts; nth++ { // the first import loses nothing, and counts the parts
					calls := 0
					var late func() error
					target := &partStore{Handle: memory.New(nil).Open()}
					target.part = func(ctx context.Context, part runstore.Import, apply func() error) error {
						apply = refuseExisting(ctx, target.Handle, part, apply)
						if calls++; calls == nth {
							late = lose(apply)
							return runstore.ErrUnknownOutcome
						}
						if late != nil {
							if err := late(); err != nil {
								t.Errorf("the late copy of call %d: %v", nth, err)
							}
							late = nil
						}
						return apply()
					}
					report, err := archive.Import(t.Context(), stream(moved), target, nil)
					if err != nil || report.Imported.Runs != 1 || calls < 5 {
						t.Fatalf("call %d of %d is lost: %+v, %v", nth, calls, report, err)
					}
					if nth == 0 {
						parts = calls
					}
					mustEqual(t, source, target.Handle)
				}
			})
		})
	}
}

// refuseExisting returns apply, refused when a record of the part exists: as a conflict, or as fenced after
// the last part, which ends the grant.
func refuseExisting(ctx context.Context, s runstore.RunStore, part runstore.Import, apply func() error) func() error {
	return func() error {
		for _, r := range part.Records {
			found, err := s.ReadRecords(ctx, part.Fence.Run(), runstore.RecordQuery{Keys: []runstore.RecordKey{r.Key}})
			if err != nil {
				return err
			}
			if len(found) > 0 && part.Release {
				return runstore.ErrFenced
			}
			if len(found) > 0 {
				return runstore.ErrConflict
			}
		}
		return apply()
	}
}

// The reply to the last part is lost, and another import takes the run over and finishes it: the first
// does not count the run as imported by it, and reports an unknown outcome, because the last part may
// have been applied.
func TestImportIsTakenOverAtItsEnd(t *testing.T) {
	t.Parallel()
	source := newMemory(t)
	queuedRun(t, source, "run", 3, 3, 3)
	moved := export(t, source)
	synctest.Test(t, func(t *testing.T) {
		store := memory.New(nil)
		target := &partStore{Handle: store.Open()}
		lost := false
		target.part = func(ctx context.Context, _ runstore.Import, apply func() error) error {
			if lost {
				return apply()
			}
			lost = true
			report, err := archive.Import(ctx, stream(moved), store.Open(), nil) // it waits for the lease
			if err != nil || report.Redone != 1 {
				t.Errorf("the second import: %+v, %v", report, err)
			}
			return runstore.ErrUnknownOutcome
		}
		report, err := archive.Import(t.Context(), stream(moved), target, nil)
		if runstore.OutcomeOf(err) != runstore.Unknown || report.Imported.Runs != 0 {
			t.Errorf("the first import: %+v, %v", report, err)
		}
		mustEqual(t, source, store.Open())
	})
}

// TestImportWhoseRunIsDrivenAtOnce checks that an import is not reported as fenced when the reply to its
// last part is lost, and a driver acquires the lease of the run before the repeat.
func TestImportWhoseRunIsDrivenAtOnce(t *testing.T) {
	t.Parallel()
	source := newMemory(t)
	queuedRun(t, source, "run", 3, 3, 3)
	moved := export(t, source)
	synctest.Test(t, func(t *testing.T) {
		target := &partStore{Handle: memory.New(nil).Open()}
		lost := false
		target.part = func(ctx context.Context, part runstore.Import, apply func() error) error {
			if lost || !part.Release {
				return apply()
			}
			lost = true
			if err := apply(); err != nil {
				t.Error(err)
			}
			driver := runstore.LeaseSpec{Owner: "driver", TTL: time.Minute, Grant: runstore.NewGrantID()}
			if _, err := target.AcquireLease(ctx, runstore.AcquireRequest{Run: "run", LeaseSpec: driver}); err != nil {
				t.Error(err)
			}
			return runstore.ErrUnknownOutcome
		}
		if report, err := archive.Import(t.Context(), stream(moved), target, nil); runstore.OutcomeOf(err) != runstore.Unknown {
			t.Errorf("got %+v, %v, want an unknown outcome", report, err)
		}
		if report, err := archive.Import(t.Context(), stream(moved), target, nil); err != nil || report.Present != 1 {
			t.Errorf("the repeat: %+v, %v", report, err)
		}
	})
}
