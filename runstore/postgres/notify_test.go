package postgres_test

import (
	"testing"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter/wakeup"
	"github.com/tapestore/tapestore/runstore/postgres"
)

// Writes of another process wake the callers that wait for their run and for their kind, and no
// other caller. A raise of the epoch wakes all.
func TestRunWakeupsAcrossProcesses(t *testing.T) {
	t.Parallel()
	address := database(t)
	waiter, writer := open(t, address), open(t, address)
	postgres.TakeForForeign(writer)
	lease := hold(t, writer, "run")
	hold(t, writer, "other")
	wait := func(id runstore.RunID, on runstore.WakeOn) <-chan struct{} {
		t.Helper()
		ch, err := waiter.RunWakeups(t.Context(), id, on)
		if err != nil {
			t.Fatal(err)
		}
		return ch
	}
	writes, releases, others := wait("run", runstore.OnWrite), wait("run", runstore.OnRelease), wait("other", runstore.OnWrite)
	told := func() { // of a commit, and so of all writes before it
		t.Helper()
		wakeup.Take(writes)
		b := runstore.NewBatch("run", runstore.Unguarded("test"))
		b.Append("event", nil)
		for seen := false; !seen; seen = wakeup.Take(writes) {
			commit(t, writer, b)
			if t.Context().Err() != nil {
				t.Fatal("not woken")
			}
		}
	}
	told()
	told()
	wakeup.Take(releases) // by what was before
	wakeup.Take(others)
	for range 3 {
		told()
	}
	if wakeup.Take(releases) || wakeup.Take(others) {
		t.Error("a commit wakes a caller that waits for a release, or for another run")
	}
	if _, err := writer.ReleaseLease(t.Context(), runstore.ReleaseRequest{Fence: lease.Fence()}); err != nil {
		t.Fatal(err)
	}
	told()
	told()
	if !wakeup.Take(releases) {
		t.Error("a release does not wake a caller that waits for it")
	}
	if _, err := writer.RaiseEpoch(t.Context(), "test"); err != nil {
		t.Fatal(err)
	}
	told()
	told()
	if !wakeup.Take(releases) || !wakeup.Take(others) {
		t.Error("a raise of the epoch does not wake every caller")
	}
}

// A write has woken its own process by the time that its notification comes.
func TestOwnNotificationsWakeNobody(t *testing.T) {
	t.Parallel()
	address := database(t)
	s, foreign := open(t, address), open(t, address)
	postgres.TakeForForeign(foreign)
	ch, err := s.RunWakeups(t.Context(), "run", runstore.OnWrite)
	if err != nil {
		t.Fatal(err)
	}
	wakeup.Take(ch)
	for sender, wakes := range map[*postgres.Store]bool{s: false, foreign: true} {
		if postgres.Notify(s, sender, "run"); wakeup.Take(ch) != wakes {
			t.Errorf("a notification of this process: %t, wakes: %t", sender == s, !wakes)
		}
	}
}
