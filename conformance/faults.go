package conformance

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// What the cases share that harm the network or the server. They know no
// protocol: an adapter may need one round trip for a write or several, so each
// write is harmed at its first, then at its second, until one is left unharmed.

const (
	// roundTrips is more than any write has a reason to need.
	roundTrips = 8
	// shortly is how soon a call returns after its context's end: a bound, not a
	// measurement.
	shortly = 5 * time.Second
)

// network is a case's network, and a handle behind it.
type network struct {
	Network
	s runstore.RunStore
}

func (e *Env) network(t T) network {
	t.Helper()
	n := network{Network: e.Network(t)}
	n.s = closing(t, func() (runstore.RunStore, error) { return n.Open(t.Context()) })
	t.Cleanup(n.Faults.Reset) // before the handle is closed
	return n
}

// linked is e behind the network: all handles that it opens go through it.
func (n network) throughNetwork(e *Env) *Env {
	far := *e
	far.Open = n.Open
	return &far
}

// works waits until a handle works again after a fault, as it has to by itself. So
// the next fault meets an open connection.
func awaitWorking(t T, e *Env, s runstore.RunStore) {
	t.Helper()
	var last error
	defer func() {
		if last != nil {
			t.Errorf("the handle does not recover: %v", last)
		}
	}()
	bound := shortly
	e.Await(t, caseTimeout, func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), bound)
		defer cancel()
		bound *= 2 // or a slow machine never gets an answer
		_, last = s.Now(ctx)
		return last == nil
	})
}

// answered waits for the answers to requests that were held and come late. A
// protocol may have sent what needs none.
func (n network) awaitAnswered(t T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), shortly)
	defer cancel()
	if err := n.Faults.AwaitAnswered(ctx); err != nil {
		t.Logf("what was held is unanswered: %v", err)
	}
}

// receipt is what a write answered: all that must be alike in two runs of a story,
// and the lease that it granted.
type receipt struct {
	text  string
	lease runstore.Lease
}

func committedReceipt(done runstore.Committed) receipt {
	return receipt{text: fmt.Sprintf("seqs %d to %d, versions %v", done.FirstSeq, done.LastSeq, append([]runstore.Version{}, done.Versions...))}
}

func leaseReceipt(lease runstore.Lease, wanted runstore.GrantID) receipt {
	return receipt{fmt.Sprintf("token %v of %q, its own grant %t", lease.Token, lease.Owner, lease.Grant != "" && (wanted == "" || lease.Grant == wanted)), lease}
}

// attempt is a write under way.
type attempt struct {
	receipt
	err  error
	done chan struct{}
}

func start(do func() (receipt, error)) *attempt {
	a := &attempt{done: make(chan struct{})}
	go func() {
		defer close(a.done)
		a.err = caught(func() (err error) {
			a.receipt, err = do()
			return err
		})
	}()
	return a
}

// meets waits until harm was done n times, or the attempt has ended before.
func (a *attempt) awaitHarm(t T, n int, harm func(ctx context.Context, n int) error) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), caseTimeout)
	defer cancel()
	met := make(chan error, 1)
	go func() { met <- harm(ctx, n) }()
	select {
	case err := <-met:
		if err != nil {
			t.Fatalf("the write was not harmed %d times and has no end: %v", n, err)
		}
		return true
	case <-a.done:
		return false
	}
}

// ends waits for the attempt's end.
func (a *attempt) wait(t T, what string) {
	t.Helper()
	timer := time.NewTimer(caseTimeout)
	defer timer.Stop()
	select {
	case <-a.done:
	case <-timer.C:
		t.Fatalf("%s: no answer after %v", what, caseTimeout)
	}
}

// eachRoundTrip tells a story with the harm at the first round trip of a write, at
// the second, and on, until the write was left unharmed.
//
// A story that is told leaves no run behind: those that follow read every index, and
// would read all former ones again and again.
func eachRoundTrip(t T, e *Env, name string, story func(id runstore.RunID, after int) (harmed bool)) {
	t.Helper()
	for after := range roundTrips {
		if t.Failed() {
			return
		}
		id := runstore.RunID(fmt.Sprintf("%s-%d", name, after))
		harmed := story(id, after)
		if t.Failed() {
			return
		}
		purgeIfExists(t, e, id)
		if !harmed {
			if after == 0 {
				t.Errorf("%s: nothing of it went through the network", name)
			}
			return
		}
	}
}

// bury purges a run, if there is one.
func purgeIfExists(t T, e *Env, id runstore.RunID) {
	t.Helper()
	b := runstore.NewBatch(id, runstore.Unguarded("test"))
	b.Purge = true
	if _, err := e.Store.Commit(t.Context(), b); err != nil && !errors.Is(err, runstore.ErrNotFound) {
		t.Fatalf("purge %q: %v", id, err)
	}
}

// found writes down what became of a run, if there is one.
func describeRun(t T, e *Env, id runstore.RunID) string {
	t.Helper()
	if text, exists := dumpIfAny(t, e.Store, id, allIndexes...); exists {
		return text
	}
	return "no run"
}

// story is a write by the book: how its run stands before and after it, and what it
// answers.
type referenceRun struct{ before, after, answer string }

// byTheBook makes a write through s without a fault, and records its answer. It also warms
// up s: some protocols prepare a statement in a request of its own before they first send
// it on a connection, and a fault that follows must hit the write and not that request.
func (w sending) reference(t T, e *Env, s runstore.RunStore) referenceRun {
	t.Helper()
	id := runstore.RunID(w.name)
	held := w.seedRun(t, e, id)
	b := referenceRun{before: describeRun(t, e, id)}
	r, err := w.do(t.Context(), s, id, held)
	if err != nil {
		t.Fatalf("%s: %v", w.name, err)
	}
	b.after, b.answer = describeRun(t, e, id), r.text
	return b
}

// check fails the case unless the attempt was truthful: what it says became of the
// write did.
func (b referenceRun) check(t T, e *Env, id runstore.RunID, a *attempt) {
	t.Helper()
	b.checkFound(t, e, id, a, describeRun(t, e, id))
}

// checkFound is check where the run was looked at already.
func (b referenceRun) checkFound(t T, e *Env, id runstore.RunID, a *attempt, now string) {
	t.Helper()
	switch outcome := runstore.OutcomeOf(a.err); {
	case outcome == runstore.Applied:
		equal(t, fmt.Sprintf("answer of %q", id), a.text, b.answer)
		checkUnchanged(t, fmt.Sprintf("a success of %q, beside one that nothing harmed,", id), b.after, now)
		if a.lease.Token != 0 && !t.Failed() {
			checkExpiryNotEarlier(t, e, a.lease)
			e.Append(t, e.Store, a.lease, "the lease is good")
		}
	case now == b.before:
	case now == b.after && outcome == runstore.Unknown:
	case now == b.after:
		t.Errorf("%q was applied, though its error says that it was not: %v", id, a.err)
	default:
		t.Errorf("%q, which failed with %v, is neither as it was nor as the write leaves it:\n%s--- before\n%s--- after\n%s", id, a.err, now, b.before, b.after)
	}
}

// expiresAsTold fails the case unless a lease, of a run that the case has just created, ends
// when the answer to its holder said. An engine may read the time before it applies the request, and
// show an expiry that is later by what the request took. It may show no earlier one.
func checkExpiryNotEarlier(t T, e *Env, lease runstore.Lease) {
	t.Helper()
	run := e.Get(t, lease.Run)
	checkBetween(t, "expiry", run.ExpiresAt, lease.ExpiresAt, lease.ExpiresAt.Add(e.Now(t).Sub(run.CreatedAt)))
}
