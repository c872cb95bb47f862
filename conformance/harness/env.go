package harness

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tapestore/tapestore/conformance/effort"
	"github.com/tapestore/tapestore/conformance/internal/panics"
	"github.com/tapestore/tapestore/runstore"
)

// Env is the environment of a case: an empty store and the means to act on it as several processes.
type Env struct {
	Instance
	// Store is the first handle on the store.
	Store runstore.RunStore
	// Server serves the store, in a case that has NeedServer.
	Server Server

	name     string               // of the case: guarantee/name
	costly   bool                 // Harness.Costly
	leftOut  *notes               // what the case left out
	raised   *notes               // the epochs that the case raised
	advanced func() time.Duration // how far AdvanceClock has moved the store clock
}

// NewEnv makes an empty store for c and opens the first handle on it.
func NewEnv(t T, h Harness, c Case) *Env {
	t.Helper()
	e := &Env{name: c.Guarantee + "/" + c.Name, costly: h.Costly, leftOut: &notes{}, raised: &notes{}}
	switch {
	case c.needs(NeedServer) && h.NewServed != nil:
		e.Instance, e.Server = h.NewServed(t)
	case c.Overtakes && h.NewOvertaking != nil:
		e.Instance = h.NewOvertaking(t)
	default:
		e.Instance = h.New(t)
	}
	var advanced atomic.Int64
	if advance := e.AdvanceClock; advance != nil {
		e.AdvanceClock = func(d time.Duration) {
			advanced.Add(int64(d))
			advance(d)
		}
	}
	e.advanced = func() time.Duration { return time.Duration(advanced.Load()) }
	e.Store = e.Reopen(t)
	return e
}

// Scaled returns how many of something a case does: full in a full run (see [effort.Variable]),
// quick in a quick one. What is left out is logged and reported. Scaled is for repetitions and for
// long histories; whether a rule is checked at all never depends on it.
func (e *Env) Scaled(t T, what string, quick, full int) int {
	t.Helper()
	if effort.Full() || quick >= full {
		return full
	}
	note := fmt.Sprintf("%d of %d %s", quick, full, what)
	t.Logf("reduced: %s", note)
	e.leftOut.add(note)
	return quick
}

// Affordable returns n, or few on a costly engine (see [Harness.Costly]), in a full run too: what
// an emulator cannot do within a case's time. What is left out is logged and reported.
func (e *Env) Affordable(t T, what string, n, few int) int {
	t.Helper()
	if !e.costly {
		return n
	}
	note := fmt.Sprintf("%d of %d %s, because the engine is costly", few, n, what)
	t.Logf("reduced: %s", note)
	e.leftOut.add(note)
	return few
}

// LeaveOut reports that the case left something out.
func (e *Env) LeaveOut(t T, what string) {
	t.Helper()
	t.Logf("left out: %s", what)
	e.leftOut.add(what)
}

// LeftOut returns what the case left out, such as "5000 of 100000 events".
func (e *Env) LeftOut() []string { return e.leftOut.list() }

// notes is a list without duplicates, safe for concurrent use.
type notes struct {
	mu  sync.Mutex
	all []string
}

func (n *notes) add(note string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !slices.Contains(n.all, note) {
		n.all = append(n.all, note)
	}
}

func (n *notes) list() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.all)
}

// Sampled returns all values in a full run, every third one in a quick run. The first index depends
// on the case's name, so that the cases together cover all values.
func Sampled[V any](t T, e *Env, what string, all []V) []V {
	t.Helper()
	if e.Scaled(t, what, len(all)/3, len(all)) == len(all) {
		return all
	}
	name := fnv.New32a()
	_, _ = name.Write([]byte(e.name)) // never fails
	var some []V
	for i := int(name.Sum32() % 3); i < len(all); i += 3 {
		some = append(some, all[i])
	}
	return some
}

// Reopen returns a further handle, which stands for another process.
func (e *Env) Reopen(t T) runstore.RunStore {
	t.Helper()
	return MustOpen(t, func() (runstore.RunStore, error) { return e.Open(t.Context()) })
}

// MustOpen opens a handle, which is closed when the case ends.
func MustOpen(t T, open func() (runstore.RunStore, error)) runstore.RunStore {
	t.Helper()
	s, err := open()
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	t.Cleanup(func() {
		if err := panics.Caught(s.Close); err != nil && !errors.Is(err, runstore.ErrClosed) {
			t.Errorf("close: %v", err)
		}
	})
	return s
}

// Advance makes d pass on the store clock: it moves the clock or waits.
func (e *Env) Advance(t T, d time.Duration) {
	t.Helper()
	until := e.Now(t).Add(d)
	if e.AdvanceClock != nil {
		e.AdvanceClock(d)
	}
	var now time.Time
	left := func() time.Duration { return max(until.Sub(now), time.Millisecond) }
	e.await(t, d+CaseTimeout, left, func() bool { now = e.Now(t); return !now.Before(until) }, func() string {
		return fmt.Sprintf("the store clock shows %v, want %v or later", now, until)
	})
}

// Now returns the time on the store clock.
func (e *Env) Now(t T) time.Time {
	t.Helper()
	now, err := e.Store.Now(t.Context())
	if err != nil {
		t.Fatalf("now: %v", err)
	}
	return now
}

// Await polls done until it returns true, and fails the case after bound. The bound is far above
// what any correct store needs.
func (e *Env) Await(t T, bound time.Duration, done func() bool) {
	t.Helper()
	e.AwaitState(t, bound, done, func() string { return "the condition does not hold" })
}

// growing returns a function whose results grow from 1 ms to 20 ms: each poll costs the engine
// work.
func growing() func() time.Duration {
	pause := time.Millisecond
	return func() time.Duration {
		pause = min(pause*5/4, 20*time.Millisecond)
		return pause
	}
}

// AwaitState is Await with state() in the message of a failure.
func (e *Env) AwaitState(t T, bound time.Duration, done func() bool, state func() string) {
	t.Helper()
	e.await(t, bound, growing(), done, state)
}

// await is AwaitState with pause() between two polls.
func (e *Env) await(t T, bound time.Duration, pause func() time.Duration, done func() bool, state func() string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	for !done() {
		timer := time.NewTimer(pause())
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			t.Fatalf("still waiting after %v: %s", bound, state())
		}
	}
}

// TTL is 5 minutes: long enough that no lease of a case expires unless the case makes it expire.
const TTL = 5 * time.Minute

// CaseTimeout is 5 minutes: it ends a case that would otherwise hang. It is no bound on speed: a
// correct store stays far below it, on however slow a machine.
const CaseTimeout = 5 * time.Minute

// SeedVariable is the environment variable whose value repeats a case's random choices.
const SeedVariable = "TAPESTORE_SEED"

// ShortTTL returns the TTL of leases that a case makes expire. It is short where time passes in
// real time.
func (e *Env) ShortTTL() time.Duration {
	if e.AdvanceClock != nil {
		return TTL
	}
	return 200 * time.Millisecond
}

// Create creates a run.
func (e *Env) Create(t T, id runstore.RunID) runstore.Run {
	t.Helper()
	created, err := e.Store.CreateRun(t.Context(), runstore.RunSpec{ID: id})
	if err != nil {
		t.Fatalf("create run %q: %v", id, err)
	}
	return created.Run
}

// Acquire acquires the lease of a run for owner with the standard TTL.
func (e *Env) Acquire(t T, s runstore.RunStore, id runstore.RunID, owner runstore.Owner) runstore.Lease {
	t.Helper()
	lease, err := s.AcquireLease(t.Context(), runstore.AcquireRequest{
		Run:       id,
		LeaseSpec: runstore.LeaseSpec{Owner: owner, Reactor: "agent", TTL: TTL, Grant: runstore.NewGrantID()},
	})
	if err != nil {
		t.Fatalf("acquire %q for %q: %v", id, owner, err)
	}
	return lease.Lease
}

// Append commits one event under a lease and returns the event's seq.
func (e *Env) Append(t T, s runstore.RunStore, lease runstore.Lease, data string) runstore.Seq {
	t.Helper()
	b := runstore.NewBatch(lease.Run, lease.Fence())
	b.Append("test", []byte(data))
	done, err := s.Commit(t.Context(), b)
	if err != nil {
		t.Fatalf("append %q under token %v: %v", data, lease.Token, err)
	}
	return done.LastSeq
}

// Get returns a run's head.
func (e *Env) Get(t T, id runstore.RunID) runstore.Run {
	t.Helper()
	run, err := e.Store.GetRun(t.Context(), id)
	if err != nil {
		t.Fatalf("get run %q: %v", id, err)
	}
	return run
}

// Refused fails the case unless err matches want.
func Refused(t T, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: got error %v, want %v", what, err, want)
	}
}
