package harness

import (
	"errors"
	"fmt"
	"slices"

	"github.com/tapestore/tapestore/runstore"
)

// RaiseEpoch raises the store's epoch and records that the case did so.
func (e *Env) RaiseEpoch(t T, s runstore.RunStore, reason string) runstore.Epoch {
	t.Helper()
	epochs, _ := runstore.As[runstore.EpochManager](s) // the case needs it
	epoch, err := epochs.RaiseEpoch(t.Context(), reason)
	if err != nil {
		t.Fatalf("raise epoch: %v", err)
	}
	e.ExpectEpoch(fmt.Sprintf("%d: %s", epoch, reason))
	return epoch
}

// ExpectEpoch records that the case raised an epoch without RaiseEpoch; change is the text
// "epoch: reason".
func (e *Env) ExpectEpoch(change string) { e.raised.add(change) }

// CheckEpochs fails the case unless the store's epochs are exactly those that the case raised (I2).
// A store may raise its epoch only after a loss, and no case loses anything. Without this check a
// raise would hide the defect that caused it: above the floor of a new epoch, every token and every
// position is new again.
//
// It runs after every case, so it is cheap: one read on a handle that is already open.
func (e *Env) CheckEpochs(t T) {
	t.Helper()
	s, ok := runstore.As[runstore.EpochManager](e.Store)
	if !ok || t.Failed() {
		return // a case that failed may have left anything behind
	}
	epochs, err := s.Epochs(t.Context())
	if errors.Is(err, runstore.ErrClosed) {
		again, _ := runstore.As[runstore.EpochManager](e.Reopen(t))
		epochs, err = again.Epochs(t.Context())
	}
	if err != nil {
		t.Errorf("epochs after the case: %v", err)
		return
	}
	var got []string
	for _, change := range epochs {
		got = append(got, fmt.Sprintf("%d: %s", change.Epoch, change.Reason))
	}
	if raised := e.raised.list(); !slices.Equal(got, raised) {
		t.Errorf("after the case the store lists the epochs %q, want those that the case raised: %q", got, raised)
	}
}
