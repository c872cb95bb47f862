package peers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tapestore/tapestore/bench"
	"github.com/tapestore/tapestore/emulators"
)

// target is the target "postgres" with the peers; nil if the machine lacks PostgreSQL.
var target *bench.Target

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	for _, starter := range Starters() {
		if starter.Name != "postgres" {
			continue
		}
		started, err := starter.Start(context.Background())
		if starter.Missing(err) && os.Getenv("CI") == "" {
			fmt.Fprintln(os.Stderr, err)
			break
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		target = &started
	}
	code := m.Run()
	if target != nil {
		if err := target.Close(); err != nil {
			fmt.Fprintln(os.Stderr, "to stop the peers:", err)
			return 1
		}
		if running := stillRunning(); running != "" {
			fmt.Fprintln(os.Stderr, "still running after Close:", running)
			return 1
		}
	}
	return code
}

// stillRunning returns the stack of a goroutine that belongs to a peer or its connections.
func stillRunning() string {
	return running("go.etcd.io/etcd", "riverqueue", "leaderelection", "pgxpool", "bench/peers.(*")
}

// running returns the stack of a goroutine of one of the libraries, or "" once there is none. It
// first gives them time to end, because some libraries do not wait for their goroutines.
func running(libraries ...string) string {
	for deadline := time.Now().Add(5 * time.Minute); ; time.Sleep(10 * time.Millisecond) {
		stacks := make([]byte, 16<<20)
		found := ""
		for stack := range strings.SplitSeq(string(stacks[:runtime.Stack(stacks, true)]), "\n\n") {
			for _, library := range libraries {
				if strings.Contains(stack, library) && !strings.Contains(stack, "peers.running") {
					found = stack
				}
			}
		}
		if found == "" || time.Now().After(deadline) {
			return found
		}
	}
}

// strategies runs a test for each peer.
func strategies(t *testing.T, test func(t *testing.T, s bench.Strategy)) {
	if target == nil {
		emulators.Require(t, emulators.ErrMissing)
	}
	for _, s := range target.Strategies {
		t.Run(s.System+"/"+s.Name, func(t *testing.T) { test(t, s) })
	}
}

func open(t *testing.T, s bench.Strategy, contenders, leases int) *contest {
	t.Helper()
	made, err := s.New(t.Context(), contenders, leases)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := made.Close(); err != nil {
			t.Error("close:", err)
		}
	})
	return made.(*contest)
}

// TestTurns checks that contenders take turns, and that each stores one event.
func TestTurns(t *testing.T) {
	strategies(t, func(t *testing.T, s bench.Strategy) {
		const contenders, leases, turns = 4, 2, 4
		c := open(t, s, contenders, leases)
		var holders [leases]atomic.Int32
		acquire := c.acquire
		c.acquire = func(ctx context.Context, contender, lease int, brief bool) (*holding, error) {
			h, err := acquire(ctx, contender, lease, brief)
			if err != nil {
				return nil, err
			}
			if n := holders[lease].Add(1); n != 1 {
				t.Errorf("%d contenders hold lease %d", n, lease)
			}
			// A lease may be taken over as soon as the write that releases it is stored.
			leave := sync.OnceFunc(func() { holders[lease].Add(-1) })
			write, release := h.write, h.release
			h.write = func(ctx context.Context) error {
				if s.System == sysJob {
					leave()
				}
				return write(ctx)
			}
			h.release = func(ctx context.Context) error { leave(); return release(ctx) }
			return h, nil
		}
		var all sync.WaitGroup
		for contender := range contenders {
			all.Go(func() {
				for i := range turns {
					turn, err := c.Turn(t.Context(), contender, i%leases)
					switch {
					case err != nil:
						t.Errorf("contender %d: %v", contender, err)
						return
					case turn.Waited <= 0:
						t.Error("a turn took no time")
					case turn.Attempts != len(turn.Lost)+1:
						t.Errorf("%d attempts, of which %d were refused", turn.Attempts, len(turn.Lost))
					case turn.Calls < 3:
						t.Errorf("a turn of %d requests", turn.Calls)
					}
				}
			})
		}
		all.Wait()
		if n, err := c.Committed(t.Context()); err != nil || n != contenders*turns {
			t.Errorf("%d of %d events are stored: %v", n, contenders*turns, err)
		}
		// A contest counts only its own events.
		if n, err := open(t, s, 1, 1).Committed(t.Context()); err != nil || n != 0 {
			t.Errorf("a new contest has %d events: %v", n, err)
		}
	})
}

// TestCancelledTurn checks that a contender whose context ends while it waits leaves the lease to
// the other contenders.
func TestCancelledTurn(t *testing.T) {
	strategies(t, func(t *testing.T, s bench.Strategy) {
		c := open(t, s, 3, 1)
		h, err := c.acquire(t.Context(), 0, 0, false)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() {
			_, err := c.Turn(ctx, 1, 0)
			ended <- err
		}()
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("a cancelled turn returns %v", err)
		}
		if err := errors.Join(h.write(t.Context()), h.release(t.Context())); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Turn(t.Context(), 2, 0); err != nil {
			t.Error(err)
		}
		if n, err := c.Committed(t.Context()); err != nil || n != 2 {
			t.Errorf("%d events of 2 turns: %v", n, err)
		}
	})
}

// TestCutTurnsCount checks that a turn which ends before its lease is granted reports what it did, as
// a turn of a store does: here one attempt, which is refused.
func TestCutTurnsCount(t *testing.T) {
	strategies(t, func(t *testing.T, s bench.Strategy) {
		if s.System != sysLeaseRow && s.System != sysLeader && s.System != sysJob {
			t.Skip("not applicable: whether a cancelled turn has sent its request depends on the library")
		}
		c := open(t, s, 2, 1)
		h, err := c.acquire(t.Context(), 0, 0, false)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		turn, err := c.Turn(ctx, 1, 0)
		if !errors.Is(err, context.Canceled) || turn.Attempts != 1 || len(turn.Lost) != 1 || turn.Calls < 1 || turn.Waited <= 0 {
			t.Errorf("got %+v, %v, want one refused attempt", turn, err)
		}
		if err := errors.Join(h.write(t.Context()), h.release(t.Context())); err != nil {
			t.Fatal(err)
		}
	})
}

// TestSlices checks that no lease is left behind when the contexts of all contenders end together,
// as they do at the end of a round.
func TestSlices(t *testing.T) {
	strategies(t, func(t *testing.T, s bench.Strategy) {
		const contenders = 4
		c := open(t, s, contenders, 1)
		done := 0
		for range 5 {
			ctx, stop := context.WithCancel(t.Context())
			var all sync.WaitGroup
			var wins atomic.Int32
			for contender := range contenders {
				all.Go(func() {
					for ctx.Err() == nil {
						_, err := c.Turn(ctx, contender, 0)
						if err == nil {
							wins.Add(1)
							stop()
						} else if ctx.Err() == nil {
							t.Error(err)
							stop()
						}
					}
				})
			}
			all.Wait()
			stop()
			done += int(wins.Load())
		}
		if n, err := c.Committed(t.Context()); err != nil || n != done {
			t.Errorf("%d events of %d turns: %v", n, done, err)
		}
	})
}

// TestPauseAndWake checks that each peer handles the late write of a paused holder as its Guarantee
// says.
func TestPauseAndWake(t *testing.T) {
	refused := map[string]string{
		sysRowLock + "/one transaction":       "FATAL: terminating connection due to administrator command (SQLSTATE 57P01)",
		sysEtcd + "/Mutex, writes if IsOwner": "the condition IsOwner does not hold",
	}
	strategies(t, func(t *testing.T, s bench.Strategy) {
		contest, began := open(t, s, 2, 1), time.Now()
		woke, err := contest.PauseAndWake(t.Context())
		took := time.Since(began) // from before the lease was granted, of which a slow machine spends much before the pause
		if err != nil {
			t.Fatal(err)
		}
		answer, fenced := refused[s.System+"/"+s.Name]
		if woke.Stored == fenced {
			t.Errorf("stored: %v", woke.Stored)
		}
		if fenced && woke.Answer != answer {
			t.Errorf("the paused holder gets %q, not %q", woke.Answer, answer)
		}
		if !fenced && s.System != sysJob && woke.Answer != "no error" {
			t.Errorf("the paused holder gets %q", woke.Answer)
		}
		if woke.TTL > 0 && took < woke.TTL/2 {
			t.Errorf("the lease of %v was taken over after %v", woke.TTL, took)
		}
		t.Logf("stored: %v; the paused holder gets %q; taken over after %v of %v", woke.Stored, woke.Answer, woke.Takeover, woke.TTL)
	})
}

// TestRest checks that etcd's server is stopped between the parts that have contests, and that a
// contest after that starts it again.
func TestRest(t *testing.T) {
	strategies(t, func(t *testing.T, s bench.Strategy) {
		if s.System != sysEtcd {
			t.Skip("not applicable: it has no server of its own")
		}
		for range 2 {
			made, err := s.New(t.Context(), 1, 1)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := made.Turn(t.Context(), 0, 0); err != nil {
				t.Error(err)
			}
			if err := errors.Join(made.Close(), target.Rest()); err != nil {
				t.Fatal(err)
			}
			if stack := running("go.etcd.io/etcd"); stack != "" {
				t.Fatalf("etcd runs on: %s", stack)
			}
		}
	})
}

// TestDescribed checks that every strategy belongs to a described system.
func TestDescribed(t *testing.T) {
	known := map[string]bool{}
	strategies(t, func(t *testing.T, s bench.Strategy) { known[s.System] = true })
	for _, p := range target.Peers {
		g := p.Guarantee
		if !p.Peer || !known[p.Name] || p.Engine == "" || p.Version == "" || p.Topology == "" || g.Token == "" || g.Clock == "" || g.InFlight == "" {
			t.Errorf("not described, or without a strategy: %+v", p)
		}
		delete(known, p.Name)
		t.Logf("%+v", p)
	}
	if len(known) > 0 {
		t.Errorf("no system for %v", known)
	}
}

// TestLeasesNeedTheirVersion checks that the in-memory API server refuses an update of a lease that
// changed since it was read, which client-go's elector relies on.
func TestLeasesNeedTheirVersion(t *testing.T) {
	leases := newAPIServer().client.CoordinationV1().Leases(namespace)
	made, err := leases.Create(t.Context(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "lease"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := leases.Update(t.Context(), made, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := leases.Update(t.Context(), made, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
		t.Errorf("an update of an old version returns %v", err)
	}
}
