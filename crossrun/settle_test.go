package crossrun_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/tapestore/tapestore/crossrun"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
)

// TestSettle proves that a caller without the lease ends a step that is under way, whichever write of
// its own fails first, and that the holder goes on under its grant.
func TestSettle(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	for made := range 6 { // writes of the driver
		for fails := 1; fails <= 5; fails++ { // the write of Settle that fails
			for _, reached := range []bool{false, true} {
				t.Run(fmt.Sprintf("the driver makes %d writes, write %d of Settle fails, made %t", made, fails, reached), func(t *testing.T) {
					t.Parallel()
					base := memory.New(nil).Open()
					create(t, base, "run", "registry")
					lease := hold(t, base, "run")
					lead, other := claim(lease)
					_, result := crossrun.Commit(ctx, &dying{base, made}, lead, other)

					_, err := crossrun.Settle(ctx, &failing{base, fails, runstore.ErrUnknownOutcome, reached}, "run")
					if err != nil && runstore.KindOf(err) != runstore.ErrUnknownOutcome {
						t.Errorf("Settle = %v, want an unknown outcome", err)
					}
					if _, err := crossrun.Settle(ctx, base, "run"); err != nil {
						t.Errorf("Settle = %v", err)
					}
					want := [2]int{1, 1}
					if made < 2 { // the second writes the intent
						want = [2]int{}
					}
					if got := [2]int{claims(t, base, "run"), claims(t, base, "registry")}; got != want {
						t.Errorf("the step was made %d times, want %d; the driver was told %v", got, want, result)
					}
					b := runstore.NewBatch("run", lease.Fence(), crossrun.Idle())
					b.Append("next", nil)
					if _, err := base.Commit(ctx, b); err != nil {
						t.Errorf("the holder's next write: %v", err)
					}
				})
			}
		}
	}
}

func TestSettleOfNoRun(t *testing.T) {
	t.Parallel()
	if _, err := crossrun.Settle(t.Context(), memory.New(nil).Open(), "run"); !errors.Is(err, runstore.ErrNotFound) {
		t.Errorf("Settle = %v, want not found", err)
	}
}

// TestSettleInARestoredStore proves that Settle does not end a step with the writes of another, which
// the store has lost, though both intents have one version.
func TestSettleInARestoredStore(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	begin := func(s runstore.RunStore) {
		lead, other := claim(hold(t, s, "run"))
		if _, err := crossrun.Commit(ctx, &dying{s, 2}, lead, other); !errors.Is(err, runstore.ErrUnknownOutcome) {
			t.Errorf("got error %v, want an unknown outcome", err)
		}
	}
	version := func(s runstore.RunStore) runstore.Version {
		recs, err := s.ReadRecords(ctx, "run", runstore.RecordQuery{Keys: []runstore.RecordKey{crossrun.IntentKey}})
		if err != nil || len(recs) != 1 {
			t.Fatalf("%d intents, %v", len(recs), err)
		}
		return recs[0].Version
	}
	before, backup := memory.New(nil).Open(), memory.New(nil).Open()
	create(t, before, "run", "registry")
	create(t, backup, "run", "registry")
	begin(before)
	lost := version(before)
	_, err := crossrun.Settle(ctx, &restored{before, 3, func() runstore.RunStore {
		if _, err := backup.RaiseEpoch(ctx, "restored from a backup"); err != nil {
			t.Fatal(err)
		}
		if begin(backup); version(backup) != lost {
			t.Errorf("the intents have the versions %d and %d", lost, version(backup))
		}
		return backup
	}}, "run")
	if err != nil {
		t.Error(err)
	}
	if n := [2]int{claims(t, backup, "run"), claims(t, backup, "registry")}; n != [2]int{1, 1} {
		t.Errorf("the step after the restore was made %d times, want once on both runs", n)
	}
}
