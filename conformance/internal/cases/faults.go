package cases

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tapestore/tapestore/conformance/harness"
	"github.com/tapestore/tapestore/conformance/internal/kit"
	"github.com/tapestore/tapestore/conformance/internal/panics"
	"github.com/tapestore/tapestore/runstore"
)

// Helpers of the cases that break the network or the server. They know no protocol: an adapter may
// need one round trip for a write, or several. So a fault hits each write at its first round trip,
// then at its second, and so on, until the write has no further round trip.

const (
	// roundTrips, 8, exceeds the round trips that any write has a reason to need.
	roundTrips = 8
	// shortly, 5 s, bounds how soon a call returns after its context has ended. It is a bound, not
	// a measurement.
	shortly = 5 * time.Second
)

// network is a case's network, with a handle behind it.
type network struct {
	harness.Network
	e *harness.Env
	s runstore.RunStore
}

func openNetwork(t harness.T, e *harness.Env) network {
	t.Helper()
	n := network{Network: e.Network(t), e: e}
	n.s = harness.MustOpen(t, func() (runstore.RunStore, error) { return n.Open(t.Context()) })
	t.Cleanup(n.Faults.Reset) // before the handle is closed
	return n
}

// throughNetwork returns a copy of e whose handles are all opened through the network.
func (n network) throughNetwork(e *harness.Env) *harness.Env {
	far := *e
	far.Open = n.Open
	return &far
}

// awaitWorking waits until a handle works again after a fault; the handle must recover without
// help. The next fault then hits an open connection.
func awaitWorking(t harness.T, e *harness.Env, s runstore.RunStore) {
	t.Helper()
	var last error
	defer func() {
		if last != nil {
			t.Errorf("the handle does not recover: %v", last)
		}
	}()
	bound := shortly
	e.Await(t, harness.CaseTimeout, func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), bound)
		defer cancel()
		bound *= 2 // or a slow machine never gets an answer
		_, last = s.Now(ctx)
		return last == nil
	})
}

// awaitAnswered waits for the answers to requests that were held and arrive late. It fails the case
// if they are missing, because a request that arrives after the case has looked proves nothing.
func (n network) awaitAnswered(t harness.T) {
	t.Helper()
	bound := harness.CaseTimeout
	if n.MayLeaveUnanswered {
		bound = shortly
	}
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	err := n.Faults.AwaitAnswered(ctx)
	switch {
	case err == nil:
	case n.MayLeaveUnanswered:
		n.e.LeaveOut(t, "the effects of requests without an answer")
	default:
		t.Fatalf("what was held is unanswered after %v: %v", bound, err)
	}
}

// receipt is the answer to a write: the text that must be equal in two runs of a scenario, and the
// lease that was granted.
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

// attempt is a write in flight.
type attempt struct {
	receipt
	err  error
	done chan struct{}
}

func start(do func() (receipt, error)) *attempt {
	a := &attempt{done: make(chan struct{})}
	go func() {
		defer close(a.done)
		a.err = panics.Caught(func() (err error) {
			a.receipt, err = do()
			return err
		})
	}()
	return a
}

// awaitHarm waits until the fault has hit n times, and reports whether it did before the attempt
// ended.
func (a *attempt) awaitHarm(t harness.T, n int, harm func(ctx context.Context, n int) error) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), harness.CaseTimeout)
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

// wait waits until the attempt has ended.
func (a *attempt) wait(t harness.T, what string) {
	t.Helper()
	timer := time.NewTimer(harness.CaseTimeout)
	defer timer.Stop()
	select {
	case <-a.done:
	case <-timer.C:
		t.Fatalf("%s: no answer after %v", what, harness.CaseTimeout)
	}
}

// eachRoundTrip runs a scenario with the fault at the first round trip of a write, then at the
// second, and so on, until a scenario reports that the fault hit nothing.
//
// It purges the run of each scenario, because later scenarios read every index and would read all
// earlier runs again and again.
func eachRoundTrip(t harness.T, e *harness.Env, name string, scenario func(id runstore.RunID, after int) (harmed bool)) {
	t.Helper()
	for after := range roundTrips {
		if t.Failed() {
			return
		}
		id := runstore.RunID(fmt.Sprintf("%s-%d", name, after))
		harmed := scenario(id, after)
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

// purgeIfExists purges a run, if it exists.
func purgeIfExists(t harness.T, e *harness.Env, id runstore.RunID) {
	t.Helper()
	b := runstore.NewBatch(id, runstore.Unguarded("test"))
	b.Purge = true
	if _, err := e.Store.Commit(t.Context(), b); err != nil && !errors.Is(err, runstore.ErrNotFound) {
		t.Fatalf("purge %q: %v", id, err)
	}
}

// describeRun returns the dump of a run, or "no run".
func describeRun(t harness.T, e *harness.Env, id runstore.RunID) string {
	t.Helper()
	if text, exists := kit.DumpIfAny(t, e.Store, id, kit.AllIndexes...); exists {
		return text
	}
	return "no run"
}

// referenceRun is the outcome of a write without faults: the state of its run before and after the
// write, and the answer.
type referenceRun struct{ before, after, answer string }

// reference performs a write through s without a fault and records the outcome. It also warms up s:
// some protocols prepare a statement in a request of its own before they first send it on a
// connection, and a later fault must hit the write and not that request.
func (w sending) reference(t harness.T, e *harness.Env, s runstore.RunStore) referenceRun {
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

// check fails the case unless the attempt's result is true: what the result says about the write
// happened.
func (b referenceRun) check(t harness.T, e *harness.Env, id runstore.RunID, a *attempt) {
	t.Helper()
	now := describeRun(t, e, id)
	if now != b.before && now != b.after { // a late copy may have been applied between the reads of the dump
		now = describeRun(t, e, id)
	}
	b.checkFound(t, e, id, a, now)
}

// checkFound is check for a run whose dump, now, was read already.
func (b referenceRun) checkFound(t harness.T, e *harness.Env, id runstore.RunID, a *attempt, now string) {
	t.Helper()
	switch outcome := runstore.OutcomeOf(a.err); {
	case outcome == runstore.Applied:
		kit.Equal(t, fmt.Sprintf("answer of %q", id), a.text, b.answer)
		kit.CheckUnchanged(t, fmt.Sprintf("a success of %q, beside one that nothing harmed,", id), b.after, now)
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

// checkExpiryNotEarlier fails the case unless the stored expiry of a lease, of a run that the case
// has just created, is that of the holder's answer or slightly later. An engine may read the time
// before it applies the request, and store an expiry that is later by the duration of the request.
// It may store no earlier expiry.
func checkExpiryNotEarlier(t harness.T, e *harness.Env, lease runstore.Lease) {
	t.Helper()
	run := e.Get(t, lease.Run)
	checkBetween(t, "expiry", run.ExpiresAt, lease.ExpiresAt, lease.ExpiresAt.Add(e.Now(t).Sub(run.CreatedAt)))
}
