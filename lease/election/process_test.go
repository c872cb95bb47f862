package election_test

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tapestore/tapestore/internal/childprocess"
	"github.com/tapestore/tapestore/lease"
	"github.com/tapestore/tapestore/lease/election"
	"github.com/tapestore/tapestore/runstore"
	_ "github.com/tapestore/tapestore/runstore/sqlite"
)

func TestMain(m *testing.M) {
	childprocess.Main(m, func(args []string) error { return child(args[0]) })
}

// processTTL is long enough that a machine with other work renews in time, and short enough for a
// test that waits for two expiries.
const processTTL = 3 * time.Second

// child is a replica: while it is active, it commits an event every 20 ms and prints what happens.
// It ends when its standard input does.
func child(url string) error {
	ctx := childprocess.UntilStopped()
	store, err := runstore.Open(ctx, url)
	if err != nil {
		return err
	}
	defer func() { _ = store.Close() }()
	c, err := election.New(store, "scheduler", &election.Options{
		TTL: processTTL, AcquireInterval: 500 * time.Millisecond, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return err
	}
	fmt.Println("ready")
	err = c.Run(ctx, func(ctx context.Context, held *lease.Held) error {
		fmt.Println("active", int64(held.Fence().Token()))
		// The work ignores the end of its context until the store has refused a write, so that the
		// store's check is tested and not the replica's care.
		for {
			b := runstore.NewBatch("scheduler", held.Fence())
			b.Append("tick", nil)
			if _, err := store.Commit(context.WithoutCancel(ctx), b); err != nil {
				fmt.Println("refused", runstore.KindOf(err))
				return err
			}
			select {
			case <-time.After(20 * time.Millisecond):
			case <-stopped(ctx):
				return context.Cause(ctx)
			}
		}
	})
	if ctx.Err() == nil {
		return err
	}
	return nil
}

// stopped returns a channel that is closed when the process is asked to end, and not by a loss.
func stopped(ctx context.Context) <-chan struct{} {
	if ctx.Err() != nil && context.Cause(ctx) == context.Canceled {
		return ctx.Done()
	}
	return nil
}

// Replicas in processes of their own: the active one is killed, the next is stopped beyond its lease
// and continued. Standbys take over, the late write of the stopped replica is refused, and the
// journal has the writes of each term after all those of the terms before it.
func TestProcesses(t *testing.T) {
	t.Parallel()
	url := "sqlite:" + filepath.Join(t.TempDir(), "store.db")
	store, err := runstore.Open(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = store.Close() }()
	all := map[string]*childprocess.Process{}
	events := make(chan string, 1000) // "NAME active TOKEN"
	for _, name := range []string{"a", "b", "c"} {
		p := childprocess.Start(t, []string{election.ReplicaVariable + "=" + name}, url)
		p.Next(t, "ready")
		all[name] = p
		go func() {
			for line := range p.Lines {
				events <- name + " " + line
			}
		}()
	}
	await := func(what string) (name string) {
		t.Helper()
		for {
			select {
			case e := <-events:
				if name, rest, _ := strings.Cut(e, " "); strings.HasPrefix(rest, what) {
					return name
				}
			case <-time.After(5 * time.Minute): // a replica hangs
				t.Fatalf("no replica printed %q", what)
			}
		}
	}
	first := await("active 1")
	awaitEvents(t, store, 1)
	if err := all[first].Cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	killed := time.Now()
	second := await("active 2")
	awaitEvents(t, store, 2)
	t.Logf("killed: a standby was active after %v, with a TTL of %v", time.Since(killed).Round(time.Millisecond), processTTL)

	all[second].Suspend(t, store)
	paused := time.Now()
	await("active 3")
	awaitEvents(t, store, 3)
	t.Logf("stopped: a standby was active after %v", time.Since(paused).Round(time.Millisecond))
	all[second].Resume(t)
	for await("refused") != second { // another one may have lost its lease on a busy machine
	}
	for _, p := range all {
		_ = p.In.Close() // one of them is dead
	}

	last, ticks := runstore.Token(0), map[runstore.Token]int{}
	for e, err := range runstore.Journal(t.Context(), store, "scheduler", 1) {
		if err != nil {
			t.Fatal(err)
		}
		if e.Token < last {
			t.Errorf("event %d was written under token %v, after one under %v", e.Seq, e.Token, last)
		}
		last = e.Token
		ticks[e.Token]++
	}
	if len(ticks) < 3 {
		t.Errorf("events by token: %v, want some of each of three terms", ticks)
	}
}

// awaitEvents waits until the journal has an event that was written under a token.
func awaitEvents(t *testing.T, store runstore.RunStore, token runstore.Token) {
	t.Helper()
	for {
		for e, err := range runstore.Journal(t.Context(), store, "scheduler", 1) {
			if err != nil {
				t.Fatal(err)
			}
			if e.Token == token {
				return
			}
		}
		time.Sleep(10 * time.Millisecond)
	}
}
