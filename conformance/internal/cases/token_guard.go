package cases

import (
	"errors"
	"fmt"

	"github.com/tapestore/tapestore/conformance/harness"
	"github.com/tapestore/tapestore/conformance/internal/kit"
	"github.com/tapestore/tapestore/runstore"
)

// TokenGuards returns the cases that prove that the run's last token can guard a write, and that a
// lease can be acquired under its holder's fence.
func TokenGuards() []harness.Case {
	return []harness.Case{
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
			A caller commits, releases, purges and preempts with a token guard on a run that was never leased, is
			leased, is released, and is leased again. Every token but the last is ErrConflict, names the last, and
			changes nothing; the last one passes, held or not. An acquire that does not preempt stays ErrLeaseHeld. A
			store that ignores the guard, or judges it by a live grant only, fails.`},
		{Guarantee: "I3", Name: "a-token-guard-holds-in-a-commit-of-several-runs", Needs: []harness.Need{harness.NeedMulti}, Run: tokenGuardMulti, Doc: `
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
			A holder passes its live lease to a named successor by an acquire under its own fence. A handoff with a
			guard that fails is ErrConflict and changes nothing. The successor has the next token, the old holder is
			ErrFenced, a contender is ErrLeaseHeld, and the successor's own request and a repeated handoff return the
			same grant. A store that releases first lets a contender in between, or refuses the handoff because the
			lease is live.`},
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

// tokenConflict fails the case unless err is the conflict of a token guard and reports the run's
// last token, next seq and status.
func tokenConflict(t harness.T, what string, err error, run runstore.Run) {
	t.Helper()
	var conflict *runstore.ConflictError
	if !errors.As(err, &conflict) || !errors.Is(err, runstore.ErrConflict) {
		t.Errorf("%s: got error %v, want ErrConflict as *ConflictError", what, err)
		return
	}
	kit.Equal(t, what+": the conflict", *conflict, runstore.ConflictError{
		Guard: "token", Token: run.Token, NextSeq: run.LastSeq + 1, Status: run.Status,
	})
}

// atToken returns a batch that appends an event if token is the run's last token.
func atToken(id runstore.RunID, token runstore.Token, data string) runstore.Batch {
	b := runstore.NewBatch(id, runstore.AtToken(token))
	b.Append("test", []byte(data))
	return b
}

func preemptsAtOneToken(t harness.T, e *harness.Env) {
	const operators = 6
	e.Create(t, "run")
	handles := kit.OpenHandles(t, e, operators)
	for round := range e.Scaled(t, "rounds", 3, 8) {
		read := e.Get(t, "run").Token
		won := make(chan runstore.Lease, operators)
		lost := make(chan error, operators)
		kit.Contend(operators, func(i int) {
			req := kit.Preempting("run", runstore.Owner(fmt.Sprint("operator ", i)), "stuck")
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
		run := e.Get(t, "run")
		kit.Equal(t, fmt.Sprintf("round %d: the run's last token", round), run.Token, lease.Token)
		for err := range lost {
			tokenConflict(t, fmt.Sprintf("round %d: a preempt that lost", round), err, run)
		}
		events := kit.Journal(t, e.Store, "run")
		if last := events[len(events)-1]; len(events) != round+1 || string(last.Data) != string(lease.Owner) {
			t.Errorf("round %d: the journal is %s, want one event a round, the last one by %q", round, kit.JournalText(events), lease.Owner)
		}
	}
}

func tokenGuardBehind(t harness.T, e *harness.Env) {
	e.Create(t, "run")
	lease := e.Acquire(t, e.Store, "run", "owner")
	before := kit.Dump(t, e.Store, "run")
	beyond := lease.Token + 1
	_, err := e.Store.Commit(t.Context(), atToken("run", beyond, "from the future"))
	kit.CheckStoreBehind(t, "a batch at a token that was never granted", err, "token", int64(beyond), int64(lease.Token))
	req := kit.Preempting("run", "other", "test")
	req.Guards = []runstore.Guard{runstore.AtToken(beyond)}
	_, err = e.Store.AcquireLease(t.Context(), req)
	kit.CheckStoreBehind(t, "a request for the lease at a token that was never granted", err, "token", int64(beyond), int64(lease.Token))
	kit.CheckUnchanged(t, "refused writes", before, kit.Dump(t, e.Store, "run"))
}

func tokenGuard(t harness.T, e *harness.Env) {
	if _, err := e.Store.CreateRun(t.Context(), runstore.RunSpec{ID: "run", Status: 3}); err != nil {
		t.Fatalf("create: %v", err)
	}
	var last runstore.Token
	check := func(when string) {
		t.Helper()
		for wrong := range last + 1 {
			if wrong == last {
				continue
			}
			before, run := kit.Dump(t, e.Store, "run", "queue"), e.Get(t, "run")
			kit.Equal(t, when+": the run's last token", run.Token, last)
			b := atToken("run", wrong, "wrong")
			b.Put("record", []byte("wrong"), runstore.Place{Index: "queue", At: runstore.After(0)})
			release, purge := runstore.NewBatch("run", runstore.AtToken(wrong)), runstore.NewBatch("run", runstore.AtToken(wrong))
			release.Release, purge.Purge = true, true
			for what, b := range map[string]runstore.Batch{"batch": b, "releasing batch": release, "purge": purge} {
				_, err := e.Store.Commit(t.Context(), b)
				tokenConflict(t, fmt.Sprintf("%s: a %s at token %v", when, what, wrong), err, run)
			}
			req := kit.Preempting("run", "wrong", "test")
			req.Guards = []runstore.Guard{runstore.AtToken(wrong)}
			req.Writes.Append("test", []byte("wrong"))
			_, err := e.Store.AcquireLease(t.Context(), req)
			tokenConflict(t, fmt.Sprintf("%s: a preempt at token %v", when, wrong), err, run)
			kit.CheckUnchanged(t, when+": refused writes", before, kit.Dump(t, e.Store, "run", "queue"))
		}
		kit.MustApply(t, e.Store, fmt.Sprintf("%s: a batch at token %v", when, last), atToken("run", last, "right"))
		alone := runstore.NewBatch("run", runstore.AtToken(last))
		alone.Put("record", []byte("right"))
		kit.MustApply(t, e.Reopen(t), fmt.Sprintf("%s: a record at token %v, by another handle", when, last), alone)
	}
	check("never leased")
	lease := e.Acquire(t, e.Store, "run", "first")
	last = lease.Token
	check("leased")
	kit.MustRelease(t, e.Store, lease)
	check("released")
	req := kit.Acquiring("run", "second", harness.TTL)
	req.Guards = []runstore.Guard{runstore.AtToken(last)}
	lease = kit.MustAcquire(t, e.Store, req)
	last = lease.Token
	check("leased at the last token")
	b := kit.Appending(lease, "wrong")
	b.Require(runstore.AtToken(last - 1))
	_, err := e.Store.Commit(t.Context(), b)
	tokenConflict(t, "the current fence with the former token", err, e.Get(t, "run"))
	req = kit.Acquiring("run", "third", harness.TTL)
	req.Guards = []runstore.Guard{runstore.AtToken(last)}
	_, err = e.Store.AcquireLease(t.Context(), req)
	kit.CheckLeaseHeld(t, "an acquire at the last token that does not preempt", err, lease, harness.TTL)
}

func tokenGuardMulti(t harness.T, e *harness.Env) {
	multi := kit.Capability[runstore.MultiCommitter](e.Store)
	e.Create(t, "a")
	e.Create(t, "b")
	a, b := e.Acquire(t, e.Store, "a", "owner"), e.Acquire(t, e.Store, "b", "owner")
	kit.MustRelease(t, e.Store, b)
	b = e.Acquire(t, e.Store, "b", "owner")
	before := kit.Dump(t, e.Store, "a") + kit.Dump(t, e.Store, "b")
	_, err := multi.CommitMulti(t.Context(), []runstore.Batch{kit.Appending(a, "half"), atToken("b", b.Token-1, "half")})
	tokenConflict(t, "a commit of two runs, one at its former token", err, e.Get(t, "b"))
	kit.CheckUnchanged(t, "the refused commit", before, kit.Dump(t, e.Store, "a")+kit.Dump(t, e.Store, "b"))
	if _, err := multi.CommitMulti(t.Context(), []runstore.Batch{kit.Appending(a, "whole"), atToken("b", b.Token, "whole")}); err != nil {
		t.Errorf("a commit of two runs, one at its last token: %v", err)
	}
}

func fencedBeforeToken(t harness.T, e *harness.Env) {
	e.Create(t, "run")
	old := e.Acquire(t, e.Store, "run", "old")
	kit.MustAcquire(t, e.Store, kit.Preempting("run", "new", "test"))
	run := e.Get(t, "run")
	b := kit.Appending(old, "zombie")
	b.Require(runstore.AtToken(old.Token))
	_, err := e.Store.Commit(t.Context(), b)
	kit.CheckFenced(t, "a stale fence with its own stale token", err, old, run)
	b = kit.Appending(old, "zombie")
	b.Require(runstore.AtToken(run.Token))
	_, err = e.Store.Commit(t.Context(), b)
	kit.CheckFenced(t, "a stale fence with the current token", err, old, run)
}

func revocationAtToken(t harness.T, e *harness.Env) {
	e.Create(t, "run")
	read := e.Acquire(t, e.Store, "run", "stuck")
	revoke := runstore.NewBatch("run", runstore.AtToken(read.Token))
	revoke.Release = true
	later := kit.MustAcquire(t, e.Store, kit.Preempting("run", "later", "test"))
	_, err := e.Store.Commit(t.Context(), revoke)
	tokenConflict(t, "a revocation of the former grant", err, e.Get(t, "run"))
	e.Append(t, e.Store, later, "still held")
	revoke = runstore.NewBatch("run", runstore.AtToken(later.Token))
	revoke.Release = true
	kit.MustApply(t, e.Store, "a revocation of the current grant", revoke)
	_, err = e.Store.Commit(t.Context(), kit.Appending(later, "revoked"))
	kit.CheckFenced(t, "a commit under the revoked grant", err, later, e.Get(t, "run"))
	e.Acquire(t, e.Store, "run", "next")
}

// handingOff returns the request by which a holder passes its lease to a successor, under the
// successor's grant id.
func handingOff(lease runstore.Lease, to runstore.AcquireRequest) runstore.AcquireRequest {
	to.Guards = append(to.Guards, lease.Fence())
	return to
}

func handoff(t harness.T, e *harness.Env) {
	e.Create(t, "run")
	holder := e.Acquire(t, e.Store, "run", "holder")
	wanted := kit.Acquiring("run", "successor", harness.TTL)
	wanted.Reactor = "recovery"
	_, err := e.Reopen(t).AcquireLease(t.Context(), wanted)
	kit.CheckLeaseHeld(t, "the successor's request before the handoff", err, holder, harness.TTL)

	before := kit.Dump(t, e.Store, "run")
	for what, guard := range map[string]runstore.Guard{
		"version": runstore.AtVersion("record", 1), "seq": runstore.AtSeq(2),
		"status": runstore.InStatus(7), "token": runstore.AtToken(holder.Token - 1),
	} {
		req := handingOff(holder, kit.Acquiring("run", "successor", harness.TTL))
		req.Guards = append(req.Guards, guard)
		req.Writes.Append("handed off", []byte("refused"))
		_, err := e.Store.AcquireLease(t.Context(), req)
		harness.Refused(t, "a handoff whose "+what+" guard fails", err, runstore.ErrConflict)
	}
	kit.CheckUnchanged(t, "refused handoffs", before, kit.Dump(t, e.Store, "run"))

	handing := handingOff(holder, wanted)
	handing.Writes.Append("handed off", []byte("once"))
	granted := kit.MustAcquire(t, e.Store, handing)
	if granted.Token != holder.Token+1 || granted.Owner != "successor" || granted.Reactor != "recovery" {
		t.Errorf("the handoff granted token %v to %q/%q, want %v to successor/recovery", granted.Token, granted.Owner, granted.Reactor, holder.Token+1)
	}
	run := e.Get(t, "run")
	if run.Holder.Owner != "successor" || run.Holder.Preempted != (runstore.Preempted{}) {
		t.Errorf("the run shows %+v, want the successor as holder, and nobody preempted", run.Holder)
	}
	_, err = e.Store.Commit(t.Context(), kit.Appending(holder, "zombie"))
	kit.CheckFenced(t, "a commit by the holder after its handoff", err, holder, run)
	_, err = e.Reopen(t).AcquireLease(t.Context(), kit.Acquiring("run", "contender", harness.TTL))
	kit.CheckLeaseHeld(t, "a contender after the handoff", err, granted, harness.TTL)

	sameGrant(t, "the successor's own request", kit.MustAcquire(t, e.Reopen(t), wanted), granted)
	sameGrant(t, "the handoff, repeated", kit.MustAcquire(t, e.Store, handing), granted)
	e.Append(t, e.Store, granted, "continued")
	if got, want := kit.JournalText(kit.Journal(t, e.Store, "run")), fmt.Sprintf("once@%v continued@%v", granted.Token, granted.Token); got != want {
		t.Errorf("the journal is %s, want %s", got, want)
	}
}

func lateHandoff(t harness.T, e *harness.Env) {
	e.Create(t, "run")
	holder := e.Acquire(t, e.Store, "run", "holder")
	handing := handingOff(holder, kit.Acquiring("run", "successor", harness.TTL))
	granted := kit.MustAcquire(t, e.Store, handing)
	kit.MustRelease(t, e.Store, granted)
	before, run := kit.Dump(t, e.Store, "run"), e.Get(t, "run")
	_, err := e.Reopen(t).AcquireLease(t.Context(), handing)
	grantEnded(t, "a late copy of the handoff, the lease free", err, granted, run)
	kit.CheckUnchanged(t, "the late copy", before, kit.Dump(t, e.Store, "run"))
	third := e.Acquire(t, e.Store, "run", "third")
	before, run = kit.Dump(t, e.Store, "run"), e.Get(t, "run")
	_, err = e.Store.AcquireLease(t.Context(), handing)
	grantEnded(t, "a late copy of the handoff, the lease held", err, granted, run)
	kit.CheckUnchanged(t, "the late copy", before, kit.Dump(t, e.Store, "run"))
	e.Append(t, e.Store, third, "still held")
}

func zombieHandoff(t harness.T, e *harness.Env) {
	e.Create(t, "run")
	old := e.Acquire(t, e.Store, "run", "old")
	refused := func(when string) {
		t.Helper()
		before, run := kit.Dump(t, e.Store, "run"), e.Get(t, "run")
		handing := handingOff(old, kit.Acquiring("run", "successor", harness.TTL))
		handing.Writes.Append("handed off", []byte("zombie"))
		_, err := e.Store.AcquireLease(t.Context(), handing)
		kit.CheckFenced(t, "a handoff, "+when, err, old, run)
		kit.CheckUnchanged(t, "a handoff, "+when, before, kit.Dump(t, e.Store, "run"))
	}
	current := kit.MustAcquire(t, e.Store, kit.Preempting("run", "current", "test"))
	refused("preempted by another holder")
	kit.MustRelease(t, e.Store, current)
	refused("the lease free")
	e.Acquire(t, e.Store, "run", "old")
	refused("the lease held under the same owner's later grant")
}

func strictHandoff(t harness.T, e *harness.Env) {
	e.Create(t, "run")
	req := kit.Acquiring("run", "strict", e.ShortTTL())
	req.Strict = true
	lease := kit.MustAcquire(t, e.Store, req)
	kit.Expire(t, e)
	before := kit.Dump(t, e.Store, "run")
	_, err := e.Store.AcquireLease(t.Context(), handingOff(lease, kit.Acquiring("run", "successor", harness.TTL)))
	harness.Refused(t, "a handoff of a strict lease that is over", err, runstore.ErrLeaseExpired)
	kit.CheckUnchanged(t, "the refused handoff", before, kit.Dump(t, e.Store, "run"))
	e.Acquire(t, e.Store, "run", "successor")
}

func guardedRelease(t harness.T, e *harness.Env) {
	e.Create(t, "run")
	lease := e.Acquire(t, e.Store, "run", "holder")
	b := kit.Appending(lease, "one")
	b.Put("record", []byte("one"))
	kit.MustApply(t, e.Store, "first", b)
	before := kit.Dump(t, e.Store, "run")
	for what, guard := range map[string]runstore.Guard{
		"version": runstore.AtVersion("record", 2), "seq": runstore.AtSeq(1), "status": runstore.InStatus(7),
	} {
		req := runstore.ReleaseRequest{Fence: lease.Fence(), Guards: []runstore.Guard{guard}}
		req.Writes.Append("test", []byte("released"))
		_, err := e.Store.ReleaseLease(t.Context(), req)
		harness.Refused(t, "a release whose "+what+" guard fails", err, runstore.ErrConflict)
	}
	kit.CheckUnchanged(t, "refused releases", before, kit.Dump(t, e.Store, "run"))
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
	kit.Equal(t, "version of the record", kit.Record(t, e.Store, "run", "record").Version, runstore.Version(2))

	// A release without writes leaves no result: its repeat is recognized by the grant alone.
	lease = e.Acquire(t, e.Store, "run", "next")
	req = runstore.ReleaseRequest{Fence: lease.Fence(), Guards: []runstore.Guard{runstore.AtSeq(e.Get(t, "run").LastSeq + 1)}}
	if _, err := e.Store.ReleaseLease(t.Context(), req); err != nil {
		t.Fatalf("a release without writes whose guard holds: %v", err)
	}
	later := runstore.NewBatch("run", runstore.Unguarded("test"))
	later.Append("test", []byte("later"))
	kit.MustApply(t, e.Store, "an unfenced event after the release", later)
	if _, err := e.Reopen(t).ReleaseLease(t.Context(), req); err != nil {
		t.Errorf("the release without writes, repeated after its guard failed: %v", err)
	}
	e.Acquire(t, e.Store, "run", "last")
}
