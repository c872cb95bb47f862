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

// processTTL is short, because the test waits for two expiries. A busy machine may lose a lease before:
// then there are more terms, with other tokens, and the test follows them.
const processTTL = 3 * time.Second

// child is a replica: while it is active, it commits an event every 20 ms. It prints its first commit
// and the end of each term. It ends when its standard input does.
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
	err = c.Run(ctx, func(work context.Context, held *lease.Held) error {
		// The work ignores the end of its context until the store has refused a write, so that the
		// store's check is tested and not the replica's care.
		for active := false; ; {
			b := runstore.NewBatch("scheduler", held.Fence())
			b.Append("tick", nil)
			_, err := store.Commit(context.WithoutCancel(work), b)
			switch kind := runstore.KindOf(err); {
			case err == nil && !active:
				active = true
				fmt.Println("active", int64(held.Fence().Token()))
			case err != nil && kind != runstore.ErrUnavailable && kind != runstore.ErrUnknownOutcome:
				fmt.Println("ended", int64(held.Fence().Token()), kind)
				return err
			}
			select {
			case <-time.After(20 * time.Millisecond):
			case <-ctx.Done(): // the process is asked to end
				return context.Cause(ctx)
			}
		}
	})
	if ctx.Err() == nil {
		return err
	}
	return nil
}

// term is a term of a replica.
type term struct {
	replica string
	token   int64
}

// terms follows the terms of replicas by what they print.
type terms struct {
	t     *testing.T
	lines chan [2]string  // a replica and its line
	ends  map[term]string // how terms ended
}

// next reads a line and records the end of a term. active reports whether the term has just begun.
func (s *terms) next(what string) (which term, active bool) {
	s.t.Helper()
	select {
	case l := <-s.lines:
		which.replica = l[0]
		if n, _ := fmt.Sscanf(l[1], "active %d", &which.token); n == 1 {
			return which, true
		}
		if n, _ := fmt.Sscanf(l[1], "ended %d", &which.token); n == 1 {
			s.ends[which] = l[1]
		}
	case <-time.After(5 * time.Minute): // a replica hangs
		s.t.Fatalf("no replica printed anything during the wait for %s", what)
	}
	return which, false
}

// after waits until another replica than that of a term has a later term. Further terms may come and go.
func (s *terms) after(before term) term {
	s.t.Helper()
	for {
		next, active := s.next("a later term")
		if active && next.replica != before.replica && next.token > before.token {
			return next
		}
	}
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
	seen := &terms{t: t, lines: make(chan [2]string, 1000), ends: map[term]string{}}
	for _, name := range []string{"a", "b", "c"} {
		p := childprocess.Start(t, []string{election.ReplicaVariable + "=" + name}, url)
		p.Next(t, "ready")
		all[name] = p
		go func() {
			for line := range p.Lines {
				seen.lines <- [2]string{name, line}
			}
		}()
	}
	first := seen.after(term{})
	if err := all[first.replica].Cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	killed := time.Now()
	second := seen.after(first)
	t.Logf("killed: a standby was active after %v, with a TTL of %v", time.Since(killed).Round(time.Millisecond), processTTL)

	all[second.replica].Suspend(t, store)
	paused := time.Now()
	seen.after(second)
	t.Logf("stopped: a standby was active after %v", time.Since(paused).Round(time.Millisecond))
	all[second.replica].Resume(t)
	for seen.ends[second] == "" { // it may have lost its term before it was stopped
		seen.next("the refusal of the replica that was stopped")
	}
	if how := seen.ends[second]; !strings.Contains(how, runstore.ErrFenced.Error()) {
		t.Errorf("the last write of the replica that was stopped: %s, want %v", how, runstore.ErrFenced)
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
