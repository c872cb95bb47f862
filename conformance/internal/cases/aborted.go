package cases

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/tapestore/tapestore/conformance/harness"
	"github.com/tapestore/tapestore/conformance/internal/kit"
	"github.com/tapestore/tapestore/conformance/internal/panics"
	"github.com/tapestore/tapestore/runstore"
)

// Aborted returns the cases for engines that may abort a transaction, whose client then runs the
// transaction again: nothing that the aborted attempt decided may take effect.
func Aborted() []harness.Case {
	aborts := []harness.Need{harness.NeedAborts}
	return []harness.Case{
		{Guarantee: "I8", Name: "a-transaction-aborted-at-any-request-is-applied-once", Needs: aborts, Run: abortedAnywhere, Doc: `
			The engine aborts the transaction of a write once, of each kind and at each of its requests. The call
			succeeds with the result of an undisturbed write, and the run is the same. A store that keeps a decision of
			the aborted attempt, or that does not run the transaction again, applies the write twice or fails.`},
		{Guarantee: "I8", Name: "aborts-at-random-lose-nothing-and-double-nothing", Needs: aborts, Run: abortedAtRandom, Doc: `
			The engine aborts three of ten requests at random while sixteen writers append to four runs, repeating a
			write that is ErrUnavailable. Every event is stored exactly once. A store whose retried transaction carries
			state over from the aborted attempt loses events or doubles them.`},
		{Guarantee: "I3", Name: "a-transaction-left-open-by-a-dead-client-keeps-nobody-out", Needs: []harness.Need{harness.NeedNetwork}, Run: leftOpen, Doc: `
			A writer dies at each request of its commit, with that request in flight and whatever the engine has begun
			still open. Another handle preempts and commits meanwhile; its event is the last, and the outcome reported
			to the dead writer was true. A store whose takeover waits for the dead writer's locks without end keeps the
			run from its next holder.`},
	}
}

func abortedAnywhere(t harness.T, e *harness.Env) {
	aborts := e.Aborts(t)
	for _, w := range harness.Sampled(t, e, "kinds of writes", sendings()) {
		book := w.reference(t, e, e.Store)
		eachRoundTrip(t, e, w.name, func(id runstore.RunID, after int) bool {
			held := w.seedRun(t, e, id)
			end := aborts.Next(after)
			a := w.send(t.Context(), e.Store, id, held)
			a.wait(t, w.name)
			aborted := end() > 0
			if a.err != nil {
				t.Errorf("%s, which was aborted once at request %d: %v", w.name, after, a.err)
			}
			book.check(t, e, id, a)
			return aborted
		})
	}
}

// abortedAtRandom uses one handle for all writers.
func abortedAtRandom(t harness.T, e *harness.Env) {
	const writers, runs = 16, 4
	ctx, each := t.Context(), e.Scaled(t, "writes of each writer", 3, 10)
	ids := make([]runstore.RunID, runs)
	for i := range ids {
		ids[i] = runstore.RunID(fmt.Sprint("run-", i))
		e.Create(t, ids[i])
	}
	random := kit.Seeded(t)
	end := e.Aborts(t).AtRandom(0.3, random(writers).Uint64())
	errs := make([]error, writers)
	var writing sync.WaitGroup
	for i := range writers {
		writing.Go(panics.Guarded(t, func() {
			pick := random(i)
			for n := range each {
				b := runstore.NewBatch(ids[pick.IntN(runs)], runstore.Unguarded("test"))
				b.Append("event", fmt.Appendf(nil, "%d/%d", i, n))
				errs[i] = commitWithRetries(ctx, e.Store, b)
				if errs[i] != nil {
					return
				}
			}
		}))
	}
	writing.Wait()
	aborted := end()
	t.Logf("%d requests of %d writes were aborted", aborted, writers*each)
	if aborted == 0 {
		t.Errorf("no request was aborted: nothing is proved")
	}
	for i, err := range errs {
		if err != nil {
			t.Errorf("writer %d: %v", i, err)
		}
	}
	var got, want []string
	for i := range writers {
		for n := range each {
			want = append(want, fmt.Sprintf("%d/%d", i, n))
		}
	}
	for _, id := range ids {
		for _, event := range kit.Journal(t, e.Reopen(t), id) {
			got = append(got, string(event.Data))
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	kit.Equal(t, "what the journals hold", got, want)
}

// commitWithRetries commits a batch without an id and repeats it, in at most 5 attempts, while the
// store reports that it was not applied. An engine busy with aborts may starve one of many writers
// for longer than an operation's retry timeout.
func commitWithRetries(ctx context.Context, s runstore.RunStore, b runstore.Batch) error {
	const most = 5
	for n := 1; ; n++ {
		_, err := s.Commit(ctx, b)
		if n == most || !errors.Is(err, runstore.ErrUnavailable) {
			return err
		}
	}
}

func leftOpen(t harness.T, e *harness.Env) {
	n := openNetwork(t, e)
	write := func(ctx context.Context, s runstore.RunStore, lease runstore.Lease) *attempt {
		b := runstore.NewBatch(lease.Run, lease.Fence())
		b.Append("event", []byte("of the dead"))
		return start(func() (receipt, error) {
			done, err := s.Commit(ctx, b)
			return committedReceipt(done), err
		})
	}
	eachRoundTrip(t, e, "left-open", func(id runstore.RunID, after int) bool {
		e.Create(t, id)
		lease := e.Acquire(t, e.Store, id, "owner")
		s := harness.MustOpen(t, func() (runstore.RunStore, error) { return n.Open(t.Context()) })
		awaitWorking(t, e, s)
		n.Faults.Hold(after)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		a := write(ctx, s, lease)
		dead := a.awaitHarm(t, 1, n.Faults.AwaitHeld)
		cancel()
		a.wait(t, "the write of the dead")
		next := preempt(t, e, id)
		e.Append(t, e.Store, next, "of the living")
		n.Faults.Reset()
		n.awaitAnswered(t)
		events := kit.Journal(t, e.Store, id)
		if last := string(events[len(events)-1].Data); last != "of the living" {
			t.Errorf("after %d requests of the dead: the last event is %q", after, last)
		}
		if outcome := runstore.OutcomeOf(a.err); len(events) > 1 && outcome == runstore.NotApplied || len(events) == 1 && outcome == runstore.Applied {
			t.Errorf("after %d requests: the write is said to be %v, and the run holds %d events", after, outcome, len(events))
		}
		return dead
	})
}

// preempt takes the run's lease from its holder.
func preempt(t harness.T, e *harness.Env, id runstore.RunID) runstore.Lease {
	t.Helper()
	lease, err := e.Store.AcquireLease(t.Context(), kit.Preempting(id, "next", "the holder is dead"))
	if err != nil {
		t.Fatalf("take the lease of the dead: %v", err)
	}
	return lease.Lease
}
