package bench

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
)

// lineTest is a line with a holder and waiting contenders.
type lineTest struct {
	caller *caller
	line   line
	held   runstore.Lease
	leases map[string]chan runstore.Lease
	errs   map[string]chan error
}

func newLineTest(t *testing.T) *lineTest {
	t.Helper()
	store := memory.New(nil).Open()
	t.Cleanup(func() { store.Close() })
	if _, err := store.CreateRun(t.Context(), runstore.RunSpec{ID: "r"}); err != nil {
		t.Fatal(err)
	}
	l := &lineTest{caller: &caller{RunStore: store}, leases: map[string]chan runstore.Lease{}, errs: map[string]chan error{}}
	held, err := l.line.acquire(t.Context(), l.caller, request("holder"))
	if err != nil {
		t.Fatal(err)
	}
	l.held = held
	return l
}

func request(owner runstore.Owner) runstore.AcquireRequest {
	return runstore.AcquireRequest{Run: "r", LeaseSpec: runstore.LeaseSpec{Owner: owner, TTL: time.Minute}}
}

// wait adds a contender to the line, and returns once it waits.
func (l *lineTest) wait(ctx context.Context, name string) {
	l.leases[name], l.errs[name] = make(chan runstore.Lease, 1), make(chan error, 1)
	go func() {
		lease, err := l.line.acquire(ctx, l.caller, request(runstore.Owner(name)))
		if err != nil {
			l.errs[name] <- err
			return
		}
		l.leases[name] <- lease
	}()
	synctest.Wait()
}

func TestLineHandsTheLeaseOnInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLineTest(t)
		given, giveUp := context.WithCancel(t.Context())
		l.wait(t.Context(), "a")
		l.wait(given, "b")
		l.wait(t.Context(), "c")
		giveUp()
		if err := <-l.errs["b"]; !errors.Is(err, context.Canceled) {
			t.Errorf("the contender that gave up got %v, want its context's error", err)
		}
		held := l.held
		for _, name := range []string{"a", "c"} {
			if err := l.line.release(t.Context(), l.caller, held); err != nil {
				t.Fatal(err)
			}
			next := <-l.leases[name]
			if next.Owner != runstore.Owner(name) || next.Token != held.Token+1 {
				t.Errorf("%s got a lease of %q under token %d, want its own under %d", name, next.Owner, next.Token, held.Token+1)
			}
			batch := runstore.NewBatch("r", held.Fence())
			batch.Append("late", nil)
			if _, err := l.caller.Commit(t.Context(), batch); !errors.Is(err, runstore.ErrFenced) {
				t.Errorf("a write of the former holder: %v, want %v", err, runstore.ErrFenced)
			}
			held = next
		}
		if err := l.line.release(t.Context(), l.caller, held); err != nil {
			t.Fatal(err)
		}
		run, err := l.caller.GetRun(t.Context(), "r")
		if err != nil || run.Holder.Token != 0 {
			t.Errorf("the last holder left the run leased: %+v, %v", run.Holder, err)
		}
		if _, err := l.line.acquire(t.Context(), l.caller, request("d")); err != nil {
			t.Errorf("the next contender of the empty line: %v", err)
		}
		if asked := l.caller.asked.Load(); asked != 4 {
			t.Errorf("%d requests for the lease, want 4: that of each contender which did not give up", asked)
		}
	})
}

// TestLineGoesOnAfterAFailedHandOff checks that a failed hand-off passes the turn on without a
// lease: the next contender asks the store itself.
func TestLineGoesOnAfterAFailedHandOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLineTest(t)
		l.wait(t.Context(), "a")
		l.wait(t.Context(), "b")
		taken, err := l.caller.AcquireLease(t.Context(), runstore.AcquireRequest{
			Run: "r", LeaseSpec: runstore.LeaseSpec{Owner: "operator", TTL: time.Minute}, Preempt: "the test takes it",
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := l.line.release(t.Context(), l.caller, l.held); err == nil {
			t.Error("a hand-off under a fence that is over succeeded")
		}
		for _, name := range []string{"a", "b"} {
			if err := <-l.errs[name]; !errors.Is(err, runstore.ErrLeaseHeld) {
				t.Errorf("%s got %v, want %v: the operator has the lease", name, err, runstore.ErrLeaseHeld)
			}
		}
		if _, err := l.caller.ReleaseLease(t.Context(), runstore.ReleaseRequest{Fence: taken.Fence()}); err != nil {
			t.Fatal(err)
		}
		if _, err := l.line.acquire(t.Context(), l.caller, request("c")); err != nil {
			t.Errorf("the line is taken for ever: %v", err)
		}
	})
}
