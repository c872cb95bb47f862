package cases

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/tapestore/tapestore/conformance/harness"
	"github.com/tapestore/tapestore/conformance/internal/kit"
	"github.com/tapestore/tapestore/runstore"
)

// Errors returns the cases that prove I11: an error says what became of the write, and what it says
// is true.
func Errors() []harness.Case {
	return []harness.Case{
		{Guarantee: "I11", Name: "errors-name-operation-and-run", Run: errorsName, Doc: `
			Eight calls are refused: a held lease, a stale fence, a failing guard of each kind, an oversized event, a
			page without a limit. Each error is an OpError with operation and run, matches exactly one kind, and its
			outcome is not applied. A store that returns an engine's bare error, or one that matches two kinds,
			leaves the caller to guess.`},
		{Guarantee: "I11", Name: "every-method-tells-of-a-missing-run", Run: missingRun, Doc: `
			Every method that needs a run is called on a purged run, the methods without a fence on a run that never
			existed, and an unguarded batch is sent to both. Each is ErrNotFound with operation and run, and no run and
			no index entry appears. A store that creates the run on the way, or stores events without it, has events
			that nothing finds.`},
		{Guarantee: "I11", Name: "a-closed-store-answers-nothing-else", Run: closedStore, Doc: `
			A handle is closed, twice, and every method is called on it. Each is ErrClosed and changes nothing, and a
			fence obtained before commits through other handles. A store that keeps working after Close lets a
			component that was shut down write on; one that releases leases in Close ends another process's work.`},
		{Guarantee: "I11", Name: "closing-amid-commits-leaves-definite-outcomes", Run: closeAmid, Doc: `
			Four writers commit through one handle, which is closed meanwhile. Each commit ends as applied or not
			applied, never unknown, and the journal agrees; a commit that begins after Close is ErrClosed. A store
			that drops queued commits on Close, or reports them as unknown, fails.`},
		{Guarantee: "I11", Name: "reads-may-be-given-up-at-any-moment", Run: cancelledReads, Doc: `
			A caller cancels up to 300 reads within 60 microseconds. Each read that ends early is ErrUnavailable and
			matches the context's error; afterwards fifty reads and a commit succeed. A store that leaves a connection,
			a lock or a transaction behind when a read is given up runs out of them.`},
		{Guarantee: "I11", Name: "handles-come-and-go-unnoticed", Run: handlesComeAndGo, Doc: `
			Two goroutines open handles, use them and close them without a pause, while two others commit and read.
			Every call succeeds, and the journal holds every event. A store that takes a lock when a handle opens or
			closes lets the others fail or wait.`},
		{Guarantee: "I11", Name: "a-refused-batch-leaves-nothing-under-load", Run: refusedUnderLoad, Doc: `
			Six writers on three handles commit good and bad batches at random to one run. Every refusal is ErrFenced
			or ErrConflict; journal, records, queue and feed hold exactly the batches that were acknowledged. A store
			that reports a commit with a lost reply as not applied, or keeps a refused batch's records, fails.`},
		{Guarantee: "I11", Name: "an-ended-context-writes-nothing", Run: endedContext, Doc: `
			Every method is called with a context that was cancelled, and with one whose deadline has passed, through
			two handles. Each is ErrUnavailable and matches the context's error, and nothing is written, nor the
			lease renewed. A store that sends the request first applies a write that its caller gave up.`},
		{Guarantee: "I11", Name: "a-context-may-end-at-any-stage", Run: contextAtAnyStage, Doc: `
			The contexts of concurrent commits end after random times, from none to more than a commit takes. Each
			error is ErrUnavailable or ErrUnknownOutcome and matches the context's. A commit reported as applied is
			stored once, one reported as not applied is not stored, and a repeat under an id applies once. A store that
			reports a cancelled commit as not applied, and applies it, fails.`},
		{Guarantee: "I11", Name: "a-context-that-ends-in-flight-is-obeyed", Needs: []harness.Need{harness.NeedBlockWriters}, Run: contextInFlight, Doc: `
			Commits are held up at the engine, and their contexts are cancelled or expire. Each call returns although
			the engine does not answer, with ErrUnavailable or ErrUnknownOutcome. The error is true once the engine
			resumes, and a repeat under the same id applies once. A store that waits for the engine hangs; a store that
			reports not applied may be wrong.`},
	}
}

// call is one method of the store, applied to one run.
type call struct {
	op    string
	write bool
	do    func(ctx context.Context, s runstore.RunStore) error
}

// calls returns all methods but Close. The errors of methods that concern no single run name no
// run.
func calls(lease runstore.Lease) []call {
	id := lease.Run
	return []call{
		{"create run", true, func(ctx context.Context, s runstore.RunStore) error {
			_, err := s.CreateRun(ctx, runstore.RunSpec{ID: id})
			return err
		}},
		{"acquire lease", true, func(ctx context.Context, s runstore.RunStore) error {
			req := kit.Acquiring(id, "other", harness.TTL)
			req.Preempt = "test"
			_, err := s.AcquireLease(ctx, req)
			return err
		}},
		{"renew lease", true, func(ctx context.Context, s runstore.RunStore) error {
			_, err := s.RenewLease(ctx, runstore.RenewRequest{Fence: lease.Fence(), TTL: 2 * harness.TTL})
			return err
		}},
		{"release lease", true, func(ctx context.Context, s runstore.RunStore) error {
			req := runstore.ReleaseRequest{Fence: lease.Fence()}
			kit.WriteEverything(&req.Writes, "release", 6)
			_, err := s.ReleaseLease(ctx, req)
			return err
		}},
		{"commit", true, func(ctx context.Context, s runstore.RunStore) error {
			b := runstore.NewBatch(id, runstore.Unguarded("test"))
			kit.WriteEverything(&b.Writes, "commit", 6)
			_, err := s.Commit(ctx, b)
			return err
		}},
		{"get run", false, func(ctx context.Context, s runstore.RunStore) error {
			_, err := s.GetRun(ctx, id)
			return err
		}},
		{"read journal", false, func(ctx context.Context, s runstore.RunStore) error {
			_, err := s.ReadJournal(ctx, id, 1, 10)
			return err
		}},
		{"read records", false, func(ctx context.Context, s runstore.RunStore) error {
			_, err := s.ReadRecords(ctx, id, runstore.RecordQuery{Limit: 10})
			return err
		}},
		{"scan index", false, func(ctx context.Context, s runstore.RunStore) error {
			_, err := s.ScanIndex(ctx, runstore.IndexQuery{Index: runstore.IndexRuns, Limit: 10})
			return err
		}},
		{"read feed", false, func(ctx context.Context, s runstore.RunStore) error {
			_, err := s.ReadFeed(ctx, runstore.FeedQuery{Limit: 10})
			return err
		}},
		{"now", false, func(ctx context.Context, s runstore.RunStore) error {
			_, err := s.Now(ctx)
			return err
		}},
	}
}

// ofRun reports whether the errors of the method name a run.
func (c call) ofRun() bool { return c.op != "scan index" && c.op != "read feed" && c.op != "now" }

// named fails the case unless err is of the given kind, has an outcome, and names the operation and
// the run.
func (c call) named(t harness.T, err, kind error, id runstore.RunID) {
	t.Helper()
	if !c.ofRun() {
		id = ""
	}
	var op *runstore.OpError
	if !errors.As(err, &op) || op.Op != c.op || op.Run != id {
		t.Errorf("%s: error %v does not name operation %q and run %q", c.op, err, c.op, id)
	}
	if !errors.Is(err, kind) || runstore.KindOf(err) != kind {
		t.Errorf("%s: got error %v of kind %v, want kind %v", c.op, err, runstore.KindOf(err), kind)
	}
	kinds := 0
	for _, k := range runstore.Kinds() {
		if errors.Is(err, k) {
			kinds++
		}
	}
	if kinds != 1 {
		t.Errorf("%s: error %v matches %d kinds, want 1", c.op, err, kinds)
	}
	want := runstore.NotApplied
	if kind == runstore.ErrUnknownOutcome {
		want = runstore.Unknown
	}
	if got := runstore.OutcomeOf(err); got != want {
		t.Errorf("%s: outcome of %v is %v, want %v", c.op, err, got, want)
	}
}

func errorsName(t harness.T, e *harness.Env) {
	ctx := t.Context()
	ended := kit.SeedFixture(t, e, "run")
	kit.MustRelease(t, e.Store, ended)
	lease := e.Acquire(t, e.Store, "run", "owner")
	commit := func(b runstore.Batch) error {
		_, err := e.Store.Commit(ctx, b)
		return err
	}
	lone := func(g runstore.Guard) runstore.Batch { return runstore.NewBatch("run", g) }
	large := lone(lease.Fence())
	large.Append("event", make([]byte, runstore.MaxEventData+1))
	_, held := e.Store.AcquireLease(ctx, kit.Acquiring("run", "other", harness.TTL))
	_, fencedRenew := e.Store.RenewLease(ctx, runstore.RenewRequest{Fence: ended.Fence(), TTL: harness.TTL})
	_, invalid := e.Store.ReadJournal(ctx, "run", 1, 0)
	for _, test := range []struct {
		op   string
		err  error
		kind error
	}{
		{"acquire lease", held, runstore.ErrLeaseHeld},
		{"renew lease", fencedRenew, runstore.ErrFenced},
		{"commit", commit(lone(ended.Fence())), runstore.ErrFenced},
		{"commit", commit(lone(runstore.AtVersion("a", 9))), runstore.ErrConflict},
		{"commit", commit(lone(runstore.AtSeq(9))), runstore.ErrConflict},
		{"commit", commit(lone(runstore.InStatus(9))), runstore.ErrConflict},
		{"commit", commit(large), runstore.ErrTooLarge},
		{"read journal", invalid, runstore.ErrInvalid},
	} {
		call{op: test.op}.named(t, test.err, test.kind, "run")
	}
}

func missingRun(t harness.T, e *harness.Env) {
	// A purged run is missing like a run that never existed.
	lease := kit.SeedFixture(t, e, "purged")
	b := runstore.NewBatch("purged", lease.Fence())
	b.Purge = true
	kit.MustCommit(t, e.Store, b)
	for _, c := range calls(lease) {
		if c.op == "create run" || !c.ofRun() {
			continue
		}
		c.named(t, c.do(t.Context(), e.Store), runstore.ErrNotFound, "purged")
	}
	never := lease
	never.Run = "never"
	for _, c := range calls(never) {
		if c.op == "create run" || !c.ofRun() {
			continue
		}
		c.named(t, c.do(t.Context(), e.Store), runstore.ErrNotFound, "never")
	}
	for _, id := range []runstore.RunID{"purged", "never"} {
		signal := unguarded(id, "") // no guard that could refuse it in place of the missing run
		signal.Append("test", nil)
		_, err := e.Store.Commit(t.Context(), signal)
		harness.Refused(t, fmt.Sprintf("an unguarded append to %q", id), err, runstore.ErrNotFound)
	}
	kit.Equal(t, "runs", len(kit.Queue(t, e.Store, runstore.IndexRuns)), 0)
	kit.Equal(t, "entries", len(kit.Queue(t, e.Store, "queue-a")), 0)
}

func closedStore(t harness.T, e *harness.Env) {
	lease := kit.SeedFixture(t, e, "run")
	closed := e.Reopen(t)
	if _, err := closed.GetRun(t.Context(), "run"); err != nil {
		t.Fatalf("get run: %v", err)
	}
	before := kit.Dump(t, e.Store, "run", kit.AllIndexes...)
	for range 2 {
		if err := closed.Close(); err != nil && !errors.Is(err, runstore.ErrClosed) {
			t.Fatalf("close: %v", err)
		}
		for _, c := range calls(lease) {
			c.named(t, c.do(t.Context(), closed), runstore.ErrClosed, "run")
		}
	}
	kit.CheckUnchanged(t, "a closed handle", before, kit.Dump(t, e.Store, "run", kit.AllIndexes...))
	// The lease does not belong to the handle: the holder of the fence continues on another handle.
	e.Append(t, e.Store, lease, "on another handle")
	e.Append(t, e.Reopen(t), lease, "on a new one")
}

// outcomes records, by name, the outcomes that errors reported for many batches, each of one unique
// event.
type outcomes struct{ applied, refused, unknown map[string]bool }

func newOutcomes() *outcomes {
	return &outcomes{applied: map[string]bool{}, refused: map[string]bool{}, unknown: map[string]bool{}}
}

func (v *outcomes) add(name string, err error) {
	switch runstore.OutcomeOf(err) {
	case runstore.Applied:
		v.applied[name] = true
	case runstore.NotApplied:
		v.refused[name] = true
	default:
		v.unknown[name] = true
	}
}

// check fails the case unless the journal agrees with the reported outcomes.
func (v *outcomes) check(t harness.T, s runstore.RunStore, id runstore.RunID) {
	t.Helper()
	events := kit.Journal(t, s, id)
	dense(t, events)
	found := map[string]int{}
	for _, event := range events {
		found[string(event.Data)]++
	}
	for name, n := range found {
		switch {
		case n != 1:
			t.Errorf("batch %s is stored %d times", name, n)
		case v.refused[name]:
			t.Errorf("batch %s is stored, though its error said that it was not applied", name)
		case !v.applied[name] && !v.unknown[name]:
			t.Errorf("batch %s is stored, and was never sent", name)
		}
	}
	for name := range v.applied {
		if found[name] == 0 {
			t.Errorf("batch %s was acknowledged and is not stored", name)
		}
	}
}

func closeAmid(t harness.T, e *harness.Env) {
	const writers = 4
	ctx := t.Context()
	for round := range 3 {
		id := runstore.RunID(fmt.Sprint("run-", round))
		e.Create(t, id)
		s := e.Reopen(t)
		all := make([]*outcomes, writers)
		var acknowledged atomic.Int64
		var closed atomic.Bool
		busy := make(chan struct{})
		kit.RunConcurrently(t, writers+1, func(i int) error {
			if i == writers {
				<-busy
				defer closed.Store(true)
				return s.Close()
			}
			all[i] = newOutcomes()
			for n := 0; ; n++ {
				name := fmt.Sprintf("%d/%d", i, n)
				b := runstore.NewBatch(id, runstore.Unguarded("test"))
				b.Append("event", []byte(name))
				late := closed.Load()
				_, err := s.Commit(ctx, b)
				all[i].add(name, err)
				if acknowledged.Add(1) == 3*writers {
					close(busy)
				}
				if errors.Is(err, runstore.ErrClosed) {
					return nil
				}
				if late {
					return fmt.Errorf("a commit after its handle was closed: got error %v, want ErrClosed", err)
				}
				if runstore.OutcomeOf(err) == runstore.Unknown {
					return fmt.Errorf("a commit while its handle was closed: %w, want a definite outcome", err)
				}
			}
		})
		sum := newOutcomes()
		for _, v := range all {
			for name := range v.applied {
				sum.applied[name] = true
			}
			for name := range v.refused {
				sum.refused[name] = true
			}
		}
		sum.check(t, e.Store, id)
	}
}

func refusedUnderLoad(t harness.T, e *harness.Env) {
	const writers = 6
	each := e.Scaled(t, "commits of each writer", 8, 25)
	ctx := t.Context()
	random := kit.Seeded(t)
	ended := kit.SeedFixture(t, e, "run")
	kit.MustRelease(t, e.Store, ended)
	lease := e.Acquire(t, e.Store, "run", "owner")
	stores := kit.OpenHandles(t, e, 3)
	results := make([]*outcomes, writers)
	kit.RunConcurrently(t, writers, func(i int) error {
		pick := random(i)
		results[i] = newOutcomes()
		for n := range each {
			name := fmt.Sprintf("%d/%d", i, n)
			guards := []runstore.Guard{
				lease.Fence(), runstore.AtVersion("a", 1), ended.Fence(), runstore.AtVersion("a", 7),
				runstore.AtSeq(runstore.Seq(1 + pick.IntN(20))), runstore.InStatus(runstore.Status(pick.IntN(3))),
			}
			b := runstore.NewBatch("run", guards[pick.IntN(len(guards))])
			if pick.IntN(3) == 0 {
				b.Require(runstore.AtVersion("b", runstore.Version(1+pick.IntN(2))))
			}
			b.Append("event", []byte(name))
			b.Put(runstore.RecordKey("record/"+name), nil, runstore.Place{Index: "load", At: runstore.After(0)})
			_, err := stores[pick.IntN(len(stores))].Commit(ctx, b)
			results[i].add(name, err)
			if kind := runstore.KindOf(err); err != nil && kind != runstore.ErrFenced && kind != runstore.ErrConflict {
				return fmt.Errorf("batch %s: %w", name, err)
			}
		}
		return nil
	})
	sum := newOutcomes()
	sum.applied["begin"] = true
	for _, v := range results {
		for name := range v.applied {
			sum.applied[name] = true
		}
		for name := range v.refused {
			sum.refused[name] = true
		}
	}
	sum.check(t, e.Store, "run")
	entries := kit.Queue(t, e.Store, "load")
	records := kit.MustCollect(t, "records", runstore.Records(ctx, e.Store, "run", "record/"))
	kit.Equal(t, "records, and batches that were applied", len(records), len(sum.applied)-1)
	kit.CheckRecords(t, "load", entries, records)
	for _, r := range records {
		if name := string(r.Key[len("record/"):]); !sum.applied[name] {
			t.Errorf("record of batch %s is stored, though it was refused", name)
		}
	}
	kit.FeedOf(t, e, e.Store, len(sum.applied))
}
