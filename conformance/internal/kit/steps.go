package kit

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/tapestore/tapestore/conformance/harness"
	"github.com/tapestore/tapestore/conformance/internal/panics"
	"github.com/tapestore/tapestore/runstore"
)

// Acquiring returns a request for a lease under a fresh grant id.
func Acquiring(id runstore.RunID, owner runstore.Owner, ttl time.Duration) runstore.AcquireRequest {
	return runstore.AcquireRequest{
		Run:       id,
		LeaseSpec: runstore.LeaseSpec{Owner: owner, Reactor: "agent", TTL: ttl, Grant: runstore.NewGrantID()},
	}
}

// MustAcquire acquires a lease, and ends the case unless it is granted.
func MustAcquire(t harness.T, s runstore.RunStore, req runstore.AcquireRequest) runstore.Lease {
	t.Helper()
	lease, err := s.AcquireLease(t.Context(), req)
	if err != nil {
		t.Fatalf("acquire %q for %q: %v", req.Run, req.Owner, err)
	}
	return lease.Lease
}

// Preempting returns a request that takes the lease from its holder.
func Preempting(id runstore.RunID, owner runstore.Owner, reason string) runstore.AcquireRequest {
	req := Acquiring(id, owner, harness.TTL)
	req.Preempt = reason
	return req
}

// WithLease returns the spec of a run with a lease for owner, under a fresh grant id.
func WithLease(id runstore.RunID, owner runstore.Owner) runstore.RunSpec {
	lease := Acquiring(id, owner, harness.TTL).LeaseSpec
	return runstore.RunSpec{ID: id, Lease: &lease}
}

// Appending returns a batch that appends one event under a lease.
func Appending(lease runstore.Lease, data string) runstore.Batch {
	b := runstore.NewBatch(lease.Run, lease.Fence())
	b.Append("test", []byte(data))
	return b
}

// MustApply commits a batch, and ends the case with what in its message unless the batch is
// applied.
func MustApply(t harness.T, s runstore.RunStore, what string, b runstore.Batch) runstore.Committed {
	t.Helper()
	done, err := s.Commit(t.Context(), b)
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	return done
}

// MustRelease releases a lease, and ends the case unless the release succeeds.
func MustRelease(t harness.T, s runstore.RunStore, lease runstore.Lease) runstore.Committed {
	t.Helper()
	done, err := s.ReleaseLease(t.Context(), runstore.ReleaseRequest{Fence: lease.Fence()})
	if err != nil {
		t.Fatalf("release token %v of %q: %v", lease.Token, lease.Run, err)
	}
	return done
}

// Renew requests a renewal and returns only the error.
func Renew(t harness.T, s runstore.RunStore, lease runstore.Lease, ttl time.Duration) error {
	_, err := s.RenewLease(t.Context(), runstore.RenewRequest{Fence: lease.Fence(), TTL: ttl})
	return err
}

// Release requests a release and returns only the error.
func Release(t harness.T, s runstore.RunStore, lease runstore.Lease) error {
	_, err := s.ReleaseLease(t.Context(), runstore.ReleaseRequest{Fence: lease.Fence()})
	return err
}

// Expire advances the store clock until leases with the short TTL have expired.
func Expire(t harness.T, e *harness.Env) {
	t.Helper()
	e.Advance(t, e.ShortTTL())
}

// CheckFenced fails the case unless err is ErrFenced and names the grant that is now current on
// run: a former holder must be able to see the takeover from the refusal alone.
func CheckFenced(t harness.T, what string, err error, lease runstore.Lease, run runstore.Run) {
	t.Helper()
	var fenced *runstore.FencedError
	if !errors.As(err, &fenced) || !errors.Is(err, runstore.ErrFenced) {
		t.Errorf("%s: got error %v, want ErrFenced as *FencedError", what, err)
		return
	}
	if fenced.Presented != lease.Token || fenced.Current != run.Token {
		t.Errorf("%s: presented %v, current %v in the error, want %v and %v",
			what, fenced.Presented, fenced.Current, lease.Token, run.Token)
	}
	if got, want := HolderText(fenced.Holder), HolderText(run.Holder); got != want {
		t.Errorf("%s: the error names the holder %s, want %s", what, got, want)
	}
}

// clockLag, 1 minute, bounds how far a handle's estimate may lie behind the store clock. It is far
// longer than a round trip, by which a handle on Bigtable learns that clock, and far shorter than
// the hours by which the suite sets a process's clock wrong. I1/live-lease-is-not-taken-over
// derives the exact bound from the duration of a reading.
const clockLag = time.Minute

// CheckLeaseHeld fails the case unless err is ErrLeaseHeld, names holder, and reports a remaining
// time above 0 and of at most longest plus clockLag.
func CheckLeaseHeld(t harness.T, what string, err error, holder runstore.Lease, longest time.Duration) {
	t.Helper()
	var held *runstore.LeaseHeldError
	if !errors.As(err, &held) || !errors.Is(err, runstore.ErrLeaseHeld) {
		t.Errorf("%s: got error %v, want ErrLeaseHeld as *LeaseHeldError", what, err)
		return
	}
	if held.Holder.Owner != holder.Owner || held.Holder.Reactor != holder.Reactor || held.Holder.Token != holder.Token {
		t.Errorf("%s: the error names the holder %s, want %q under token %v", what, HolderText(held.Holder), holder.Owner, holder.Token)
	}
	if held.Remaining <= 0 || held.Remaining > longest+clockLag {
		t.Errorf("%s: %v remaining in the error, want more than 0 and at most %v", what, held.Remaining, longest+clockLag)
	}
}

// CheckStoreBehind fails the case unless err is ErrStoreBehind: the caller presented a number above
// what the store knows.
func CheckStoreBehind(t harness.T, what string, err error, field string, presented, known int64) {
	t.Helper()
	var b *runstore.StoreBehindError
	if !errors.As(err, &b) || !errors.Is(err, runstore.ErrStoreBehind) {
		t.Errorf("%s: got error %v, want ErrStoreBehind as *StoreBehindError", what, err)
		return
	}
	if b.Field != field || b.Presented != presented || b.Known != known {
		t.Errorf("%s: %s %d presented, %d known in the error, want %s %d and %d",
			what, b.Field, b.Presented, b.Known, field, presented, known)
	}
}

// HolderText returns the fields of a holder that errors must name, as text.
func HolderText(h runstore.Holder) string {
	return fmt.Sprintf("%q/%q token=%v strict=%t", h.Owner, h.Reactor, h.Token, h.Strict)
}

// Contend runs f n times concurrently from a common start.
func Contend(n int, f func(i int)) {
	start := make(chan struct{})
	var wg sync.WaitGroup
	var failed panics.First
	for i := range n {
		wg.Go(failed.Guarded(func() {
			<-start
			f(i)
		}))
	}
	close(start)
	wg.Wait()
	failed.Rethrow() // on the case's own goroutine, so that it fails the case
}

// OpenHandles opens n handles, one for each contender.
func OpenHandles(t harness.T, e *harness.Env, n int) []runstore.RunStore {
	t.Helper()
	all := make([]runstore.RunStore, n)
	for i := range all {
		all[i] = e.Reopen(t)
	}
	return all
}

// Journal returns the whole journal of a run.
func Journal(t harness.T, s runstore.RunStore, id runstore.RunID) []runstore.Event {
	t.Helper()
	var all []runstore.Event
	for event, err := range runstore.Journal(t.Context(), s, id, 1) {
		if err != nil {
			t.Fatalf("journal of %q: %v", id, err)
		}
		all = append(all, event)
	}
	return all
}

// JournalText returns a journal in short: "data@token" for each event.
func JournalText(events []runstore.Event) string {
	var b strings.Builder
	for _, e := range events {
		fmt.Fprintf(&b, "%s@%v ", e.Data, e.Token)
	}
	return strings.TrimSpace(b.String())
}
