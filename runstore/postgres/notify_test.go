package postgres_test

import (
	"fmt"
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

// A notification names up to MaxNames runs and wakes their callers. If more runs were written to, it
// wakes the callers of all runs, also of those that it had no room for.
func TestNotificationOfManyRuns(t *testing.T) {
	t.Parallel()
	for _, n := range []int{postgres.MaxNames, postgres.MaxNames + 1} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			t.Parallel()
			address := database(t)
			waiter, writer := open(t, address), open(t, address)
			postgres.TakeForForeign(writer)
			wait := func(id runstore.RunID) <-chan struct{} {
				t.Helper()
				ch, err := waiter.RunWakeups(t.Context(), id, runstore.OnWrite)
				if err != nil {
					t.Fatal(err)
				}
				wakeup.Take(ch)
				return ch
			}
			ids := make([]runstore.RunID, n)
			for i := range ids {
				ids[i] = runstore.RunID(fmt.Sprint("run ", i))
			}
			first, last, other, next := wait(ids[0]), wait(ids[n-1]), wait("other"), wait("next")

			postgres.Committed(writer, ids...)
			await(t, "the notification", func() bool { return wakeup.Take(first) })
			for range 2 { // the second wake-up comes from a later notification, so the first one has woken all its callers
				wakeup.Take(next)
				await(t, "the next notification", func() bool {
					postgres.Committed(writer, "next")
					return wakeup.Take(next)
				})
			}
			if !wakeup.Take(last) {
				t.Errorf("a notification of %d runs does not wake the caller that waits for the last of them", n)
			}
			if woken := wakeup.Take(other); woken != (n > postgres.MaxNames) {
				t.Errorf("a notification of %d runs wakes a caller that waits for another run: %t", n, woken)
			}
		})
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
