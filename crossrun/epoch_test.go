package crossrun_test

import (
	"context"
	"errors"
	"testing"

	"github.com/tapestore/tapestore/crossrun"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
)

// restored is a driver's store that is set back to an older state before the
// driver's write number at.
type restored struct {
	runstore.RunStore
	at      int
	restore func() runstore.RunStore
}

func (s *restored) Commit(ctx context.Context, b runstore.Batch) (runstore.Committed, error) {
	if s.at--; s.at == 0 {
		s.RunStore = s.restore()
	}
	return s.RunStore.Commit(ctx, b)
}

// TestRestoredStore proves that a step of a time that the store has lost reaches
// neither run, though its lead makes steps again and versions are counted again.
func TestRestoredStore(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	before := memory.New(nil).Open()
	create(t, before, "run", "registry")
	lead, other := claim(hold(t, before, "run"))

	backup := memory.New(nil).Open()
	create(t, backup, "run", "registry")
	hold(t, backup, "run")
	zombie := &restored{before, 3, func() runstore.RunStore {
		if _, err := backup.RaiseEpoch(ctx, "restored from a backup"); err != nil {
			t.Fatal(err)
		}
		lead, other := claim(hold(t, backup, "run"))
		other.Put("n", []byte("after the restore"))
		other.Records = other.Records[1:]
		if _, err := crossrun.Commit(ctx, &dying{backup, 2}, lead, other); !errors.Is(err, runstore.ErrUnknownOutcome) {
			t.Fatalf("the step after the restore: %v", err)
		}
		return backup
	}}
	_, err := crossrun.Commit(ctx, zombie, lead, other)
	if !errors.Is(err, runstore.ErrFenced) {
		t.Errorf("the step from before the restore: got error %v, want fenced", err)
	}
	if n := claims(t, backup, "registry"); n != 0 {
		t.Errorf("the step from before the restore was made on the other run")
	}
	hold(t, backup, "run")
	if n := [2]int{claims(t, backup, "run"), claims(t, backup, "registry")}; n != [2]int{1, 1} {
		t.Errorf("the step after the restore was made %d times, want once on both runs", n)
	}
}
