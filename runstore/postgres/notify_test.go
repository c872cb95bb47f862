package postgres_test

import (
	"context"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

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

// A write has woken its own process by the time that its notification comes, except those that wait on a
// handle whose address names the server otherwise.
func TestOwnNotificationsWakeNobody(t *testing.T) {
	t.Parallel()
	address := database(t)
	s, same, foreign, other := open(t, address), open(t, address), open(t, address), open(t, address, otherHost)
	postgres.TakeForForeign(foreign)
	ch, err := s.RunWakeups(t.Context(), "run", runstore.OnWrite)
	if err != nil {
		t.Fatal(err)
	}
	wakeup.Take(ch)
	for _, tc := range []struct {
		name   string
		sender *postgres.Store
		wakes  bool
	}{
		{"the handle that waits", s, false},
		{"another handle", same, false},
		{"another process", foreign, true},
		{"a handle with another address", other, true},
	} {
		if postgres.Notify(s, tc.sender, "run"); wakeup.Take(ch) != tc.wakes {
			t.Errorf("a notification of %s wakes: %t, want %t", tc.name, !tc.wakes, tc.wakes)
		}
	}
}

// A server that falls silent during a notification delays the next ones until the handle gives up the
// connection, and not until TCP does.
func TestNotificationAfterASilentServer(t *testing.T) {
	t.Parallel()
	address := database(t)
	w := &wire{}
	waiter, writer := open(t, address), open(t, address, w.through, soonSilent)
	postgres.TakeForForeign(writer)
	lease := hold(t, writer, "run")
	ch, err := waiter.RunWakeups(t.Context(), "run", runstore.OnWrite)
	if err != nil {
		t.Fatal(err)
	}
	w.lose(swallowRequest, "pg_notify")
	await(t, "a notification that meets the silent server", func() bool {
		commit(t, writer, appending(lease, "before"))
		return w.harmed()
	})
	wakeup.Take(ch)
	await(t, "the notification of a later commit", func() bool {
		commit(t, writer, appending(lease, "after"))
		return wakeup.Take(ch)
	})
}

// A server that falls silent when a handle sends LISTEN delays the callers that wait for wake-ups until the connect
// timeout. The handle then listens over another connection.
func TestListenToASilentServer(t *testing.T) {
	t.Parallel()
	address := database(t)
	w := &wire{}
	waiter, writer := open(t, address, w.through), open(t, address)
	postgres.TakeForForeign(writer)
	lease := hold(t, writer, "run")
	w.lose(swallowRequest, "LISTEN")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	type reply struct {
		ch  <-chan struct{}
		err error
	}
	replied := make(chan reply, 1)
	go func() {
		ch, err := waiter.RunWakeups(ctx, "run", runstore.OnWrite)
		replied <- reply{ch, err}
	}()
	await(t, "the LISTEN that meets the silent server", w.harmed)
	var wakeups reply
	await(t, "the reply to the caller that waits for wake-ups", func() bool {
		select {
		case wakeups = <-replied:
			return true
		default:
			return false
		}
	})
	if wakeups.err != nil {
		t.Fatal(wakeups.err)
	}
	wakeup.Take(wakeups.ch)
	await(t, "the notification of a commit", func() bool {
		commit(t, writer, appending(lease, "event"))
		return wakeup.Take(wakeups.ch)
	})
}

// The pause before a new connection for notifications grows while none can be made, and only then.
func TestListenPause(t *testing.T) {
	t.Parallel()
	var pause time.Duration
	for _, want := range []time.Duration{10, 20, 40, 80, 160, 320, 640, 1280, 2560, 5000, 5000} {
		if pause = postgres.ListenPause(pause, false); pause != want*time.Millisecond {
			t.Fatalf("got the pause %v, want %d ms", pause, want)
		}
	}
	if pause = postgres.ListenPause(pause, true); pause != 10*time.Millisecond {
		t.Errorf("after a connection that listened: got the pause %v, want 10 ms", pause)
	}
}

// otherHost names the server by another host.
func otherHost(config *pgxpool.Config, _ *postgres.Options) {
	c := config.ConnConfig
	dial := c.DialFunc
	network, at := pgconn.NetworkAddress(c.Host, c.Port)
	c.DialFunc = func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx, network, at) }
	c.LookupFunc = func(context.Context, string) ([]string, error) { return []string{"192.0.2.1"}, nil }
	c.Host = "other.invalid"
}
