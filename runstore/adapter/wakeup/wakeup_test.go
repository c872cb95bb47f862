package wakeup_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter/wakeup"
)

// A write wakes only the waiters for its run, at its store and for its kind.
func TestWhoIsWoken(t *testing.T) {
	hub := wakeup.Of("store")
	writes := hub.Add(t.Context(), "run", runstore.OnWrite)
	releases := wakeup.Of("store").Add(t.Context(), "run", runstore.OnRelease)
	otherRun := hub.Add(t.Context(), "other", runstore.OnWrite)
	otherStore := wakeup.Of("another").Add(t.Context(), "run", runstore.OnWrite)
	purge := runstore.NewBatch("run", runstore.Unguarded("test"))
	purge.Purge = true
	last := runstore.NewBatch("run", runstore.Unguarded("test"))
	last.Release = true
	refused, unknown := error(runstore.ErrFenced), error(&runstore.OpError{Op: "commit", Err: runstore.ErrUnknownOutcome, Cause: errors.New("lost")})
	var applied error
	for _, tc := range []struct {
		name             string
		write            func()
		writes, releases bool
	}{
		{"a write", func() { hub.After(&applied, runstore.OnWrite, "run") }, true, false},
		{"a release", func() { hub.After(&applied, runstore.OnRelease, "run") }, true, true},
		{"a refused release", func() { hub.After(&refused, runstore.OnRelease, "run") }, false, false},
		{"a release in doubt", func() { hub.After(&unknown, runstore.OnRelease, "run") }, true, true},
		{"a commit", func() { hub.AfterBatches(&applied, runstore.NewBatch("run", runstore.Unguarded("test"))) }, true, false},
		{"a commit that releases", func() { hub.AfterBatches(&applied, last) }, true, true},
		{"a purge", func() { hub.AfterBatches(&applied, purge) }, true, true},
	} {
		tc.write()
		tc.write() // a second wake-up coalesces with the first
		if got := wakeup.Take(writes); got != tc.writes {
			t.Errorf("%s wakes who waits for writes: %t", tc.name, got)
		}
		if got := wakeup.Take(releases); got != tc.releases {
			t.Errorf("%s wakes who waits for a release: %t", tc.name, got)
		}
		if wakeup.Take(writes) || wakeup.Take(releases) || wakeup.Take(otherRun) || wakeup.Take(otherStore) {
			t.Errorf("%s wakes twice, or who waits for something else", tc.name)
		}
	}
	hub.AfterRaise(&applied)
	if !wakeup.Take(writes) || !wakeup.Take(releases) || !wakeup.Take(otherRun) || wakeup.Take(otherStore) {
		t.Error("a raise of the epoch wakes all who wait at the store, and nobody else")
	}
}

// Nothing is kept of waiters that have left.
func TestWaitingEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		hub := wakeup.Of("a store of its own")
		ch := hub.Add(ctx, "run", runstore.OnWrite)
		if n := len(hub.Waiting()); n != 1 {
			t.Errorf("%d runs are waited for, want 1", n)
		}
		cancel()
		synctest.Wait()
		hub.Wake(runstore.OnRelease, "run")
		if n := len(hub.Waiting()); n != 0 || wakeup.Take(ch) {
			t.Errorf("%d runs are waited for, and who has gone was woken", n)
		}
	})
}

func TestTheZeroHubWakesNobody(t *testing.T) {
	t.Parallel()
	var h wakeup.Hub
	ch := h.Add(t.Context(), "run", runstore.OnWrite)
	h.Wake(runstore.OnRelease, "run")
	h.AfterRaise(new(error))
	if wakeup.Take(ch) {
		t.Error("a waiter of the zero hub was woken")
	}
}
