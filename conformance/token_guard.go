package conformance

import (
	"errors"
	"fmt"

	"github.com/tapestore/tapestore/runstore"
)

// tokenGuardCases prove that the run's last token can guard a write, and that a lease can be
// acquired under its holder's fence.
func tokenGuardCases() []Case {
	return []Case{
		{Guarantee: "I1", Name: "of-several-preempts-at-one-token-one-is-granted", Run: preemptsAtOneToken, Doc: `
			Six operators read the same token and preempt at once, each guarded by that token. One preempt is
			granted, with the next token and one event; every other is ErrConflict and names the new token. A store
			that compares the guard with a head read before its atomic step lets each operator end the grant of the
			one before.`},
		{Guarantee: "I2", Name: "a-token-guard-beyond-the-known-means-store-behind", Run: tokenGuardBehind, Doc: `
			A caller commits, and preempts, with a guard on a token that the store has not granted yet. Both calls are
			ErrStoreBehind with the presented and the known token, and change nothing. A store that answers ErrConflict
			makes the caller read again and continue on a restored backup.`},
		{Guarantee: "I2", Name: "late-copy-of-a-handoff-grants-no-lease", Run: lateHandoff, Doc: `
			A holder hands its lease off, the successor releases it, and a copy of the handoff arrives: while the
			lease is free, and while a third process holds it. The copy is ErrFenced and changes nothing. A store
			that does not remember the successor's grant id gives the lease to a process that has left.`},
		{Guarantee: "I3", Name: "a-token-guard-holds-at-the-last-token-only", Run: tokenGuard, Doc: `
			A caller commits and preempts with a token guard on a run that was never leased, is leased, is released,
			and is leased again. Every token but the last is ErrConflict, names the last, and changes nothing; the
			last one passes, held or not. An acquire that does not preempt stays ErrLeaseHeld. A store that ignores
			the guard, or judges it by a live grant only, fails.`},
		{Guarantee: "I3", Name: "a-token-guard-holds-in-a-commit-of-several-runs", Needs: []Need{NeedMulti}, Run: tokenGuardMulti, Doc: `
			One CommitMulti carries a fenced batch for one run and a batch at a token for another. At the former
			token the call is ErrConflict and leaves both runs as they were; at the last token it applies. A store
			that checks fences but not token guards in a commit of several runs applies it.`},
		{Guarantee: "I3", Name: "fenced-comes-before-a-token-guard", Run: fencedBeforeToken, Doc: `
			The holder is preempted, and then commits under its old fence together with a token guard: its own old
			token, or the current one. Both commits are ErrFenced. A store that judges the guard first answers
			ErrConflict, so that the old holder reads again and retries instead of stopping.`},
		{Guarantee: "I3", Name: "a-revocation-at-a-token-ends-no-later-grant", Run: revocationAtToken, Doc: `
			An operator reads a lease, another holder preempts it, and the operator's releasing batch at the old
			token arrives. The batch is ErrConflict, and the later holder commits. A releasing batch at the current
			token ends the grant, whose commit is then ErrFenced. A store that ignores the guard of a releasing batch
			ends the wrong grant.`},
		{Guarantee: "I3", Name: "a-holder-hands-its-lease-off-without-a-gap", Run: handoff, Doc: `
			A holder passes its live lease to a named successor by an acquire under its own fence. The successor has
			the next token, the old holder is ErrFenced, a contender is ErrLeaseHeld, and the successor's own request
			and a repeated handoff return the same grant. A store that releases first lets a contender in between, or
			refuses the handoff because the lease is live.`},
		{Guarantee: "I3", Name: "a-former-holder-hands-nothing-off", Run: zombieHandoff, Doc: `
			An old holder hands off a lease that it lost: another holder has preempted it, the lease is free, or the
			same owner holds it under a later grant. Each handoff is ErrFenced and changes nothing. A store that
			accepts any fence the run once had, or compares the owner alone, passes another holder's lease on.`},
		{Guarantee: "I3", Name: "a-strict-lease-is-not-handed-off-after-its-expiry", Run: strictHandoff, Doc: `
			A strict lease expires, and its holder hands it off. The handoff is ErrLeaseExpired and changes nothing,
			and the successor acquires the lease in the ordinary way. A store that checks the grant but not the
			expiry in a handoff extends authority that the strict lease had given up.`},
		{Guarantee: "I3", Name: "guards-of-a-release-hold-or-nothing-happens", Run: guardedRelease, Doc: `
			A holder releases with a version, seq or status guard that fails: ErrConflict, the run does not change,
			and the lease is still held. With guards that hold the release applies; its repeat succeeds though the
			guards fail by then, with and without writes. A store that ignores the guards gives up a run that has
			changed since the holder looked.`},
	}
}

// tokenConflict fails the case unless err is the conflict of a token guard and names the last
// token.
func tokenConflict(t T, what string, err error, last runstore.Token) {
	t.Helper()
	var conflict *runstore.ConflictError
	if !errors.As(err, &conflict) || !errors.Is(err, runstore.ErrConflict) {
		t.Errorf("%s: got error %v, want ErrConflict as *ConflictError", what, err)
		return
	}
	if conflict.Guard != "token" || conflict.Token != last {
		t.Errorf("%s: guard %q, token %v in the error, want guard \"token\" and %v", what, conflict.Guard, conflict.Token, last)
	}
}

// atToken returns a batch that appends an event if token is the run's last token.
func atToken(id runstore.RunID, token runstore.Token, data string) runstore.Batch {
	b := runstore.NewBatch(id, runstore.AtToken(token))
	b.Append("test", []byte(data))
	return b
}

func preemptsAtOneToken(t T, e *Env) {
	const operators = 6
	e.Create(t, "run")
	handles := openHandles(t, e, operators)
	for round := range e.Scaled(t, "rounds", 3, 8) {
		read := e.Get(t, "run").Token
		won := make(chan runstore.Lease, operators)
		lost := make(chan error, operators)
		contend(operators, func(i int) {
			req := preempting("run", runstore.Owner(fmt.Sprint("operator ", i)), "stuck")
			req.Guards = []runstore.Guard{runstore.AtToken(read)}
			req.Writes.Append("taken", []byte(req.Owner))
			lease, err := handles[i].AcquireLease(t.Context(), req)
			if err != nil {
				lost <- err
				return
			}
			won <- lease.Lease
		})
		close(won)
		close(lost)
		if len(won) != 1 {
			t.Fatalf("round %d: %d preempts at token %v were granted, want 1", round, len(won), read)
		}
		lease := <-won
		if lease.Token != read+1 {
			t.Errorf("round %d: token %v was granted after %v, want %v", round, lease.Token, read, read+1)
		}
		for err := range lost {
			tokenConflict(t, fmt.Sprintf("round %d: a preempt that lost", round), err, lease.Token)
		}
		events := journal(t, e.Store, "run")
		if last := events[len(events)-1]; len(events) != round+1 || string(last.Data) != string(lease.Owner) {
			t.Errorf("round %d: the journal is %s, want one event a round, the last one by %q", round, journalText(events), lease.Owner)
		}
	}
}

func tokenGuardBehind(t T, e *Env) {
	e.Create(t, "run")
	lease := e.Acquire(t, e.Store, "run", "owner")
	before := dump(t, e.Store, "run")
	beyond := lease.Token + 1
	_, err := e.Store.Commit(t.Context(), atToken("run", beyond, "from the future"))
	checkStoreBehind(t, "a batch at a token that was never granted", err, "token", int64(beyond), int64(lease.Token))
	req := preempting("run", "other", "test")
	req.Guards = []runstore.Guard{runstore.AtToken(beyond)}
	_, err = e.Store.AcquireLease(t.Context(), req)
	checkStoreBehind(t, "a request for the lease at a token that was never granted", err, "token", int64(beyond), int64(lease.Token))
	checkUnchanged(t, "refused writes", before, dump(t, e.Store, "run"))
}

func tokenGuard(t T, e *Env) {
	e.Create(t, "run")
	var last runstore.Token
	check := func(when string) {
		t.Helper()
		for wrong := range last + 1 {
			if wrong == last {
				continue
			}
			before := dump(t, e.Store, "run", "queue")
			b := atToken("run", wrong, "wrong")
			b.Put("record", []byte("wrong"), runstore.Place{Index: "queue", At: runstore.After(0)})
			_, err := e.Store.Commit(t.Context(), b)
			tokenConflict(t, fmt.Sprintf("%s: a batch at token %v", when, wrong), err, last)
			req := preempting("run", "wrong", "test")
			req.Guards = []runstore.Guard{runstore.AtToken(wrong)}
			req.Writes.Append("test", []byte("wrong"))
			_, err = e.Store.AcquireLease(t.Context(), req)
			tokenConflict(t, fmt.Sprintf("%s: a preempt at token %v", when, wrong), err, last)
			checkUnchanged(t, when+": refused writes", before, dump(t, e.Store, "run", "queue"))
		}
		applied(t, e.Store, fmt.Sprintf("%s: a batch at token %v", when, last), atToken("run", last, "right"))
		alone := runstore.NewBatch("run", runstore.AtToken(last))
		alone.Put("record", []byte("right"))
		applied(t, e.Reopen(t), fmt.Sprintf("%s: a record at token %v, by another handle", when, last), alone)
	}
	check("never leased")
	lease := e.Acquire(t, e.Store, "run", "first")
	last = lease.Token
	check("leased")
	mustRelease(t, e.Store, lease)
	check("released")
	req := acquire("run", "second", TTL)
	req.Guards = []runstore.Guard{runstore.AtToken(last)}
	lease = mustAcquire(t, e.Store, req)
	last = lease.Token
	check("leased at the last token")
	b := appending(lease, "wrong")
	b.Require(runstore.AtToken(last - 1))
	_, err := e.Store.Commit(t.Context(), b)
	tokenConflict(t, "the current fence with the former token", err, last)
	req = acquire("run", "third", TTL)
	req.Guards = []runstore.Guard{runstore.AtToken(last)}
	_, err = e.Store.AcquireLease(t.Context(), req)
	checkLeaseHeld(t, "an acquire at the last token that does not preempt", err, lease, TTL)
}

func tokenGuardMulti(t T, e *Env) {
	multi := capability[runstore.MultiCommitter](e.Store)
	e.Create(t, "a")
	e.Create(t, "b")
	a, b := e.Acquire(t, e.Store, "a", "owner"), e.Acquire(t, e.Store, "b", "owner")
	mustRelease(t, e.Store, b)
	b = e.Acquire(t, e.Store, "b", "owner")
	before := dump(t, e.Store, "a") + dump(t, e.Store, "b")
	_, err := multi.CommitMulti(t.Context(), []runstore.Batch{appending(a, "half"), atToken("b", b.Token-1, "half")})
	tokenConflict(t, "a commit of two runs, one at its former token", err, b.Token)
	checkUnchanged(t, "the refused commit", before, dump(t, e.Store, "a")+dump(t, e.Store, "b"))
	if _, err := multi.CommitMulti(t.Context(), []runstore.Batch{appending(a, "whole"), atToken("b", b.Token, "whole")}); err != nil {
		t.Errorf("a commit of two runs, one at its last token: %v", err)
	}
}

func fencedBeforeToken(t T, e *Env) {
	e.Create(t, "run")
	old := e.Acquire(t, e.Store, "run", "old")
	mustAcquire(t, e.Store, preempting("run", "new", "test"))
	run := e.Get(t, "run")
	b := appending(old, "zombie")
	b.Require(runstore.AtToken(old.Token))
	_, err := e.Store.Commit(t.Context(), b)
	checkFenced(t, "a stale fence with its own stale token", err, old, run)
	b = appending(old, "zombie")
	b.Require(runstore.AtToken(run.Token))
	_, err = e.Store.Commit(t.Context(), b)
	checkFenced(t, "a stale fence with the current token", err, old, run)
}

func revocationAtToken(t T, e *Env) {
	e.Create(t, "run")
	read := e.Acquire(t, e.Store, "run", "stuck")
	revoke := runstore.NewBatch("run", runstore.AtToken(read.Token))
	revoke.Release = true
	later := mustAcquire(t, e.Store, preempting("run", "later", "test"))
	_, err := e.Store.Commit(t.Context(), revoke)
	tokenConflict(t, "a revocation of the former grant", err, later.Token)
	e.Append(t, e.Store, later, "still held")
	revoke = runstore.NewBatch("run", runstore.AtToken(later.Token))
	revoke.Release = true
	applied(t, e.Store, "a revocation of the current grant", revoke)
	_, err = e.Store.Commit(t.Context(), appending(later, "revoked"))
	checkFenced(t, "a commit under the revoked grant", err, later, e.Get(t, "run"))
	e.Acquire(t, e.Store, "run", "next")
}

// handingOff returns the request by which a holder passes its lease to a successor, under the
// successor's grant id.
func handingOff(lease runstore.Lease, to runstore.AcquireRequest) runstore.AcquireRequest {
	to.Guards = append(to.Guards, lease.Fence())
	return to
}

func handoff(t T, e *Env) {
	e.Create(t, "run")
	holder := e.Acquire(t, e.Store, "run", "holder")
	wanted := acquire("run", "successor", TTL)
	wanted.Reactor = "recovery"
	_, err := e.Reopen(t).AcquireLease(t.Context(), wanted)
	checkLeaseHeld(t, "the successor's request before the handoff", err, holder, TTL)

	handing := handingOff(holder, wanted)
	handing.Writes.Append("handed off", []byte("once"))
	granted := mustAcquire(t, e.Store, handing)
	if granted.Token != holder.Token+1 || granted.Owner != "successor" || granted.Reactor != "recovery" {
		t.Errorf("the handoff granted token %v to %q/%q, want %v to successor/recovery", granted.Token, granted.Owner, granted.Reactor, holder.Token+1)
	}
	run := e.Get(t, "run")
	if run.Holder.Owner != "successor" || run.Holder.Preempted != (runstore.Preempted{}) {
		t.Errorf("the run shows %+v, want the successor as holder, and nobody preempted", run.Holder)
	}
	_, err = e.Store.Commit(t.Context(), appending(holder, "zombie"))
	checkFenced(t, "a commit by the holder after its handoff", err, holder, run)
	_, err = e.Reopen(t).AcquireLease(t.Context(), acquire("run", "contender", TTL))
	checkLeaseHeld(t, "a contender after the handoff", err, granted, TTL)

	sameGrant(t, "the successor's own request", mustAcquire(t, e.Reopen(t), wanted), granted)
	sameGrant(t, "the handoff, repeated", mustAcquire(t, e.Store, handing), granted)
	e.Append(t, e.Store, granted, "continued")
	if got, want := journalText(journal(t, e.Store, "run")), fmt.Sprintf("once@%v continued@%v", granted.Token, granted.Token); got != want {
		t.Errorf("the journal is %s, want %s", got, want)
	}
}

func lateHandoff(t T, e *Env) {
	e.Create(t, "run")
	holder := e.Acquire(t, e.Store, "run", "holder")
	handing := handingOff(holder, acquire("run", "successor", TTL))
	granted := mustAcquire(t, e.Store, handing)
	mustRelease(t, e.Store, granted)
	before, run := dump(t, e.Store, "run"), e.Get(t, "run")
	_, err := e.Reopen(t).AcquireLease(t.Context(), handing)
	grantEnded(t, "a late copy of the handoff, the lease free", err, granted, run)
	checkUnchanged(t, "the late copy", before, dump(t, e.Store, "run"))
	third := e.Acquire(t, e.Store, "run", "third")
	before, run = dump(t, e.Store, "run"), e.Get(t, "run")
	_, err = e.Store.AcquireLease(t.Context(), handing)
	grantEnded(t, "a late copy of the handoff, the lease held", err, granted, run)
	checkUnchanged(t, "the late copy", before, dump(t, e.Store, "run"))
	e.Append(t, e.Store, third, "still held")
}

func zombieHandoff(t T, e *Env) {
	e.Create(t, "run")
	old := e.Acquire(t, e.Store, "run", "old")
	refused := func(when string) {
		t.Helper()
		before, run := dump(t, e.Store, "run"), e.Get(t, "run")
		handing := handingOff(old, acquire("run", "successor", TTL))
		handing.Writes.Append("handed off", []byte("zombie"))
		_, err := e.Store.AcquireLease(t.Context(), handing)
		checkFenced(t, "a handoff, "+when, err, old, run)
		checkUnchanged(t, "a handoff, "+when, before, dump(t, e.Store, "run"))
	}
	current := mustAcquire(t, e.Store, preempting("run", "current", "test"))
	refused("preempted by another holder")
	mustRelease(t, e.Store, current)
	refused("the lease free")
	e.Acquire(t, e.Store, "run", "old")
	refused("the lease held under the same owner's later grant")
}

func strictHandoff(t T, e *Env) {
	e.Create(t, "run")
	req := acquire("run", "strict", e.ShortTTL())
	req.Strict = true
	lease := mustAcquire(t, e.Store, req)
	expire(t, e)
	before := dump(t, e.Store, "run")
	_, err := e.Store.AcquireLease(t.Context(), handingOff(lease, acquire("run", "successor", TTL)))
	Refused(t, "a handoff of a strict lease that is over", err, runstore.ErrLeaseExpired)
	checkUnchanged(t, "the refused handoff", before, dump(t, e.Store, "run"))
	e.Acquire(t, e.Store, "run", "successor")
}

func guardedRelease(t T, e *Env) {
	e.Create(t, "run")
	lease := e.Acquire(t, e.Store, "run", "holder")
	b := appending(lease, "one")
	b.Put("record", []byte("one"))
	applied(t, e.Store, "first", b)
	before := dump(t, e.Store, "run")
	for what, guard := range map[string]runstore.Guard{
		"version": runstore.AtVersion("record", 2), "seq": runstore.AtSeq(1), "status": runstore.InStatus(7),
	} {
		req := runstore.ReleaseRequest{Fence: lease.Fence(), Guards: []runstore.Guard{guard}}
		req.Writes.Append("test", []byte("released"))
		_, err := e.Store.ReleaseLease(t.Context(), req)
		Refused(t, "a release whose "+what+" guard fails", err, runstore.ErrConflict)
	}
	checkUnchanged(t, "refused releases", before, dump(t, e.Store, "run"))
	e.Append(t, e.Store, lease, "still held")
	req := runstore.ReleaseRequest{Fence: lease.Fence(), Guards: []runstore.Guard{
		runstore.AtVersion("record", 1), runstore.AtSeq(3), runstore.InStatus(0), runstore.AtToken(lease.Token),
	}}
	req.Writes.Put("record", []byte("two"))
	if _, err := e.Store.ReleaseLease(t.Context(), req); err != nil {
		t.Fatalf("a release whose guards hold: %v", err)
	}
	// The guards fail by now, but the release was applied.
	if _, err := e.Store.ReleaseLease(t.Context(), req); err != nil {
		t.Errorf("the release, repeated: %v", err)
	}
	equal(t, "version of the record", record(t, e.Store, "run", "record").Version, runstore.Version(2))

	// A release without writes leaves no result: its repeat is recognized by the grant alone.
	lease = e.Acquire(t, e.Store, "run", "next")
	req = runstore.ReleaseRequest{Fence: lease.Fence(), Guards: []runstore.Guard{runstore.AtSeq(e.Get(t, "run").LastSeq + 1)}}
	if _, err := e.Store.ReleaseLease(t.Context(), req); err != nil {
		t.Fatalf("a release without writes whose guard holds: %v", err)
	}
	later := runstore.NewBatch("run", runstore.Unguarded("test"))
	later.Append("test", []byte("later"))
	applied(t, e.Store, "an unfenced event after the release", later)
	if _, err := e.Reopen(t).ReleaseLease(t.Context(), req); err != nil {
		t.Errorf("the release without writes, repeated after its guard failed: %v", err)
	}
	e.Acquire(t, e.Store, "run", "last")
}
