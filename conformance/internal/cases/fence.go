package cases

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/tapestore/tapestore/conformance/harness"
	"github.com/tapestore/tapestore/conformance/internal/kit"
	"github.com/tapestore/tapestore/runstore"
)

// Fences returns the cases that prove I3: a write that is not under the current grant is not
// applied.
func Fences() []harness.Case {
	return append([]harness.Case{
		{Guarantee: "I3", Name: "expired-holder-goes-on-while-nobody-took-over", Run: lateHolder, Doc: `
			A lease expires without a takeover. The holder still commits, renews, commits again, and releases a later
			expired grant; after the late renewal another acquire is ErrLeaseHeld. A store that ends a grant at its
			expiry refuses a holder that has no successor. Expiry is for progress; the token is for safety.`},
		{Guarantee: "I3", Name: "strict-lease-is-over-at-its-expiry", Run: strictIsOver, Doc: `
			A strict lease expires without a takeover. The holder's commit, renewal, release and purge, and where the
			store can, its commit over two runs and its import, are ErrLeaseExpired through every handle, and no run
			changes. The next grant is not strict, and after it the old commit is ErrFenced. A store that ignores the
			strict flag in one kind of write lets the holder write after the end that it asked for.`},
		{Guarantee: "I3", Name: "strict-lease-is-held-until-its-expiry", Run: strictUntilExpiry, Doc: `
			A holder of a strict lease commits before its expiry, renews, commits again after the first expiry and
			releases. All of it succeeds. A store that ends a strict lease early, or judges it by the expiry before
			the renewal, refuses a holder that is in time.`},
		{Guarantee: "I3", Name: "renewal-never-shortens-a-lease", Run: renewNeverShortens, Doc: `
			A holder renews for the shortest TTL while minutes are left: the expiry, the token and what the run shows
			stay as they were. A renewal for longer counts from the store clock and keeps the grant. A store that
			sets the expiry to now plus TTL lets a delayed heartbeat cut the lease, so that another process takes
			over early.`},
		{Guarantee: "I3", Name: "old-fence-of-the-same-owner-is-refused", Run: sameOwnerAgain, Doc: `
			An owner releases and acquires again under the same name (ABA), twice, and its first fence commits,
			renews and releases. Each call is ErrFenced and changes nothing; the current grant commits. (A release of
			the first grant before the next one is a repeat, and is left out.) A store that checks the owner's name
			alone accepts the old fence.`},
		{Guarantee: "I3", Name: "token-alone-is-no-fence", Run: forgedFence, Doc: `
			A caller presents the current token with another grant id, another owner, or both, and commits, renews
			and releases. Each call is ErrFenced, the run and its expiry stay, and a forged repeat of a release is
			ErrFenced too. On a run that was never leased, token 1 is ErrStoreBehind. A store that compares the token
			alone accepts a caller that guesses a small number.`},
		{Guarantee: "I3", Name: "fence-of-another-run-is-refused", Run: fenceOfAnotherRun, Doc: `
			A batch for run b carries the fence of run a: ErrInvalid, naming the fence. The same grant presented as
			one of run b, with b's token and owner, is ErrFenced. Neither run changes, and b's own fence commits. A
			store that looks a fence up without its run, or compares token and owner only, applies the batch.`},
		{Guarantee: "I3", Name: "fenced-comes-before-conflict", Run: fencedFirst, Doc: `
			A preempted holder commits a batch in which the fence is stale and a version, absence, seq or status
			guard is stale too. The answer is ErrFenced; the same guard without the fence is ErrConflict. Nothing
			changes. A store that judges guards first makes the old holder read again and retry for ever.`},
		{Guarantee: "I3", Name: "fence-does-not-replace-other-guards", Run: allGuards, Doc: `
			The holder commits under its current fence with one guard that fails among others that hold: version of a
			record, absence, seq, status; and with a failing guard alone, on the record that it changes and on
			another. Each batch is ErrConflict and leaves the run as it was; with guards that all hold the batch
			applies. A store that skips the guards when a fence is present loses updates.`},
		{Guarantee: "I3", Name: "release-in-a-batch-ends-the-grant", Run: batchReleases, Doc: `
			A holder's last batch also releases the lease. The run then has no holder and keeps token and expiry; a
			later commit and renewal under that grant are ErrFenced, a repeated release succeeds, and the next grant
			has the next token. A store that frees the lease but keeps honouring the fence lets the former holder
			write on.`},
		{Guarantee: "I3", Name: "revocation-ends-the-grant", Run: revocation, Doc: `
			An operator ends a grant by an unguarded releasing batch, through another handle. The holder's commit,
			renewal and release are ErrFenced from then on, the operator's event carries token 0, and the next grant
			has the next token. On an absent run the batch is ErrNotFound. A store whose unguarded release leaves the
			old fence valid fails.`},
		{Guarantee: "I3", Name: "guards-of-an-acquire-hold-or-nothing-happens", Run: guardedAcquire, Doc: `
			An acquire, with and without preempt, carries a status, version, absence or seq guard that fails: each is
			ErrConflict, burns no token and changes nothing. With guards that hold it is granted. A held lease is
			ErrLeaseHeld whatever the guards are. A store that grants without its guards drives a run that has ended
			meanwhile.`},
		{Guarantee: "I3", Name: "writes-carried-by-a-grant-are-made-under-its-token", Run: carriedWrites, Doc: `
			CreateRun, ReleaseLease and AcquireLease each carry two events, a record in a queue, and a status. Every
			event carries the token and owner of its own grant, versions count on, and status, queue entry and the
			record's event number are as asked. A store that stamps carried writes with the former grant, or drops
			one, fails.`},
		{Guarantee: "I3", Name: "preempt-tells-who-was-preempted-and-why", Run: preemptIsVisible, Doc: `
			Several holders preempt each other, and the run is read after each step. It names the preempted holder
			and the reason, through renewal and commit, until the release; a preempt of a free or expired lease, and
			an ordinary grant, name no holder. A store that does not keep the reason, or carries it over to later
			grants, misleads an operator.`},
		{Guarantee: "I3", Name: "refused-batch-is-not-remembered", Run: refusedIsForgotten, Doc: `
			An old holder's batch with an id is ErrFenced twice, and the current holder then commits a batch of that
			id. The current holder's batch applies and is no replay; the journal holds its event alone. A store that
			records the id of a refused batch answers the current holder with a result that never was.`},
	}, slices.Concat(zombieCases(), manyRunsCases())...)
}

func lateHolder(t harness.T, e *harness.Env) {
	e.Create(t, "run")
	lease := kit.MustAcquire(t, e.Store, kit.Acquiring("run", "late", e.ShortTTL()))
	kit.Expire(t, e)
	e.Append(t, e.Store, lease, "late commit")
	if run := e.Get(t, "run"); run.Holder.Owner != "late" || run.Live(e.Now(t)) {
		t.Errorf("holder %s, live %t; want late, still named, and not live", kit.HolderText(run.Holder), run.Live(e.Now(t)))
	}
	late := e.Reopen(t)
	from := earliestCommitTime(t, e, late)
	renewed, err := late.RenewLease(t.Context(), runstore.RenewRequest{Fence: lease.Fence(), TTL: harness.TTL})
	if err != nil {
		t.Fatalf("late renewal while nobody took over: %v", err)
	}
	checkBetween(t, "the expiry of a late renewal", renewed.ExpiresAt, from.Add(harness.TTL), e.Now(t).Add(harness.TTL))
	_, err = e.Store.AcquireLease(t.Context(), kit.Acquiring("run", "other", harness.TTL))
	kit.CheckLeaseHeld(t, "acquire after the late renewal", err, renewed.Lease, harness.TTL)
	e.Append(t, e.Store, lease, "after the renewal")

	second := kit.MustAcquire(t, e.Store, kit.Preempting("run", "late", "test"))
	kit.MustRelease(t, e.Store, second)
	third := kit.MustAcquire(t, e.Store, kit.Acquiring("run", "late", e.ShortTTL()))
	kit.Expire(t, e)
	kit.MustRelease(t, e.Store, third)
	if got, want := kit.JournalText(kit.Journal(t, e.Store, "run")), "late commit@1 after the renewal@1"; got != want {
		t.Errorf("the journal is %q, want %q", got, want)
	}
}

func strictIsOver(t harness.T, e *harness.Env) {
	e.Create(t, "run")
	lease := usedStrictly(t, e, "run")
	e.Advance(t, lease.TTL)
	before := kit.Dump(t, e.Store, "run", "queue")
	refused := func(what string, err error) {
		t.Helper()
		harness.Refused(t, what+" under an expired strict lease", err, runstore.ErrLeaseExpired)
		kit.CheckUnchanged(t, what+" under an expired strict lease", before, kit.Dump(t, e.Store, "run", "queue"))
	}
	_, err := e.Store.Commit(t.Context(), kit.Appending(lease, "late"))
	refused("commit", err)
	b := runstore.NewBatch("run", lease.Fence())
	b.Put("record", []byte("late"), runstore.Place{Index: "queue", At: runstore.After(0)})
	_, err = e.Reopen(t).Commit(t.Context(), b)
	refused("commit through another handle", err)
	refused("renewal", kit.Renew(t, e.Store, lease, harness.TTL))
	refused("release", kit.Release(t, e.Store, lease))
	purging := runstore.NewBatch("run", lease.Fence())
	purging.Purge = true
	_, err = e.Store.Commit(t.Context(), purging)
	refused("purge", err)
	if multi, ok := runstore.As[runstore.MultiCommitter](e.Store); ok {
		e.Create(t, "neighbour")
		neighbour := runstore.NewBatch("neighbour", runstore.Unguarded("test"))
		neighbour.Append("test", []byte("late"))
		_, err = multi.CommitMulti(t.Context(), []runstore.Batch{neighbour, kit.Appending(lease, "late")})
		refused("commit over two runs", err)
		kit.Equal(t, "journal of the neighbour", kit.JournalText(kit.Journal(t, e.Store, "neighbour")), "")
	}
	if mover, ok := runstore.As[runstore.Mover](e.Store); ok {
		late := runstore.Event{Seq: e.Get(t, "run").LastSeq + 1, Kind: "test", Time: time.Unix(1_700_000_000, 0)}
		_, err = mover.Import(t.Context(), runstore.Import{Fence: lease.Fence(), Events: []runstore.Event{late}})
		refused("import", err)
	}

	next := e.Acquire(t, e.Store, "run", "strict")
	if next.Token != lease.Token+1 {
		t.Errorf("the strict holder's next grant has token %v, want %v", next.Token, lease.Token+1)
	}
	if shown := e.Get(t, "run").Holder.Strict; next.Strict || shown {
		t.Errorf("the next grant, which did not ask for it, is strict: %t; the run shows %t", next.Strict, shown)
	}
	before = kit.Dump(t, e.Store, "run", "queue")
	_, err = e.Store.Commit(t.Context(), kit.Appending(lease, "later"))
	kit.CheckFenced(t, "commit under a strict lease that was taken over", err, lease, e.Get(t, "run"))
	kit.CheckUnchanged(t, "a refused commit", before, kit.Dump(t, e.Store, "run", "queue"))
}

// usedStrictly acquires a strict lease that expires soon and writes under it before the expiry. It
// retries with a longer TTL on an engine too busy for that.
func usedStrictly(t harness.T, e *harness.Env, id runstore.RunID) runstore.Lease {
	t.Helper()
	for req := kit.Acquiring(id, "strict", e.ShortTTL()); ; req.TTL *= 2 {
		req.Grant, req.Strict = runstore.NewGrantID(), true
		lease := kit.MustAcquire(t, e.Store, req)
		_, err := e.Store.Commit(t.Context(), kit.Appending(lease, "in time"))
		if err == nil {
			return lease
		}
		if !cameLate(t, e, lease, err) || req.TTL > harness.TTL {
			t.Fatalf("commit under a strict lease until %v: %v", lease.ExpiresAt, err)
		}
	}
}

// cameLate reports whether a strict lease ended before a write under it was done: the machine was
// too slow for the lease's TTL. The outcome may be unknown, as the lease may have ended while the
// request was on its way.
func cameLate(t harness.T, e *harness.Env, lease runstore.Lease, err error) bool {
	t.Helper()
	late := errors.Is(err, runstore.ErrLeaseExpired) || runstore.OutcomeOf(err) == runstore.Unknown
	return late && !e.Now(t).Before(lease.ExpiresAt)
}

func strictUntilExpiry(t harness.T, e *harness.Env) {
	var lease runstore.Lease
	ttl := e.ShortTTL()
	for ; ; ttl *= 2 { // a slow machine may miss the expiry: retry with twice the TTL
		id := runstore.RunID(fmt.Sprintf("run-%v", ttl)) // a renewal in doubt may hold the run before
		e.Create(t, id)
		req := kit.Acquiring(id, "strict", ttl)
		req.Strict = true
		lease = kit.MustAcquire(t, e.Store, req)
		e.Advance(t, ttl/2)
		_, err := e.Store.Commit(t.Context(), kit.Appending(lease, "in time"))
		if err == nil {
			err = kit.Renew(t, e.Store, lease, 4*harness.TTL)
		}
		if err == nil {
			break
		}
		if !cameLate(t, e, lease, err) {
			t.Fatalf("commit and renew in time: %v", err)
		}
	}
	e.Advance(t, ttl) // past the first expiry, before the second
	e.Append(t, e.Store, lease, "in renewed time")
	kit.MustRelease(t, e.Store, lease)
}

func renewNeverShortens(t harness.T, e *harness.Env) {
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
	longer, err := e.Store.RenewLease(t.Context(), runstore.RenewRequest{Fence: lease.Fence(), TTL: 2 * harness.TTL})
	if err != nil {
		t.Fatalf("renew: %v", err)
	}
	checkBetween(t, "the expiry of a longer renewal", longer.ExpiresAt, from.Add(2*harness.TTL), e.Now(t).Add(2*harness.TTL))
	if longer.TTL != 2*harness.TTL || longer.Owner != lease.Owner || longer.Reactor != lease.Reactor || longer.Grant != lease.Grant {
		t.Errorf("renewal of %+v for %v gave %+v", lease, 2*harness.TTL, longer)
	}
}

func sameOwnerAgain(t harness.T, e *harness.Env) {
	e.Create(t, "run")
	first := e.Acquire(t, e.Store, "run", "pod")
	kit.MustRelease(t, e.Store, first)
	refused := func(when string) {
		t.Helper()
		before, run := kit.Dump(t, e.Store, "run"), e.Get(t, "run")
		_, err := e.Store.Commit(t.Context(), kit.Appending(first, "zombie"))
		kit.CheckFenced(t, when+": commit", err, first, run)
		kit.CheckFenced(t, when+": renewal", kit.Renew(t, e.Store, first, harness.TTL), first, run)
		if run.Holder.Token != 0 { // before the next grant it is a repeated release
			kit.CheckFenced(t, when+": release", kit.Release(t, e.Store, first), first, run)
		}
		kit.CheckUnchanged(t, when+": the fence of the former grant", before, kit.Dump(t, e.Store, "run"))
	}
	refused("released")
	second := e.Acquire(t, e.Store, "run", "pod")
	refused("acquired again by the same owner")
	kit.MustRelease(t, e.Store, second)
	third := kit.MustAcquire(t, e.Reopen(t), kit.Acquiring("run", "pod", harness.TTL))
	refused("and again")
	e.Append(t, e.Store, third, "the current grant works")
}

func forgedFence(t harness.T, e *harness.Env) {
	e.Create(t, "run")
	lease := e.Acquire(t, e.Store, "run", "holder")
	before, run := kit.Dump(t, e.Store, "run"), e.Get(t, "run")
	grant, owner, both := lease, lease, lease
	grant.Grant = runstore.NewGrantID()
	owner.Owner = "somebody"
	both.Grant, both.Owner = grant.Grant, owner.Owner
	for what, forged := range map[string]runstore.Lease{"another grant id": grant, "another owner": owner, "both": both} {
		_, err := e.Store.Commit(t.Context(), kit.Appending(forged, "forged"))
		kit.CheckFenced(t, "commit with the token and "+what, err, forged, run)
		kit.CheckFenced(t, "renewal with the token and "+what, kit.Renew(t, e.Store, forged, 2*harness.TTL), forged, run)
		kit.CheckFenced(t, "release with the token and "+what, kit.Release(t, e.Store, forged), forged, run)
	}
	kit.CheckUnchanged(t, "forged fences", before, kit.Dump(t, e.Store, "run"))
	if after := e.Get(t, "run"); !after.ExpiresAt.Equal(run.ExpiresAt) {
		t.Errorf("a forged renewal moved the expiry from %v to %v", run.ExpiresAt, after.ExpiresAt)
	}
	kit.MustRelease(t, e.Store, lease)
	forgedRelease := kit.Release(t, e.Store, grant)
	kit.CheckFenced(t, "repeated release with another grant id", forgedRelease, grant, e.Get(t, "run"))
	e.Create(t, "never")
	harness.Refused(t, "commit on a run that was never leased", commitOnly(t, e.Store, runstore.Lease{
		Run: "never", Owner: "holder", Token: 1, Grant: lease.Grant}), runstore.ErrStoreBehind)
}

func commitOnly(t harness.T, s runstore.RunStore, lease runstore.Lease) error {
	_, err := s.Commit(t.Context(), kit.Appending(lease, "forged"))
	return err
}

func fenceOfAnotherRun(t harness.T, e *harness.Env) {
	e.Create(t, "a")
	e.Create(t, "b")
	a, b := e.Acquire(t, e.Store, "a", "holder"), e.Acquire(t, e.Store, "b", "holder")
	before := kit.Dump(t, e.Store, "a") + kit.Dump(t, e.Store, "b")
	crossed := runstore.NewBatch("b", a.Fence())
	crossed.Append("test", []byte("crossed"))
	_, err := e.Store.Commit(t.Context(), crossed)
	var limit *runstore.InputError
	if !errors.As(err, &limit) || !errors.Is(err, runstore.ErrInvalid) || limit.Field != "fence" {
		t.Errorf("a batch on b with the fence of a: got error %v, want ErrInvalid naming the fence", err)
	}
	// The same token and owner, in a fence of the other run.
	moved := a
	moved.Run = "b"
	kit.CheckFenced(t, "the grant of a, on b", commitOnly(t, e.Store, moved), moved, e.Get(t, "b"))
	kit.CheckUnchanged(t, "the fence of another run", before, kit.Dump(t, e.Store, "a")+kit.Dump(t, e.Store, "b"))
	e.Append(t, e.Store, b, "the run's own fence works")
}

func fencedFirst(t harness.T, e *harness.Env) {
	e.Create(t, "run")
	old := e.Acquire(t, e.Store, "run", "old")
	b := kit.Appending(old, "one")
	b.Put("record", []byte("one"))
	kit.MustApply(t, e.Store, "first", b)
	current := kit.MustAcquire(t, e.Store, kit.Preempting("run", "new", "test"))
	b = kit.Appending(current, "two")
	b.Put("record", []byte("two"))
	status := runstore.Status(5)
	b.Status = &status
	kit.MustApply(t, e.Store, "second", b)
	before, run := kit.Dump(t, e.Store, "run"), e.Get(t, "run")
	for what, guard := range map[string]runstore.Guard{
		"version": runstore.AtVersion("record", 1), "absence": runstore.AtVersion("record", 0),
		"seq": runstore.AtSeq(2), "status": runstore.InStatus(0),
	} {
		b := kit.Appending(old, "zombie")
		b.Require(guard)
		_, err := e.Store.Commit(t.Context(), b)
		kit.CheckFenced(t, "a stale fence with a stale "+what, err, old, run)
		alone := runstore.NewBatch("run", guard)
		alone.Append("test", []byte("stale"))
		_, err = e.Store.Commit(t.Context(), alone)
		harness.Refused(t, "the stale "+what+" alone", err, runstore.ErrConflict)
	}
	kit.CheckUnchanged(t, "refused batches", before, kit.Dump(t, e.Store, "run"))
}

func allGuards(t harness.T, e *harness.Env) {
	e.Create(t, "run")
	lease := e.Acquire(t, e.Store, "run", "holder")
	b := kit.Appending(lease, "one")
	b.Put("record", []byte("one"))
	kit.MustApply(t, e.Store, "first", b)
	before := kit.Dump(t, e.Store, "run")
	good := []runstore.Guard{runstore.AtVersion("record", 1), runstore.AtVersion("absent", 0), runstore.AtSeq(2), runstore.InStatus(7, 0)}
	bad := []runstore.Guard{runstore.AtVersion("other", 1), runstore.AtVersion("gone", 2), runstore.AtSeq(1), runstore.InStatus(7)}
	for i, guard := range bad {
		b := kit.Appending(lease, "conflict")
		for j, other := range good { // all guards hold except the one in this place
			if j != i {
				b.Require(other)
			}
		}
		b.Require(guard)
		_, err := e.Store.Commit(t.Context(), b)
		harness.Refused(t, "the current fence with a guard that fails", err, runstore.ErrConflict)
	}
	for _, version := range []runstore.Version{0, 2} { // of a record that exists at version 1
		for _, key := range []runstore.RecordKey{"new", "record"} {
			b := runstore.NewBatch("run", lease.Fence(), runstore.AtVersion("record", version))
			b.Append("conflict", nil)
			b.Put(key, nil)
			_, err := e.Store.Commit(t.Context(), b)
			harness.Refused(t, fmt.Sprintf("a record %q if another is at version %d", key, version), err, runstore.ErrConflict)
		}
	}
	kit.CheckUnchanged(t, "refused batches", before, kit.Dump(t, e.Store, "run"))
	b = kit.Appending(lease, "two")
	b.Require(good...)
	kit.MustApply(t, e.Store, "a batch whose guards all hold", b)
}
