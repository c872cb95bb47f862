package cases

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/tapestore/tapestore/conformance/harness"
	"github.com/tapestore/tapestore/conformance/internal/kit"
	"github.com/tapestore/tapestore/runstore"
)

// The cases in this file let a strict lease expire while a write under it is in progress: behind a
// lock of the engine, or in flight. A [runstore.StrictCommitter] refuses the write. Any other store
// may apply it, because its engine cannot compare its clock with the expiry in the step that
// applies the write. On every store, the write is applied whole or not at all, its result is true,
// no later write is applied, and no write is applied after a takeover.

// Strict returns the cases of I3 in which a strict lease expires during a write.
func Strict() []harness.Case {
	return []harness.Case{
		{Guarantee: "I3", Name: "strict-write-behind-a-lock-at-its-expiry-ends-as-declared", Needs: []harness.Need{harness.NeedBlockWriters}, Run: strictBehindALock, Doc: `
			An append, a renewal, a whole batch and a release are blocked at the engine until their strict leases have
			expired. A StrictCommitter refuses each with ErrLeaseExpired and changes nothing; any other store may apply
			the write, but whole, and must report the true outcome. A later write is refused, unless the renewal was
			applied. A store that judges the expiry before it waits for the lock, and declares otherwise, fails.`},
		{Guarantee: "I3", Name: "strict-write-in-flight-at-its-expiry-ends-as-declared", Needs: []harness.Need{harness.NeedNetwork}, Run: strictInFlight, Doc: `
			The network holds an append, and then a renewal, at each of its round trips until the strict lease has
			expired. A StrictCommitter refuses the write with ErrLeaseExpired and changes nothing; any other store may
			apply the write, but whole, and must report the true outcome. A later write is refused, unless the renewal
			was applied. A store that judges the expiry when it sends the write, and declares otherwise, fails.`},
	}
}

// strictWrite is one way to write under a strict lease.
type strictWrite struct {
	name string
	do   func(ctx context.Context, s runstore.RunStore, lease runstore.Lease) error
}

func strictWrites() []strictWrite {
	return []strictWrite{
		{"append", func(ctx context.Context, s runstore.RunStore, lease runstore.Lease) error {
			_, err := s.Commit(ctx, kit.Appending(lease, "late"))
			return err
		}},
		{"renewal", func(ctx context.Context, s runstore.RunStore, lease runstore.Lease) error {
			_, err := s.RenewLease(ctx, runstore.RenewRequest{Fence: lease.Fence(), TTL: harness.TTL})
			return err
		}},
		{"whole-batch", func(ctx context.Context, s runstore.RunStore, lease runstore.Lease) error {
			b := kit.Appending(lease, "late")
			b.Put("late", []byte("late"), runstore.Place{Index: "queue", At: runstore.After(0)})
			status := runstore.Status(66)
			b.Status = &status
			_, err := s.Commit(ctx, b)
			return err
		}},
		{"release-with-writes", func(ctx context.Context, s runstore.RunStore, lease runstore.Lease) error {
			req := runstore.ReleaseRequest{Fence: lease.Fence()}
			req.Writes.Append("test", []byte("late"))
			_, err := s.ReleaseLease(ctx, req)
			return err
		}},
	}
}

// strictAttempt is a write under a strict lease that was blocked past the lease's expiry.
type strictAttempt struct {
	*attempt
	write  string // the name of the strictWrite
	what   string
	lease  runstore.Lease
	before string // the run before the write
}

// strictState returns everything that a run shows, its expiry included.
func strictState(t harness.T, e *harness.Env, id runstore.RunID) string {
	t.Helper()
	return kit.Dump(t, e.Store, id, "queue") + fmt.Sprintf("expires %v\n", e.Get(t, id).ExpiresAt)
}

// holdStrictly acquires a strict lease.
func holdStrictly(t harness.T, e *harness.Env, id runstore.RunID, ttl time.Duration) runstore.Lease {
	t.Helper()
	req := kit.Acquiring(id, "strict", ttl)
	req.Strict, req.Preempt = true, "test"
	return kit.MustAcquire(t, e.Store, req)
}

// check fails the case unless the write ended as the store declares. The write must have ended and,
// unless its outcome is unknown, have none of its requests in flight.
func (a strictAttempt) check(t harness.T, e *harness.Env) {
	t.Helper()
	id := a.lease.Run
	if runstore.OutcomeOf(a.err) == runstore.Unknown {
		holdStrictly(t, e, id, harness.TTL) // from here on the engine refuses a request that is in flight
		if late := a.checkWhole(t, e); late && kit.StrictAtCommit(e.Store) && !a.wasInTime(t, e) {
			t.Errorf("%s, which was answered with %v, was applied", a.what, a.err)
		}
		return
	}
	after := strictState(t, e, id)
	switch {
	case kit.StrictAtCommit(e.Store):
		if runstore.KindOf(a.err) != runstore.ErrUnavailable { // a store may be unavailable when a lock is held for long
			harness.Refused(t, a.what, a.err, runstore.ErrLeaseExpired)
		}
		kit.CheckUnchanged(t, a.what, a.before, after)
	case runstore.OutcomeOf(a.err) == runstore.NotApplied:
		kit.CheckUnchanged(t, fmt.Sprintf("%s, which was answered with %v,", a.what, a.err), a.before, after)
	case a.err == nil && after == a.before:
		t.Errorf("%s: a success, and nothing of it is there", a.what)
	}
	late := a.checkWhole(t, e)
	renewed := !e.Get(t, id).ExpiresAt.Equal(a.lease.ExpiresAt)
	if a.write == "renewal" && renewed && !kit.StrictAtCommit(e.Store) {
		return // the renewal was applied, so the lease has not ended
	}
	before := strictState(t, e, id)
	_, err := e.Store.Commit(t.Context(), kit.Appending(a.lease, "later"))
	if !errors.Is(err, runstore.ErrLeaseExpired) && !(a.write == "release-with-writes" && late && errors.Is(err, runstore.ErrFenced)) {
		t.Errorf("a write that was sent after %s: got error %v, want ErrLeaseExpired", a.what, err)
	}
	kit.CheckUnchanged(t, "a write that was sent after "+a.what, before, strictState(t, e, id))
}

// wasInTime reports whether the engine applied the write before the lease's expiry, on an engine
// that reads its clock in the atomic step.
func (a strictAttempt) wasInTime(t harness.T, e *harness.Env) bool {
	if !kit.StrictAtCommit(e.Store) {
		return false
	}
	if a.write == "renewal" {
		return e.Get(t, a.lease.Run).Holder.RenewedAt.Before(a.lease.ExpiresAt)
	}
	events := kit.Journal(t, e.Store, a.lease.Run)
	return len(events) > 0 && events[len(events)-1].Time.Before(a.lease.ExpiresAt)
}

// checkWhole fails the case unless the event of the write, its record with its place, and its status are
// all stored or all absent. It reports whether the event is stored.
func (a strictAttempt) checkWhole(t harness.T, e *harness.Env) (late bool) {
	t.Helper()
	id := a.lease.Run
	events := kit.Journal(t, e.Store, id)
	late = len(events) > 0 && string(events[len(events)-1].Data) == "late"
	if a.write == "whole-batch" {
		placed := slices.ContainsFunc(kit.Queue(t, e.Store, "queue"), func(entry runstore.IndexEntry) bool { return entry.Run == id })
		if got := []bool{kit.Record(t, e.Store, id, "late").Version == 1, placed, e.Get(t, id).Status == 66}; got[0] != late || got[1] != late || got[2] != late {
			t.Errorf("%s: its event is there: %t; its record, place and status: %t, want the same of all", a.what, late, got)
		}
	}
	return late
}

// strictBehindALock blocks writes at the engine, as a stalled writer or a lock does, until the
// strict leases under which they were sent have expired.
func strictBehindALock(t harness.T, e *harness.Env) {
	writes := strictWrites()
	writer := e.Reopen(t) // one handle may not be able to do more than the blocked writes
	began := e.Now(t)
	var ttl time.Duration
	for round := 0; ; round, ttl = round+1, 2*ttl {
		// Each round uses new runs: writes of the round before may have been applied.
		id := func(w strictWrite) runstore.RunID { return runstore.RunID(fmt.Sprint(w.name, "-", round)) }
		for _, w := range writes {
			e.Create(t, id(w))
		}
		if round == 0 {
			// Long enough to acquire all leases and to send all writes, by four times the time that this
			// machine needed for half of that.
			ttl = e.ShortTTL() + 4*e.Now(t).Sub(began)
		}
		var all []strictAttempt
		for _, w := range writes {
			all = append(all, strictAttempt{write: w.name, what: w.name + ", held up past the end of its strict lease", lease: holdStrictly(t, e, id(w), ttl)})
		}
		for i := range all {
			all[i].before = strictState(t, e, all[i].lease.Run)
		}
		blocked := kit.BlockWriters(t, e)
		var ended sync.WaitGroup
		for i, w := range writes {
			all[i].attempt = start(func() (receipt, error) { return receipt{}, w.do(t.Context(), writer, all[i].lease) })
			ended.Go(func() { <-all[i].done })
		}
		blocked.Await(t, closedAfter(&ended)) // on a busy machine the leases may expire before a write is sent
		inTime := e.Now(t).Before(all[0].lease.ExpiresAt)
		if inTime {
			e.Advance(t, ttl)
		}
		blocked.Resume()
		for _, a := range all {
			a.wait(t, a.what)
		}
		if !inTime && ttl < harness.TTL { // this machine is busy
			continue
		}
		for _, a := range all {
			a.check(t, e)
		}
		return
	}
}

// strictInFlight keeps a write under a strict lease in flight until the lease has expired.
func strictInFlight(t harness.T, e *harness.Env) {
	n := openNetwork(t, e)
	for _, w := range strictWrites()[:2] {
		eachRoundTrip(t, e, w.name, func(id runstore.RunID, after int) bool {
			for ttl := e.ShortTTL(); ; ttl *= 2 {
				e.Create(t, runstore.RunID(w.name))
				kept, inTime := strictArrivesLate(t, e, n, w, ttl, after)
				purgeIfExists(t, e, runstore.RunID(w.name))
				if inTime || ttl > harness.TTL || t.Failed() {
					return kept
				}
			}
		})
	}
}

// strictArrivesLate holds a write at one of its round trips until its strict lease has expired.
// inTime is false if the lease expired before the write was held.
func strictArrivesLate(t harness.T, e *harness.Env, n network, w strictWrite, ttl time.Duration, after int) (kept, inTime bool) {
	t.Helper()
	id := runstore.RunID(w.name)
	prepareStatement(t, func() error { return w.do(t.Context(), n.s, missingRunLease()) })
	awaitWorking(t, e, n.s)
	a := strictAttempt{write: w.name, what: fmt.Sprintf("%s, in flight at its round trip %d when its strict lease ended", w.name, after), lease: holdStrictly(t, e, id, ttl)}
	a.before = strictState(t, e, id)
	n.Faults.Hold(after)
	a.attempt = start(func() (receipt, error) { return receipt{}, w.do(t.Context(), n.s, a.lease) })
	kept = a.awaitHarm(t, 1, n.Faults.AwaitHeld)
	inTime = e.Now(t).Before(a.lease.ExpiresAt)
	if inTime && kept {
		e.Advance(t, ttl)
	}
	n.Faults.Reset()
	a.wait(t, w.name)
	n.awaitAnswered(t)
	if kept && a.err == nil && a.wasInTime(t, e) { // the network held another request of the handle
		return false, true
	}
	if !kept { // the write has no such round trip, or came too late to reach it
		return kept, !cameLate(t, e, a.lease, a.err)
	}
	if inTime {
		a.check(t, e)
	}
	return kept, inTime
}
