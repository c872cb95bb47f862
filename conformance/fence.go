package conformance

import (
	"errors"
	"slices"

	"github.com/tapestore/tapestore/runstore"
)

// fenceCases prove I3: what is not under the current grant is not applied.
func fenceCases() []Case {
	return append([]Case{
		{Guarantee: "I3", Name: "expired-holder-goes-on-while-nobody-took-over", Run: lateHolder},
		{Guarantee: "I3", Name: "strict-lease-is-over-at-its-expiry", Run: strictIsOver},
		{Guarantee: "I3", Name: "strict-lease-is-held-until-its-expiry", Run: strictUntilExpiry},
		{Guarantee: "I3", Name: "renewal-never-shortens-a-lease", Run: renewNeverShortens},
		{Guarantee: "I3", Name: "old-fence-of-the-same-owner-is-refused", Run: sameOwnerAgain},
		{Guarantee: "I3", Name: "token-alone-is-no-fence", Run: forgedFence},
		{Guarantee: "I3", Name: "fence-of-another-run-is-refused", Run: fenceOfAnotherRun},
		{Guarantee: "I3", Name: "fenced-comes-before-conflict", Run: fencedFirst},
		{Guarantee: "I3", Name: "fence-does-not-replace-other-guards", Run: allGuards},
		{Guarantee: "I3", Name: "release-in-a-batch-ends-the-grant", Run: batchReleases},
		{Guarantee: "I3", Name: "revocation-ends-the-grant", Run: revocation},
		{Guarantee: "I3", Name: "guards-of-an-acquire-hold-or-nothing-happens", Run: guardedAcquire},
		{Guarantee: "I3", Name: "writes-carried-by-a-grant-are-made-under-its-token", Run: carriedWrites},
		{Guarantee: "I3", Name: "preempt-tells-who-was-preempted-and-why", Run: preemptIsVisible},
		{Guarantee: "I3", Name: "refused-batch-is-not-remembered", Run: refusedIsForgotten},
	}, slices.Concat(zombieCases(), manyRunsCases())...)
}

// lateHolder lets a lease expire, and its holder go on: expiry is for progress,
// and nobody else has made any.
func lateHolder(t T, e *Env) {
	e.Create(t, "run")
	lease := hold(t, e.Store, acquire("run", "late", e.ShortTTL()))
	e.expire(t)
	e.Append(t, e.Store, lease, "late commit")
	if run := e.Get(t, "run"); run.Holder.Owner != "late" || run.Live(e.Now(t)) {
		t.Errorf("holder %s, live %t; want late, still named, and not live", named(run.Holder), run.Live(e.Now(t)))
	}
	late := e.Reopen(t)
	from := e.before(t, late)
	renewed, err := late.RenewLease(t.Context(), runstore.RenewRequest{Fence: lease.Fence(), TTL: TTL})
	if err != nil {
		t.Fatalf("late renewal while nobody took over: %v", err)
	}
	within(t, "the expiry of a late renewal", renewed.ExpiresAt, from.Add(TTL), e.Now(t).Add(TTL))
	_, err = e.Store.AcquireLease(t.Context(), acquire("run", "other", TTL))
	heldBy(t, "acquire after the late renewal", err, renewed.Lease, TTL)
	e.Append(t, e.Store, lease, "after the renewal")

	second := hold(t, e.Store, preempting("run", "late", "test"))
	letGo(t, e.Store, second)
	third := hold(t, e.Store, acquire("run", "late", e.ShortTTL()))
	e.expire(t)
	letGo(t, e.Store, third)
	if got, want := told(journal(t, e.Store, "run")), "late commit@1 after the renewal@1"; got != want {
		t.Errorf("the journal is %q, want %q", got, want)
	}
}

func strictIsOver(t T, e *Env) {
	e.Create(t, "run")
	lease := usedStrictly(t, e, "run")
	e.Elapse(t, lease.TTL)
	before := dump(t, e.Store, "run", "queue")
	refused := func(what string, err error) {
		t.Helper()
		Refused(t, what+" under an expired strict lease", err, runstore.ErrLeaseExpired)
		same(t, what+" under an expired strict lease", before, dump(t, e.Store, "run", "queue"))
	}
	_, err := e.Store.Commit(t.Context(), appending(lease, "late"))
	refused("commit", err)
	b := runstore.NewBatch("run", lease.Fence())
	b.Put("record", []byte("late"), runstore.Place{Index: "queue", At: runstore.After(0)})
	_, err = e.Reopen(t).Commit(t.Context(), b)
	refused("commit through another handle", err)
	refused("renewal", renew(t, e.Store, lease, TTL))
	refused("release", release(t, e.Store, lease))
	purging := runstore.NewBatch("run", lease.Fence())
	purging.Purge = true
	_, err = e.Store.Commit(t.Context(), purging)
	refused("purge", err)

	next := e.Acquire(t, e.Store, "run", "strict")
	if next.Token != lease.Token+1 {
		t.Errorf("the strict holder's next grant has token %v, want %v", next.Token, lease.Token+1)
	}
	before = dump(t, e.Store, "run", "queue")
	_, err = e.Store.Commit(t.Context(), appending(lease, "later"))
	fencedOut(t, "commit under a strict lease that was taken over", err, lease, e.Get(t, "run"))
	same(t, "a refused commit", before, dump(t, e.Store, "run", "queue"))
}

// usedStrictly takes a strict lease that expires soon, and writes under it in time. An
// engine that is busy may need more time for both.
func usedStrictly(t T, e *Env, id runstore.RunID) runstore.Lease {
	t.Helper()
	for req := acquire(id, "strict", e.ShortTTL()); ; req.TTL *= 2 {
		req.Grant, req.Strict = runstore.NewGrantID(), true
		lease := hold(t, e.Store, req)
		_, err := e.Store.Commit(t.Context(), appending(lease, "in time"))
		if err == nil {
			return lease
		}
		if !errors.Is(err, runstore.ErrLeaseExpired) || e.Now(t).Before(lease.ExpiresAt) || req.TTL > TTL {
			t.Fatalf("commit under a strict lease until %v: %v", lease.ExpiresAt, err)
		}
	}
}

func strictUntilExpiry(t T, e *Env) {
	e.Create(t, "run")
	req := acquire("run", "strict", TTL)
	req.Strict = true
	lease := hold(t, e.Store, req)
	e.Elapse(t, e.ShortTTL()/2)
	e.Append(t, e.Store, lease, "in time")
	if err := renew(t, e.Store, lease, 4*TTL); err != nil {
		t.Fatalf("renew in time: %v", err)
	}
	e.expire(t) // past the first expiry where time is moved, before the second
	e.Append(t, e.Store, lease, "in renewed time")
	letGo(t, e.Store, lease)
}

func renewNeverShortens(t T, e *Env) {
	e.Create(t, "run")
	lease := e.Acquire(t, e.Store, "run", "holder")
	for range 3 {
		shorter, err := e.Store.RenewLease(t.Context(), runstore.RenewRequest{Fence: lease.Fence(), TTL: runstore.MinTTL})
		if err != nil {
			t.Fatalf("renew: %v", err)
		}
		if !shorter.ExpiresAt.Equal(lease.ExpiresAt) || shorter.Token != lease.Token {
			t.Errorf("renewed for %v: token %v until %v, want %v until %v as before",
				runstore.MinTTL, shorter.Token, shorter.ExpiresAt, lease.Token, lease.ExpiresAt)
		}
		if run := e.Get(t, "run"); !run.ExpiresAt.Equal(lease.ExpiresAt) || !run.Holder.ExpiresAt.Equal(lease.ExpiresAt) {
			t.Errorf("renewed for %v: the run shows expiry %v, want %v", runstore.MinTTL, run.ExpiresAt, lease.ExpiresAt)
		}
	}
	from := e.Now(t)
	longer, err := e.Store.RenewLease(t.Context(), runstore.RenewRequest{Fence: lease.Fence(), TTL: 2 * TTL})
	if err != nil {
		t.Fatalf("renew: %v", err)
	}
	within(t, "the expiry of a longer renewal", longer.ExpiresAt, from.Add(2*TTL), e.Now(t).Add(2*TTL))
	if longer.TTL != 2*TTL || longer.Owner != lease.Owner || longer.Reactor != lease.Reactor || longer.Grant != lease.Grant {
		t.Errorf("renewal of %+v for %v gave %+v", lease, 2*TTL, longer)
	}
}

// sameOwnerAgain is ABA: the owner's name comes back, the grant does not.
func sameOwnerAgain(t T, e *Env) {
	e.Create(t, "run")
	first := e.Acquire(t, e.Store, "run", "pod")
	letGo(t, e.Store, first)
	refused := func(when string) {
		t.Helper()
		before, run := dump(t, e.Store, "run"), e.Get(t, "run")
		_, err := e.Store.Commit(t.Context(), appending(first, "zombie"))
		fencedOut(t, when+": commit", err, first, run)
		fencedOut(t, when+": renewal", renew(t, e.Store, first, TTL), first, run)
		if run.Holder.Token != 0 { // until then it is a repeated release
			fencedOut(t, when+": release", release(t, e.Store, first), first, run)
		}
		same(t, when+": the fence of the former grant", before, dump(t, e.Store, "run"))
	}
	refused("released")
	second := e.Acquire(t, e.Store, "run", "pod")
	refused("acquired again by the same owner")
	letGo(t, e.Store, second)
	third := hold(t, e.Reopen(t), acquire("run", "pod", TTL))
	refused("and again")
	e.Append(t, e.Store, third, "the current grant works")
}

// forgedFence presents the current token with another owner or grant id: two
// grants that an engine confused would look like that.
func forgedFence(t T, e *Env) {
	e.Create(t, "run")
	lease := e.Acquire(t, e.Store, "run", "holder")
	before, run := dump(t, e.Store, "run"), e.Get(t, "run")
	grant, owner, both := lease, lease, lease
	grant.Grant = runstore.NewGrantID()
	owner.Owner = "somebody"
	both.Grant, both.Owner = grant.Grant, owner.Owner
	for what, forged := range map[string]runstore.Lease{"another grant id": grant, "another owner": owner, "both": both} {
		_, err := e.Store.Commit(t.Context(), appending(forged, "forged"))
		fencedOut(t, "commit with the token and "+what, err, forged, run)
		fencedOut(t, "renewal with the token and "+what, renew(t, e.Store, forged, 2*TTL), forged, run)
		fencedOut(t, "release with the token and "+what, release(t, e.Store, forged), forged, run)
	}
	same(t, "forged fences", before, dump(t, e.Store, "run"))
	if after := e.Get(t, "run"); !after.ExpiresAt.Equal(run.ExpiresAt) {
		t.Errorf("a forged renewal moved the expiry from %v to %v", run.ExpiresAt, after.ExpiresAt)
	}
	letGo(t, e.Store, lease)
	forgedRelease := release(t, e.Store, grant)
	fencedOut(t, "repeated release with another grant id", forgedRelease, grant, e.Get(t, "run"))
	e.Create(t, "never")
	Refused(t, "commit on a run that was never leased", commitOnly(t, e.Store, runstore.Lease{
		Run: "never", Owner: "holder", Token: 1, Grant: lease.Grant}), runstore.ErrStoreBehind)
}

func commitOnly(t T, s runstore.RunStore, lease runstore.Lease) error {
	_, err := s.Commit(t.Context(), appending(lease, "forged"))
	return err
}

func fenceOfAnotherRun(t T, e *Env) {
	e.Create(t, "a")
	e.Create(t, "b")
	a, b := e.Acquire(t, e.Store, "a", "holder"), e.Acquire(t, e.Store, "b", "holder")
	before := dump(t, e.Store, "a") + dump(t, e.Store, "b")
	crossed := runstore.NewBatch("b", a.Fence())
	crossed.Append("test", []byte("crossed"))
	_, err := e.Store.Commit(t.Context(), crossed)
	var limit *runstore.LimitError
	if !errors.As(err, &limit) || !errors.Is(err, runstore.ErrInvalid) || limit.Field != "fence" {
		t.Errorf("a batch on b with the fence of a: got error %v, want ErrInvalid naming the fence", err)
	}
	// The same token and owner, said to be for the other run.
	moved := a
	moved.Run = "b"
	fencedOut(t, "the grant of a, on b", commitOnly(t, e.Store, moved), moved, e.Get(t, "b"))
	same(t, "the fence of another run", before, dump(t, e.Store, "a")+dump(t, e.Store, "b"))
	e.Append(t, e.Store, b, "the run's own fence works")
}

// fencedFirst gives a zombie a batch in which everything is out of date: it has
// to learn that it is a zombie, and not to read again and retry.
func fencedFirst(t T, e *Env) {
	e.Create(t, "run")
	old := e.Acquire(t, e.Store, "run", "old")
	b := appending(old, "one")
	b.Put("record", []byte("one"))
	applied(t, e.Store, "first", b)
	current := hold(t, e.Store, preempting("run", "new", "test"))
	b = appending(current, "two")
	b.Put("record", []byte("two"))
	status := runstore.Status(5)
	b.Status = &status
	applied(t, e.Store, "second", b)
	before, run := dump(t, e.Store, "run"), e.Get(t, "run")
	for what, guard := range map[string]runstore.Guard{
		"version": runstore.AtVersion("record", 1), "absence": runstore.AtVersion("record", 0),
		"seq": runstore.AtSeq(2), "status": runstore.InStatus(0),
	} {
		b := appending(old, "zombie")
		b.Require(guard)
		_, err := e.Store.Commit(t.Context(), b)
		fencedOut(t, "a stale fence with a stale "+what, err, old, run)
		alone := runstore.NewBatch("run", guard)
		alone.Append("test", []byte("stale"))
		_, err = e.Store.Commit(t.Context(), alone)
		Refused(t, "the stale "+what+" alone", err, runstore.ErrConflict)
	}
	same(t, "refused batches", before, dump(t, e.Store, "run"))
}

func allGuards(t T, e *Env) {
	e.Create(t, "run")
	lease := e.Acquire(t, e.Store, "run", "holder")
	b := appending(lease, "one")
	b.Put("record", []byte("one"))
	applied(t, e.Store, "first", b)
	before := dump(t, e.Store, "run")
	good := []runstore.Guard{runstore.AtVersion("record", 1), runstore.AtVersion("absent", 0), runstore.AtSeq(2), runstore.InStatus(7, 0)}
	bad := []runstore.Guard{runstore.AtVersion("other", 1), runstore.AtVersion("gone", 2), runstore.AtSeq(1), runstore.InStatus(7)}
	for i, guard := range bad {
		b := appending(lease, "conflict")
		for j, other := range good { // all hold but the one in its place
			if j != i {
				b.Require(other)
			}
		}
		b.Require(guard)
		_, err := e.Store.Commit(t.Context(), b)
		Refused(t, "the current fence with a guard that fails", err, runstore.ErrConflict)
	}
	same(t, "refused batches", before, dump(t, e.Store, "run"))
	b = appending(lease, "two")
	b.Require(good...)
	applied(t, e.Store, "a batch whose guards all hold", b)
}
