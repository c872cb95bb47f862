package conformance

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// linkCases harm the network between a handle and its store.
func linkCases() []Case {
	link := []Need{NeedLink}
	return []Case{
		{Guarantee: "I8", Name: "a-lost-reply-is-resolved-by-the-store", Needs: link, Run: lostReply},
		{Guarantee: "I8", Name: "a-late-copy-of-a-request-is-not-applied-twice", Needs: link, Run: lateCopy},
		{Guarantee: "I8", Name: "a-cut-connection-is-no-error-the-caller-must-know", Needs: link, Run: cutConnections},
		{Guarantee: "I8", Name: "appends-to-many-runs-over-a-bad-network-are-applied-once", Needs: link, Run: faultsAmongMany},
		{Guarantee: "I8", Name: "histories-over-a-bad-network-are-linearizable", Needs: link, Run: badNetwork},
		{Guarantee: "I5", Name: "journal-and-record-histories-over-a-slow-network-are-linearizable", Needs: link, Run: slowNetwork},
		{Guarantee: "I10", Name: "a-tailing-reader-misses-nothing-over-a-slow-network", Needs: link, Run: slowTail},
		{Guarantee: "I11", Name: "an-error-after-a-lost-reply-is-true", Needs: link, Run: errorAfterLostReply},
		{Guarantee: "I11", Name: "an-error-stays-true-when-the-request-arrives-late", Needs: link, Run: errorBeforeArrival},
		{Guarantee: "I11", Name: "a-black-hole-does-not-outlive-the-context", Needs: link, Run: blackHole},
		{Guarantee: "I3", Name: "a-request-that-arrives-after-the-takeover-is-refused", Needs: link, Run: lateZombie(false)},
		{Guarantee: "I3", Name: "a-request-repeated-after-the-takeover-is-refused-in-every-copy", Needs: link, Run: lateZombie(true)},
		{Guarantee: "I3", Name: "a-request-refused-on-its-repeat-is-refused-in-every-copy", Needs: link, Run: lateRefusal},
	}
}

// lostReply throws away the reply to each kind of write. The network is sound again
// when the write's caller still waits: it has no reason to hear of anything.
func lostReply(t T, e *Env) {
	n := e.network(t)
	for _, w := range sampled(t, e, "kinds of writes", sendings()) {
		book := w.byTheBook(t, e, n.s)
		eachRoundTrip(t, e, w.name, func(id runstore.RunID, after int) bool {
			held := w.stage(t, e, id)
			works(t, e, n.s)
			n.Harm.DropReplies(after)
			a := w.send(t.Context(), n.s, id, held)
			lost := a.meets(t, 1, n.Harm.AwaitDropped)
			n.Harm.Heal()
			a.ends(t, w.name)
			if a.err != nil {
				t.Errorf("%s, whose reply was lost once: %v", w.name, a.err)
			}
			book.check(t, e, id, a)
			return lost
		})
	}
}

// lateCopy leaves a copy of each kind of write in flight while its sender has to
// send it again. The copy arrives when all is done.
func lateCopy(t T, e *Env) {
	n := e.network(t)
	for _, w := range sampled(t, e, "kinds of writes", sendings()) {
		book := w.byTheBook(t, e, n.s)
		eachRoundTrip(t, e, w.name, func(id runstore.RunID, after int) bool {
			held := w.stage(t, e, id)
			works(t, e, n.s)
			n.Harm.Hold(after)
			a := w.send(t.Context(), n.s, id, held)
			kept := a.meets(t, 1, n.Harm.AwaitHeld)
			n.Harm.Strand()
			a.ends(t, w.name)
			if a.err != nil {
				t.Errorf("%s, which lost its connection once: %v", w.name, a.err)
			}
			before := found(t, e, id)
			n.Harm.Heal()
			n.answered(t)
			now := found(t, e, id)
			same(t, fmt.Sprintf("a late copy of %s", id), before, now)
			book.checkFound(t, e, id, a, now)
			return kept
		})
	}
}

// errorAfterLostReply ends the callers' contexts while every reply gets lost, so
// that the store has no means to find out what became of the write.
func errorAfterLostReply(t T, e *Env) {
	n := e.network(t)
	for _, w := range sampled(t, e, "kinds of writes", sendings()) {
		book := w.byTheBook(t, e, n.s)
		eachRoundTrip(t, e, w.name, func(id runstore.RunID, after int) bool {
			held := w.stage(t, e, id)
			works(t, e, n.s)
			n.Harm.DropReplies(after)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			a := w.send(ctx, n.s, id, held)
			lost := a.meets(t, 1, n.Harm.AwaitDropped)
			if lost { // who tries again, or asks what became of it, loses those replies too
				a.meets(t, 3, n.Harm.AwaitDropped)
			}
			cancel()
			a.ends(t, w.name)
			n.Harm.Heal()
			book.check(t, e, id, a)
			return lost
		})
	}
}

// errorBeforeArrival ends the callers' contexts while their requests are in flight.
// What the error says must be so when the requests have arrived.
func errorBeforeArrival(t T, e *Env) {
	n := e.network(t)
	for _, w := range sampled(t, e, "kinds of writes", sendings()) {
		book := w.byTheBook(t, e, n.s)
		eachRoundTrip(t, e, w.name, func(id runstore.RunID, after int) bool {
			held := w.stage(t, e, id)
			works(t, e, n.s)
			n.Harm.Hold(after)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			a := w.send(ctx, n.s, id, held)
			kept := a.meets(t, 1, n.Harm.AwaitHeld)
			cancel()
			a.ends(t, w.name)
			n.Harm.Heal()
			n.answered(t)
			book.check(t, e, id, a)
			return kept
		})
	}
}

// cutConnections resets all connections again and again while writers are at work.
// The network is sound at once, so none of them has to hear of it.
func cutConnections(t T, e *Env) {
	const writers, cuts = 4, 12
	n := e.network(t)
	lease := furnish(t, e, "run")
	stores := []runstore.RunStore{n.s, n.linked(e).Reopen(t)}
	results := make([]*verdicts, writers)
	var acknowledged, stop atomic.Int64
	together(t, writers+1, func(i int) error {
		if i == writers {
			defer stop.Store(1)
			for range cuts {
				reached := acknowledged.Load() + 2*writers
				e.Await(t, patience, func() bool { return acknowledged.Load() >= reached || t.Failed() })
				n.Harm.Cut()
				n.Harm.Heal()
			}
			return nil
		}
		results[i] = newVerdicts()
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
		}
		return nil
	})
	for i, v := range results {
		v.checkOwn(t, e.Store, fmt.Sprintf("%d/", i))
	}
	dense(t, journal(t, e.Store, "run"))
}

// faultsAmongMany appends to many runs at once, without ids, over a network that fails: in
// one round its connections were cut while they were idle, so that the first attempts fail
// before anything is sent, in the next it loses replies. All is repeated, and an engine with
// group commit may repeat several appends in one step. Each is applied once and
// acknowledged.
func faultsAmongMany(t T, e *Env) {
	const runs = 12
	n := e.network(t)
	leases := heldRuns(t, e, n.s, runs)
	want := ""
	for round := range e.Scaled(t, "rounds", 6, 20) {
		errs := make([]error, runs)
		work := func() (receipt, error) {
			contend(runs, func(i int) {
				_, errs[i] = n.s.Commit(t.Context(), appending(leases[i], fmt.Sprint("round ", round)))
			})
			return receipt{}, nil
		}
		var a *attempt
		if round%2 == 0 {
			n.Harm.Cut()
			n.Harm.Heal()
			a = start(work)
		} else {
			n.Harm.DropReplies(0)
			a = start(work)
			a.meets(t, 3, n.Harm.AwaitDropped)
			n.Harm.Heal()
		}
		a.ends(t, fmt.Sprintf("appends to %d runs", runs))
		want += fmt.Sprintf(" round %d@%v", round, leases[0].Token)
		for i, lease := range leases {
			if errs[i] != nil {
				t.Errorf("round %d: an append to %q amid faults that were healed: %v", round, lease.Run, errs[i])
			} else if got := " " + told(journal(t, e.Store, lease.Run)); got != want {
				t.Errorf("round %d: the journal of %q is%s, want%s", round, lease.Run, got, want)
			}
		}
		if t.Failed() {
			return
		}
	}
}

// badNetwork harms the network in every way while clients write a history.
func badNetwork(t T, e *Env) {
	n := e.network(t)
	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan struct{})
	go func() {
		defer close(over)
		for ctx.Err() == nil {
			short, done := context.WithTimeout(ctx, underway)
			const moment = 3 * time.Millisecond
			switch rand.IntN(4) {
			case 0:
				n.Harm.Cut()
			case 1:
				n.Harm.DropReplies(rand.IntN(2))
				_ = n.Harm.AwaitDropped(short, 1) // no reply need be under way
			case 2:
				n.Harm.Hold(rand.IntN(2))
				_ = n.Harm.AwaitHeld(short, 1)
				n.Harm.Strand()
				waits(t, ctx.Done(), moment)
			default:
				n.Harm.Delay(time.Duration(rand.IntN(5)) * time.Millisecond)
				waits(t, ctx.Done(), moment)
			}
			done()
			n.Harm.Heal()
			// Clients get somewhere between two faults, however long they take to recover.
			healed := time.Now()
			for ctx.Err() == nil {
				if _, err := n.s.Now(ctx); err == nil {
					break
				}
			}
			waits(t, ctx.Done(), moment+2*time.Since(healed))
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-over
	})
	fenced := mix{opAcquire: 2, opPreempt: 2, opRenew: 1, opRelease: 1, opCommit: 8, opHead: 1, opJournal: 2, opRecords: 1}
	histories(fenced, 0)(t, n.linked(e))
}

// slowNetwork writes a history over a network that takes its time.
func slowNetwork(t T, e *Env) {
	n := e.network(t)
	n.Harm.Delay(time.Millisecond)
	histories(mix{opAcquire: 1, opPreempt: 1, opCommit: 8, opJournal: 2, opRecords: 3, opHead: 1}, 0)(t, n.linked(e))
}

// slowTail follows the feed over a network whose delay changes all the time, so
// that commits arrive in another order than they were sent.
func slowTail(t T, e *Env) {
	n := e.network(t)
	tail(t, n.linked(e), func(ctx context.Context) error {
		for ctx.Err() == nil {
			n.Harm.Delay(time.Duration(rand.IntN(4)) * time.Millisecond)
			waits(t, ctx.Done(), time.Millisecond)
		}
		n.Harm.Delay(0)
		return nil
	})
}

func blackHole(t T, e *Env) {
	n := e.network(t)
	outlast(t, e, n.s, n.Open, func() error { n.Harm.Blackhole(); return nil }, func() error { n.Harm.Heal(); return nil })
}
