package cases

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tapestore/tapestore/conformance/harness"
	"github.com/tapestore/tapestore/conformance/internal/kit"
	"github.com/tapestore/tapestore/runstore"
)

// contextT is a T with another context.
type contextT struct {
	harness.T
	ctx context.Context
}

func (t contextT) Context() context.Context { return t.ctx }

// lateZombie keeps a holder's write in flight while another handle takes the lease. Then the
// write's caller gives up or, if repeated, the adapter has to repeat the write. The first copy
// arrives last.
func lateZombie(repeated bool) func(t harness.T, e *harness.Env) {
	return func(t harness.T, e *harness.Env) {
		e.Create(t, "neighbour")
		n := openNetwork(t, e)
		for _, w := range harness.Sampled(t, e, "kinds of writes", zombieWrites()) {
			if (harness.Case{Needs: w.needs}).Missing(e) != "" {
				continue
			}
			eachRoundTrip(t, e, w.name, func(id runstore.RunID, after int) bool { return arriveLate(t, e, n, w, id, after, repeated) })
		}
	}
}

// missingRunLease returns a lease of a run that does not exist.
func missingRunLease() runstore.Lease {
	return runstore.Lease{Run: "nowhere", Owner: "old", Token: 1, Grant: runstore.NewGrantID()}
}

// prepareStatement makes a handle send a kind of write once, to a run that does not exist, so that
// the statement is prepared on the handle's connection. A later fault then hits the write and not
// the request that prepares it.
func prepareStatement(t harness.T, do func() error) {
	t.Helper()
	harness.Refused(t, "a write to a run that does not exist", do(), runstore.ErrNotFound)
}

// arriveLate sends w under a lease, holds its request after that many round trips, takes the lease
// over and then delivers the request. It fails the case if the request changes anything. kept
// reports whether the network held a request.
func arriveLate(t harness.T, e *harness.Env, n network, w zombieWrite, id runstore.RunID, after int, repeated bool) (kept bool) {
	t.Helper()
	first := kit.Acquiring(id, "old", harness.TTL)
	old := seedZombieFixture(t, e, e.Store, first)
	if after == 0 {
		prepareStatement(t, func() error { return w.do(t, n.s, missingRunLease(), kit.Acquiring("nowhere", "old", harness.TTL)) })
	}
	awaitWorking(t, e, n.s)
	n.Faults.Hold(after)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	a := start(func() (receipt, error) { return receipt{}, w.do(contextT{t, ctx}, n.s, old, first) })
	kept = a.awaitHarm(t, 1, n.Faults.AwaitHeld)

	next := kit.Preempting(id, "new", "test")
	next.Writes.Append("test", []byte("taken over"))
	bound := harness.CaseTimeout
	if after > 0 { // the engine may be applying the write, with its run locked
		bound = 2 * time.Second
	}
	patient, done := context.WithTimeout(t.Context(), bound)
	lease, err := e.Store.AcquireLease(patient, next)
	done()
	if after > 0 && errors.Is(err, runstore.ErrNotFound) { // the write was a purge and is applied
		n.Faults.Reset()
		return false
	}
	if kind := runstore.KindOf(err); after > 0 && (kind == runstore.ErrUnavailable || kind == runstore.ErrUnknownOutcome) {
		t.Logf("%s: the takeover has to wait: %v", id, err)
		cancel()
		a.wait(t, w.name)
		n.Faults.Reset()
		n.awaitAnswered(t)
		return kept
	}
	if err != nil {
		t.Fatalf("takeover: %v", err)
	}
	state := func() string {
		return kit.Dump(t, e.Store, id, "queue", runstore.IndexRuns) + kit.Dump(t, e.Store, "neighbour")
	}
	before, expires := state(), e.Get(t, id).ExpiresAt
	if repeated {
		n.Faults.DropClientSide()
	} else {
		cancel()
	}
	a.wait(t, w.name)
	if kept && after == 0 && runstore.OutcomeOf(a.err) == runstore.Applied {
		t.Errorf("%s: a success, though it was in flight at the takeover", id)
	}
	if definite := errors.Is(a.err, runstore.ErrFenced) || errors.Is(a.err, runstore.ErrLeaseHeld); kept && after == 0 && repeated && !definite {
		t.Errorf("%s, repeated after the takeover: got error %v, want ErrFenced", id, a.err)
	}
	n.Faults.Reset()
	n.awaitAnswered(t)
	kit.CheckUnchanged(t, fmt.Sprintf("the late %s of a former holder (its answer: %v)", w.name, a.err), before, state())
	kit.Equal(t, "expiry", e.Get(t, id).ExpiresAt, expires)
	e.Append(t, e.Store, lease.Lease, "the new grant works")
	return kept
}
