package conformance

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// The steps that the cases on leases and fences are made of. Each fails the
// case unless it does what its name says.

// hold acquires a lease that has to be granted.
func mustAcquire(t T, s runstore.RunStore, req runstore.AcquireRequest) runstore.Lease {
	t.Helper()
	lease, err := s.AcquireLease(t.Context(), req)
	if err != nil {
		t.Fatalf("acquire %q for %q: %v", req.Run, req.Owner, err)
	}
	return lease.Lease
}

// preempting is a request that takes the lease away from whoever holds it.
func preempting(id runstore.RunID, owner runstore.Owner, reason string) runstore.AcquireRequest {
	req := acquire(id, owner, TTL)
	req.Preempt = reason
	return req
}

// withLease is a run to create with a lease for owner, under a fresh grant id.
func withLease(id runstore.RunID, owner runstore.Owner) runstore.RunSpec {
	lease := acquire(id, owner, TTL).LeaseSpec
	return runstore.RunSpec{ID: id, Lease: &lease}
}

// appending is a batch that appends one event under a lease.
func appending(lease runstore.Lease, data string) runstore.Batch {
	b := runstore.NewBatch(lease.Run, lease.Fence())
	b.Append("test", []byte(data))
	return b
}

// applied commits a batch that has to be applied.
func applied(t T, s runstore.RunStore, what string, b runstore.Batch) runstore.Committed {
	t.Helper()
	done, err := s.Commit(t.Context(), b)
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	return done
}

// letGo releases a lease that is still current.
func mustRelease(t T, s runstore.RunStore, lease runstore.Lease) runstore.Committed {
	t.Helper()
	done, err := s.ReleaseLease(t.Context(), runstore.ReleaseRequest{Fence: lease.Fence()})
	if err != nil {
		t.Fatalf("release token %v of %q: %v", lease.Token, lease.Run, err)
	}
	return done
}

// renew asks for a renewal and returns only its error.
func renew(t T, s runstore.RunStore, lease runstore.Lease, ttl time.Duration) error {
	_, err := s.RenewLease(t.Context(), runstore.RenewRequest{Fence: lease.Fence(), TTL: ttl})
	return err
}

// release asks for a release and returns only its error.
func release(t T, s runstore.RunStore, lease runstore.Lease) error {
	_, err := s.ReleaseLease(t.Context(), runstore.ReleaseRequest{Fence: lease.Fence()})
	return err
}

// expire lets a lease of the case's short TTL run out.
func (e *Env) expire(t T) {
	t.Helper()
	e.Advance(t, e.ShortTTL())
}

// fencedOut fails the case unless err refuses the lease as fenced and names the
// grant that run holds instead, so that a zombie learns what became of it from
// the refusal alone.
func checkFenced(t T, what string, err error, lease runstore.Lease, run runstore.Run) {
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
	if got, want := holderText(fenced.Holder), holderText(run.Holder); got != want {
		t.Errorf("%s: the error names the holder %s, want %s", what, got, want)
	}
}

// clockLag bounds how far a handle's estimate may lie behind the store clock. 1 minute: far
// more than a reply takes, by which a handle on Bigtable learns that clock, and far less
// than the hours by which the suite sets a process's clock wrong.
// I1/live-lease-is-not-taken-over derives the exact bound from how long a reading takes.
const clockLag = time.Minute

// heldBy fails the case unless err refuses a lease because holder has it, and names the
// remaining time, which is at most longest and a clockLag.
func checkLeaseHeld(t T, what string, err error, holder runstore.Lease, longest time.Duration) {
	t.Helper()
	var held *runstore.LeaseHeldError
	if !errors.As(err, &held) || !errors.Is(err, runstore.ErrLeaseHeld) {
		t.Errorf("%s: got error %v, want ErrLeaseHeld as *LeaseHeldError", what, err)
		return
	}
	if held.Holder.Owner != holder.Owner || held.Holder.Reactor != holder.Reactor || held.Holder.Token != holder.Token {
		t.Errorf("%s: the error names the holder %s, want %q under token %v", what, holderText(held.Holder), holder.Owner, holder.Token)
	}
	if held.Remaining <= 0 || held.Remaining > longest+clockLag {
		t.Errorf("%s: %v remaining in the error, want more than 0 and at most %v", what, held.Remaining, longest+clockLag)
	}
}

// behind fails the case unless err says that the store knows less than its
// caller.
func checkStoreBehind(t T, what string, err error, field string, presented, known int64) {
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

func holderText(h runstore.Holder) string {
	return fmt.Sprintf("%q/%q token=%v strict=%t", h.Owner, h.Reactor, h.Token, h.Strict)
}

// contend runs f n times at once from a common start.
func contend(n int, f func(i int)) {
	start := make(chan struct{})
	var wg sync.WaitGroup
	var failed firstPanic
	for i := range n {
		wg.Go(failed.guarded(func() {
			<-start
			f(i)
		}))
	}
	close(start)
	wg.Wait()
	failed.rethrow() // on the goroutine of the case, which it fails
}

// handles opens n handles, one per contender.
func (e *Env) handles(t T, n int) []runstore.RunStore {
	t.Helper()
	all := make([]runstore.RunStore, n)
	for i := range all {
		all[i] = e.Reopen(t)
	}
	return all
}

// journal reads a whole journal.
func journal(t T, s runstore.RunStore, id runstore.RunID) []runstore.Event {
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

// told is a journal in short: data under token, event by event.
func journalText(events []runstore.Event) string {
	var b strings.Builder
	for _, e := range events {
		fmt.Fprintf(&b, "%s@%v ", e.Data, e.Token)
	}
	return strings.TrimSpace(b.String())
}
