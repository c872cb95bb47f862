package cases

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/tapestore/tapestore/conformance/harness"
	"github.com/tapestore/tapestore/conformance/internal/kit"
	"github.com/tapestore/tapestore/conformance/internal/model"
	"github.com/tapestore/tapestore/runstore"
)

// Links returns the cases that break the network between a handle and its store.
func Links() []harness.Case {
	link := []harness.Need{harness.NeedNetwork}
	return []harness.Case{
		{Guarantee: "I8", Name: "a-lost-reply-is-resolved-by-the-store", Needs: link, Run: lostReply, Doc: `
			The network drops the reply to a write, of each kind and at each of its round trips, and then works again.
			The call returns without an error, with the result of an undisturbed write, and the run is the same. A
			store that sends the write again under another id applies it twice; one that gives up makes its caller
			resolve it.`},
		{Guarantee: "I8", Name: "a-late-copy-of-a-request-is-not-applied-twice", Needs: link, Run: lateCopy, Doc: `
			The network keeps a write's request in flight, of each kind and at each round trip, and cuts its
			connection, so that the store sends it again. The call succeeds, and the first copy, when it arrives,
			changes nothing. A store whose engine does not recognize the copy applies the write twice.`},
		{Guarantee: "I8", Name: "a-cut-connection-is-no-error-the-caller-must-know", Needs: link, Run: cutConnections, Doc: `
			The network resets all connections twelve times while four writers commit, with and without ids, and
			works again at once. No commit fails, each is stored once, and the journal is dense. No writer runs so far
			ahead that the store need not remember the commit of another. A store that returns the broken connection to
			its caller, or repeats a commit that was applied, fails.`},
		{Guarantee: "I8", Name: "appends-to-many-runs-over-a-bad-network-are-applied-once", Needs: link, Run: faultsAmongMany, Doc: `
			One handle appends to twelve runs at once, without ids, over connections that were cut or that lose
			replies. Every append succeeds and is in its journal once, under its token. A store that sends a whole
			group again, though part of it was applied, doubles events.`},
		{Guarantee: "I8", Name: "histories-over-a-bad-network-are-linearizable", Needs: link, Run: badNetwork, Doc: `
			Four handles act at random on two runs while the network cuts connections, drops replies, holds requests
			and delays. Some order of the operations, with an unknown outcome applied once or never, must explain
			every answer. A store that calls a lost write not applied, or applies a resent one twice, has a history
			that no order explains.`},
		{Guarantee: "I5", Name: "journal-and-record-histories-over-a-slow-network-are-linearizable", Needs: link, Run: slowNetwork, Doc: `
			Four handles commit to and read two runs at random over a network that delays everything by a
			millisecond, so that operations overlap more. Some order of the operations must explain every answer, and
			each journal is dense. A store that decides on a head that it read before the delay assigns a seq twice
			or loses an update.`},
		{Guarantee: "I10", Name: "a-tailing-reader-misses-nothing-over-a-slow-network", Needs: link, Run: slowTail, Doc: `
			Four handles commit over a network whose delay keeps changing, so that commits arrive out of order, and
			three readers follow the feed. Each reader sees every event once, run by run in the order of the seqs. A
			store that assigns positions at the sender loses events for a reader that has passed.`},
		{Guarantee: "I8", Name: "a-lost-reply-before-a-purge-is-not-applied-to-the-next-run", Needs: link, Run: lostBeforePurge, Doc: `
			The network drops the reply to a commit, at each of its round trips, and stays cut while another handle
			purges the run and creates it again. When the network works, the commit is not applied to the new run if
			it was to the old one, and an error says not applied only if it never was. A store whose purge deletes
			the batch id and that then sends the commit again applies it twice.`},
		{Guarantee: "I11", Name: "an-error-after-a-lost-reply-is-true", Needs: link, Run: errorAfterLostReply, Doc: `
			The network drops every reply to a write, of each kind and at each round trip, until the caller's context
			ends. If the error says not applied, the run is as before; if it says unknown, the write is there whole
			or not at all. A store that reports a lost reply as not applied makes its caller repeat what was applied.`},
		{Guarantee: "I11", Name: "an-error-stays-true-when-the-request-arrives-late", Needs: link, Run: errorBeforeArrival, Doc: `
			The caller's context ends while the network keeps the write's request in flight, of each kind and at each
			round trip; then the request arrives. If the error said not applied, the run stays as before. A store
			that calls a write not applied because its caller gave up is wrong once the request arrives.`},
		{Guarantee: "I11", Name: "a-black-hole-does-not-outlive-the-context", Needs: link, Run: blackHole, Doc: `
			The network keeps connections open and passes nothing, while every read, writes of many kinds, and an open
			are called with a deadline. Each call returns soon after it with ErrUnavailable or ErrUnknownOutcome, and
			the results of the writes are true once the network works again. A store that waits for a reply without
			regard to the context hangs.`},
		{Guarantee: "I3", Name: "a-request-that-arrives-after-the-takeover-is-refused", Needs: link, Run: lateZombie(false), Doc: `
			A holder's write, of each kind and at each round trip, is in flight when its lease is preempted, and its
			caller gives up. When the request arrives it changes nothing, and the new holder commits. A store that
			checks the fence when it sends the write, and not where the engine applies it, lets the old holder write.`},
		{Guarantee: "I3", Name: "a-request-repeated-after-the-takeover-is-refused-in-every-copy", Needs: link, Run: lateZombie(true), Doc: `
			A holder's write, of each kind and at each round trip, is in flight when its lease is preempted, and its
			connection is cut, so that the store sends it again. The repeat of a write that the engine had not seen
			is ErrFenced, and the first copy, when it arrives, changes nothing. A store that does not check the fence
			of a repeat lets the old holder write.`},
		{Guarantee: "I3", Name: "a-request-refused-on-its-repeat-is-refused-in-every-copy", Needs: link, Run: lateRefusal, Doc: `
			The first copy of a write is kept in flight, the run changes so that it refuses the write, and the repeat
			is refused (a create finds that the run exists). The run changes back so that it would accept the write,
			and the first copy arrives: it changes nothing. A store that does not invalidate the first copy applies a
			write that was reported as refused.`},
	}
}

func lostReply(t harness.T, e *harness.Env) {
	n := openNetwork(t, e)
	for _, w := range harness.Sampled(t, e, "kinds of writes", sendings()) {
		book := w.reference(t, e, n.s)
		eachRoundTrip(t, e, w.name, func(id runstore.RunID, after int) bool {
			held := w.seedRun(t, e, id)
			awaitWorking(t, e, n.s)
			n.Faults.DropReplies(after)
			a := w.send(t.Context(), n.s, id, held)
			lost := a.awaitHarm(t, 1, n.Faults.AwaitDropped)
			n.Faults.Reset()
			a.wait(t, w.name)
			if a.err != nil {
				t.Errorf("%s, whose reply was lost once: %v", w.name, a.err)
			}
			book.check(t, e, id, a)
			return lost
		})
	}
}

func lateCopy(t harness.T, e *harness.Env) {
	n := openNetwork(t, e)
	for _, w := range harness.Sampled(t, e, "kinds of writes", sendings()) {
		book := w.reference(t, e, n.s)
		eachRoundTrip(t, e, w.name, func(id runstore.RunID, after int) bool {
			held := w.seedRun(t, e, id)
			awaitWorking(t, e, n.s)
			n.Faults.Hold(after)
			a := w.send(t.Context(), n.s, id, held)
			kept := a.awaitHarm(t, 1, n.Faults.AwaitHeld)
			n.Faults.DropClientSide()
			a.wait(t, w.name)
			if a.err != nil {
				t.Errorf("%s, which lost its connection once: %v", w.name, a.err)
			}
			before := describeRun(t, e, id)
			n.Faults.Reset()
			n.awaitAnswered(t)
			now := describeRun(t, e, id)
			kit.CheckUnchanged(t, fmt.Sprintf("a late copy of %s", id), before, now)
			book.checkFound(t, e, id, a, now)
			return kept
		})
	}
}

func errorAfterLostReply(t harness.T, e *harness.Env) {
	n := openNetwork(t, e)
	for _, w := range harness.Sampled(t, e, "kinds of writes", sendings()) {
		book := w.reference(t, e, n.s)
		eachRoundTrip(t, e, w.name, func(id runstore.RunID, after int) bool {
			held := w.seedRun(t, e, id)
			awaitWorking(t, e, n.s)
			n.Faults.DropReplies(after)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			a := w.send(ctx, n.s, id, held)
			lost := a.awaitHarm(t, 1, n.Faults.AwaitDropped)
			if lost { // the replies to a retry or to a look-up of the outcome are lost too
				a.awaitHarm(t, 3, n.Faults.AwaitDropped)
			}
			cancel()
			a.wait(t, w.name)
			n.Faults.Reset()
			book.check(t, e, id, a)
			return lost
		})
	}
}

func errorBeforeArrival(t harness.T, e *harness.Env) {
	n := openNetwork(t, e)
	for _, w := range harness.Sampled(t, e, "kinds of writes", sendings()) {
		book := w.reference(t, e, n.s)
		eachRoundTrip(t, e, w.name, func(id runstore.RunID, after int) bool {
			held := w.seedRun(t, e, id)
			awaitWorking(t, e, n.s)
			n.Faults.Hold(after)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			a := w.send(ctx, n.s, id, held)
			kept := a.awaitHarm(t, 1, n.Faults.AwaitHeld)
			cancel()
			a.wait(t, w.name)
			n.Faults.Reset()
			n.awaitAnswered(t)
			book.check(t, e, id, a)
			return kept
		})
	}
}

func cutConnections(t harness.T, e *harness.Env) {
	const writers, cuts = 4, 12
	n := openNetwork(t, e)
	lease := kit.SeedFixture(t, e, "run")
	stores := []runstore.RunStore{n.s, n.throughNetwork(e).Reopen(t)}
	results := make([]*outcomes, writers)
	abreast := kit.NewAbreast(writers)
	var acknowledged, stop atomic.Int64
	kit.RunConcurrently(t, writers+1, func(i int) error {
		if i == writers {
			defer abreast.End()
			defer stop.Store(1)
			for range cuts {
				reached := acknowledged.Load() + 2*writers
				e.Await(t, harness.CaseTimeout, func() bool { return acknowledged.Load() >= reached || t.Failed() })
				n.Faults.Cut()
				n.Faults.Reset()
			}
			return nil
		}
		defer abreast.Leave(i)
		results[i] = newOutcomes()
		for m := 0; stop.Load() == 0 && !t.Failed(); m++ {
			name := fmt.Sprintf("%d/%d", i, m)
			b := runstore.NewBatch("run", []runstore.Guard{lease.Fence(), runstore.Unguarded("test")}[m%2])
			if m%3 == 0 {
				b.ID = runstore.BatchID(name)
			}
			b.Append("event", []byte(name))
			_, err := stores[i%2].Commit(t.Context(), b)
			results[i].add(name, err)
			acknowledged.Add(1)
			if err != nil {
				t.Errorf("batch %s, amid cuts that were healed at once: %v", name, err)
			}
			abreast.Next(i) // or a commit without an answer is followed by more than a store has to remember
		}
		return nil
	})
	for i, v := range results {
		v.checkOwn(t, e.Store, fmt.Sprintf("%d/", i))
	}
	dense(t, kit.Journal(t, e.Store, "run"))
}

// faultsAmongMany cuts connections while they are idle in one round, so that the first attempts
// fail before anything is sent, and loses replies in the next round. An engine with group commit
// may repeat several appends in one step.
func faultsAmongMany(t harness.T, e *harness.Env) {
	const runs = 12
	n := openNetwork(t, e)
	leases := heldRuns(t, e, n.s, runs)
	want := ""
	for round := range e.Scaled(t, "rounds", 6, 20) {
		errs := make([]error, runs)
		work := func() (receipt, error) {
			kit.Contend(runs, func(i int) {
				_, errs[i] = n.s.Commit(t.Context(), kit.Appending(leases[i], fmt.Sprint("round ", round)))
			})
			return receipt{}, nil
		}
		var a *attempt
		if round%2 == 0 {
			n.Faults.Cut()
			n.Faults.Reset()
			a = start(work)
		} else {
			n.Faults.DropReplies(0)
			a = start(work)
			a.awaitHarm(t, 3, n.Faults.AwaitDropped)
			n.Faults.Reset()
		}
		a.wait(t, fmt.Sprintf("appends to %d runs", runs))
		want += fmt.Sprintf(" round %d@%v", round, leases[0].Token)
		for i, lease := range leases {
			if errs[i] != nil {
				t.Errorf("round %d: an append to %q amid faults that were healed: %v", round, lease.Run, errs[i])
			} else if got := " " + kit.JournalText(kit.Journal(t, e.Store, lease.Run)); got != want {
				t.Errorf("round %d: the journal of %q is%s, want%s", round, lease.Run, got, want)
			}
		}
		if t.Failed() {
			return
		}
	}
}

func badNetwork(t harness.T, e *harness.Env) {
	n := openNetwork(t, e)
	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan struct{})
	go func() {
		defer close(over)
		for ctx.Err() == nil {
			short, done := context.WithTimeout(ctx, kit.ArrivalTime)
			const moment = 3 * time.Millisecond
			switch rand.IntN(4) {
			case 0:
				n.Faults.Cut()
			case 1:
				n.Faults.DropReplies(rand.IntN(2))
				_ = n.Faults.AwaitDropped(short, 1) // there may be no reply in flight
			case 2:
				n.Faults.Hold(rand.IntN(2))
				_ = n.Faults.AwaitHeld(short, 1)
				n.Faults.DropClientSide()
				kit.WaitAtMost(t, ctx.Done(), moment)
			default:
				n.Faults.Delay(time.Duration(rand.IntN(5)) * time.Millisecond)
				kit.WaitAtMost(t, ctx.Done(), moment)
			}
			done()
			n.Faults.Reset()
			// Clients make progress between two faults, however long they take to recover.
			healed := time.Now()
			for ctx.Err() == nil {
				if _, err := n.s.Now(ctx); err == nil {
					break
				}
			}
			kit.WaitAtMost(t, ctx.Done(), moment+2*time.Since(healed))
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-over
	})
	fenced := mix{model.Acquire: 2, model.Preempt: 2, model.Renew: 1, model.Release: 1, model.Commit: 8, model.Head: 1, model.Journal: 2, model.Records: 1}
	histories(fenced, 0)(t, n.throughNetwork(e))
}

func slowNetwork(t harness.T, e *harness.Env) {
	n := openNetwork(t, e)
	n.Faults.Delay(time.Millisecond)
	histories(mix{model.Acquire: 1, model.Preempt: 1, model.Commit: 8, model.Journal: 2, model.Records: 3, model.Head: 1}, 0)(t, n.throughNetwork(e))
}

func slowTail(t harness.T, e *harness.Env) {
	n := openNetwork(t, e)
	tail(t, n.throughNetwork(e), func(ctx context.Context) error {
		for ctx.Err() == nil {
			n.Faults.Delay(time.Duration(rand.IntN(4)) * time.Millisecond)
			kit.WaitAtMost(t, ctx.Done(), time.Millisecond)
		}
		n.Faults.Delay(0)
		return nil
	})
}

func blackHole(t harness.T, e *harness.Env) {
	n := openNetwork(t, e)
	outlast(t, e, n.s, n.Open, func() error { n.Faults.Blackhole(); return nil }, func() error { n.Faults.Reset(); return nil })
}
