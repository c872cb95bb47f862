package conformance

import (
	"errors"
	"fmt"
	"slices"

	"github.com/tapestore/tapestore/runstore"
)

// raise raises the store's epoch and records that the case did so.
func (e *Env) raise(t T, s runstore.RunStore, reason string) runstore.Epoch {
	t.Helper()
	epoch, err := capability[runstore.EpochManager](s).RaiseEpoch(t.Context(), reason)
	if err != nil {
		t.Fatalf("raise epoch: %v", err)
	}
	e.raised.add(fmt.Sprintf("%d: %s", epoch, reason))
	return epoch
}

// checkEpochs fails the case unless the store's epochs are exactly those that the case raised (I2).
// A store may raise its epoch only after a loss, and no case loses anything. Without this check a
// raise would hide the defect that caused it: above the floor of a new epoch, every token and every
// position is new again.
//
// It runs after every case, so it is cheap: one read on a handle that is already open.
func (e *Env) checkEpochs(t T) {
	t.Helper()
	s, ok := runstore.As[runstore.EpochManager](e.Store)
	if !ok || t.Failed() {
		return // a case that failed may have left anything behind
	}
	epochs, err := s.Epochs(t.Context())
	if errors.Is(err, runstore.ErrClosed) {
		epochs, err = capability[runstore.EpochManager](e.Reopen(t)).Epochs(t.Context())
	}
	if err != nil {
		t.Errorf("epochs after the case: %v", err)
		return
	}
	var got []string
	for _, change := range epochs {
		got = append(got, fmt.Sprintf("%d: %s", change.Epoch, change.Reason))
	}
	if !slices.Equal(got, e.raised.all) {
		t.Errorf("after the case the store lists the epochs %q, want those that the case raised: %q", got, e.raised.all)
	}
}
