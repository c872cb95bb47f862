package cases

import (
	"errors"
	"fmt"
	"time"

	"github.com/tapestore/tapestore/conformance/harness"
	"github.com/tapestore/tapestore/conformance/internal/kit"
	"github.com/tapestore/tapestore/runstore"
)

// Exclusive returns the cases that prove I1: at most one live grant.
func Exclusive() []harness.Case {
	return []harness.Case{
		{Guarantee: "I1", Name: "one-winner-per-round-of-an-acquire-race", Run: acquireRace, Doc: `
			Eight handles ask for one free lease at the same moment, round after round. One handle wins; every other
			gets ErrLeaseHeld, which names the winner and the time that is left. The token grows by one a round, and
			only the winner's event is in the journal. A store that checks that the lease is free in one step and
			grants it in another fails.`},
		{Guarantee: "I1", Name: "one-winner-in-a-race-for-an-expired-lease", Run: takeoverRace, Doc: `
			A lease expires under its holder, and eight handles ask for it at the same moment. One handle takes over,
			under the next token; every other gets ErrLeaseHeld, and a late renewal by the old holder is ErrFenced. A
			store that judges the expiry in one step and replaces the grant in another lets two handles take over.`},
		{Guarantee: "I1", Name: "one-winner-in-a-race-to-create-with-a-lease", Run: createRace, Doc: `
			Eight handles create the same run at the same moment, each with a lease and an event of its own. One
			handle creates all three. Every other call returns without an error and without a lease, and shows the
			winner as the holder. A store that inserts the run and grants the lease in two steps, or that hands a
			loser the winner's lease, fails.`},
		{Guarantee: "I1", Name: "preempts-in-a-race-get-a-token-each-and-the-last-is-current", Run: preemptRace, Doc: `
			Eight handles preempt one live lease at the same moment. Each gets a token of its own, the tokens are
			consecutive, and the run names the holder of the highest one. A commit under any lower token is ErrFenced
			and leaves the run as it was. A store that computes the next token from an old read gives two holders the
			same token.`},
		{Guarantee: "I1", Name: "late-renewal-and-takeover-do-not-both-win", Run: renewalRace, Doc: `
			A lease expires, and its holder renews while four other handles try to take over. Exactly one of the five
			calls succeeds: a late renewal that loses is ErrFenced, a takeover that loses is ErrLeaseHeld. A store
			whose renewal updates the expiry without checking the grant in the same step returns success to two
			processes.`},
		{Guarantee: "I1", Name: "expired-lease-is-taken-over", Run: expiredIsTaken, Doc: `
			A lease expires without a release, and another handle acquires it. The new grant has the next token, the
			old holder's acquire is ErrLeaseHeld, and the run shows the new holder and no preempted one. A store that
			never frees an expired lease, or that records a takeover as a preempt, fails.`},
		{Guarantee: "I1", Name: "live-lease-is-not-taken-over", Run: liveIsNotTaken, Doc: `
			Another handle asks for a lease that is live, at once and again after part of the TTL. Each time it gets
			ErrLeaseHeld with the holder and the true remaining time, and the run does not change; the holder then
			commits. A store that grants a live lease, writes the events of a refused acquire, or miscounts the
			remaining time fails.`},
		{Guarantee: "I1", Name: "renewed-lease-is-not-taken-at-its-old-expiry", Run: renewedIsNotTaken, Doc: `
			A holder renews its lease for four times the standard TTL, and the first expiry passes. An acquire by
			another handle is still ErrLeaseHeld, and the fence that the holder got before the renewal still commits.
			A store that returns a later expiry from RenewLease without storing it lets the other handle in.`},
		{Guarantee: "I1", Name: "owner-name-is-no-authority-over-a-live-lease", Run: sameOwnerIsRefused, Doc: `
			A second process acquires a live lease under the holder's own owner name, with a new grant id and with
			none, through the same handle and through another. Each attempt is ErrLeaseHeld. A store that compares
			owner names gives a restarted pod the lease of its predecessor, which may still run.`},
		{Guarantee: "I1", Name: "released-lease-is-free-at-once", Run: releasedIsFree, Doc: `
			A holder releases its lease, and another handle acquires it without waiting. In between the run shows no
			holder and keeps its token; the new grant has the next one. A store that keeps a released lease until its
			expiry, or that resets the token with the release, fails.`},
		{Guarantee: "I1", Name: "run-shows-its-holder", Run: runShowsHolder, Doc: `
			A handle acquires a lease, first an ordinary and then a strict one, and another handle reads the run. The
			run shows owner, reactor, token, strictness and expiry exactly as AcquireLease returned them, and is live
			until that expiry. After a release it shows the expiry alone. A new run shows none of them; one that is created with a strict lease and a bound on
			stalling shows both. A store that leaves a field of the holder out, shows another expiry, or drops
			the expiry at the release, fails.`},
	}
}

func acquireRace(t harness.T, e *harness.Env) {
	const contenders = 8
	rounds := e.Scaled(t, "rounds", 4, 10)
	e.Create(t, "run")
	handles := kit.OpenHandles(t, e, contenders)
	var last runstore.Token
	for round := range rounds {
		lease := oneWinner(t, e, fmt.Sprintf("round %d", round), handles)
		if lease.Token != last+1 {
			t.Errorf("round %d: token %v follows %v, want %v", round, lease.Token, last, last+1)
		}
		last = lease.Token
		kit.MustRelease(t, e.Store, lease)
	}
}

// oneWinner races handles for the lease of the run called run. It fails the case unless one handle
// wins and every refusal names the winner.
func oneWinner(t harness.T, e *harness.Env, what string, handles []runstore.RunStore) runstore.Lease {
	t.Helper()
	won := make(chan runstore.Lease, len(handles))
	lost := make(chan error, len(handles))
	kit.Contend(len(handles), func(i int) {
		req := kit.Acquiring("run", runstore.Owner(fmt.Sprintf("contender-%d", i)), harness.TTL)
		req.Writes.Append("granted", []byte(req.Owner))
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
		t.Fatalf("%s: %d winners, want 1", what, len(won))
	}
	lease := <-won
	for err := range lost {
		kit.CheckLeaseHeld(t, what+": a loser", err, lease, harness.TTL)
	}
	if run := e.Get(t, "run"); run.Holder.Owner != lease.Owner || run.Token != lease.Token {
		t.Errorf("%s: the run is held by %s, want %q under token %v", what, kit.HolderText(run.Holder), lease.Owner, lease.Token)
	}
	events := kit.Journal(t, e.Store, "run")
	if last := events[len(events)-1]; string(last.Data) != string(lease.Owner) || last.Token != lease.Token {
		t.Errorf("%s: the last event is %q under token %v, want the winner's: %q under %v",
			what, last.Data, last.Token, lease.Owner, lease.Token)
	}
	for i := 1; i < len(events); i++ {
		if events[i].Token != events[i-1].Token+1 {
			t.Errorf("%s: a loser wrote: the journal is %s", what, kit.JournalText(events))
			break
		}
	}
	return lease
}

func takeoverRace(t harness.T, e *harness.Env) {
	const contenders, rounds = 8, 3
	e.Create(t, "run")
	handles := kit.OpenHandles(t, e, contenders)
	for round := range rounds {
		req := kit.Acquiring("run", "sleeper", e.ShortTTL())
		req.Writes.Append("granted", []byte("sleeper"))
		old := kit.MustAcquire(t, e.Store, req)
		kit.Expire(t, e)
		lease := oneWinner(t, e, fmt.Sprintf("round %d", round), handles)
		if lease.Token != old.Token+1 {
			t.Errorf("round %d: token %v took over from %v, want %v", round, lease.Token, old.Token, old.Token+1)
		}
		kit.CheckFenced(t, "renewal by the sleeper", kit.Renew(t, e.Store, old, harness.TTL), old, e.Get(t, "run"))
		kit.MustRelease(t, e.Store, lease)
	}
}

func createRace(t harness.T, e *harness.Env) {
	const contenders = 8
	rounds := e.Scaled(t, "rounds", 3, 5)
	handles := kit.OpenHandles(t, e, contenders)
	for round := range rounds {
		id := runstore.RunID(fmt.Sprintf("run-%d", round))
		results := make([]runstore.Created, contenders)
		kit.Contend(contenders, func(i int) {
			owner := runstore.Owner(fmt.Sprintf("contender-%d", i))
			spec := kit.WithLease(id, owner)
			spec.Writes.Append("begun", []byte(owner))
			var err error
			if results[i], err = handles[i].CreateRun(t.Context(), spec); err != nil {
				t.Errorf("round %d: create by %q: %v", round, owner, err)
			}
		})
		var won []runstore.Lease
		for _, r := range results {
			if r.New {
				won = append(won, r.Lease)
			}
		}
		if len(won) != 1 {
			t.Fatalf("round %d: %d contenders created the run, want 1", round, len(won))
		}
		lease := won[0]
		if lease.Token != 1 || lease.Run != id {
			t.Errorf("round %d: the lease is on %q under token %v, want %q and 1", round, lease.Run, lease.Token, id)
		}
		for i, r := range results {
			if !r.New && r.Lease != (runstore.Lease{}) {
				t.Errorf("round %d: loser %d got a lease under token %v, want none", round, i, r.Lease.Token)
			}
			if r.Run.Holder.Owner != lease.Owner || r.Run.Token != 1 {
				t.Errorf("round %d: contender %d was shown the holder %s, want %q", round, i, kit.HolderText(r.Run.Holder), lease.Owner)
			}
		}
		if got, want := kit.JournalText(kit.Journal(t, e.Store, id)), string(lease.Owner)+"@1"; got != want {
			t.Errorf("round %d: the journal is %q, want %q", round, got, want)
		}
		e.Append(t, e.Store, lease, "the winner's lease works")
	}
}

func preemptRace(t harness.T, e *harness.Env) {
	const contenders = 8
	e.Create(t, "run")
	first := e.Acquire(t, e.Store, "run", "first")
	handles := kit.OpenHandles(t, e, contenders)
	leases := make([]runstore.Granted, contenders)
	kit.Contend(contenders, func(i int) {
		var err error
		req := kit.Preempting("run", runstore.Owner(fmt.Sprintf("contender-%d", i)), "race")
		if leases[i], err = handles[i].AcquireLease(t.Context(), req); err != nil {
			t.Errorf("preempt by %q: %v", req.Owner, err)
		}
	})
	if t.Failed() {
		return
	}
	byToken := map[runstore.Token]runstore.Lease{first.Token: first}
	for _, l := range leases {
		if other, dup := byToken[l.Token]; dup {
			t.Errorf("%q and %q both hold token %v", other.Owner, l.Owner, l.Token)
		}
		byToken[l.Token] = l.Lease
	}
	run := e.Get(t, "run")
	last, ok := byToken[first.Token+contenders]
	if !ok || run.Token != last.Token || run.Holder.Owner != last.Owner {
		t.Fatalf("after %d preempts from token %v the run is held by %s; the tokens granted are %v",
			contenders, first.Token, kit.HolderText(run.Holder), byToken)
	}
	before := kit.Dump(t, e.Store, "run")
	for token, l := range byToken {
		if token == last.Token {
			continue
		}
		_, err := e.Store.Commit(t.Context(), kit.Appending(l, "preempted"))
		kit.CheckFenced(t, fmt.Sprintf("commit under token %v", token), err, l, run)
	}
	kit.CheckUnchanged(t, "commits of preempted holders", before, kit.Dump(t, e.Store, "run"))
	e.Append(t, e.Store, last, "the last preempt's lease works")
}

func renewalRace(t harness.T, e *harness.Env) {
	const contenders, rounds = 4, 4
	handles := kit.OpenHandles(t, e, contenders)
	for round := range rounds {
		id := runstore.RunID(fmt.Sprintf("run-%d", round))
		e.Create(t, id)
		old := kit.MustAcquire(t, e.Store, kit.Acquiring(id, "late", e.ShortTTL()))
		kit.Expire(t, e)
		var renewal error
		takeovers := make([]error, contenders)
		kit.Contend(contenders+1, func(i int) {
			if i == contenders {
				renewal = kit.Renew(t, e.Store, old, harness.TTL)
				return
			}
			_, takeovers[i] = handles[i].AcquireLease(t.Context(), kit.Acquiring(id, "contender", harness.TTL))
		})
		winners := 0
		if renewal == nil {
			winners++
		} else {
			harness.Refused(t, fmt.Sprintf("round %d: late renewal", round), renewal, runstore.ErrFenced)
		}
		for _, err := range takeovers {
			if err == nil {
				winners++
			} else {
				harness.Refused(t, fmt.Sprintf("round %d: takeover", round), err, runstore.ErrLeaseHeld)
			}
		}
		if winners != 1 {
			t.Errorf("round %d: %d of the renewal and the takeovers won, want 1", round, winners)
		}
		if run := e.Get(t, id); (run.Token == old.Token) != (renewal == nil) {
			t.Errorf("round %d: renewal got %v, and the run is under token %v (it was %v)", round, renewal, run.Token, old.Token)
		}
	}
}

func expiredIsTaken(t harness.T, e *harness.Env) {
	e.Create(t, "run")
	old := kit.MustAcquire(t, e.Store, kit.Acquiring("run", "old", e.ShortTTL()))
	kit.Expire(t, e)
	taken := kit.MustAcquire(t, e.Reopen(t), kit.Acquiring("run", "new", harness.TTL))
	if taken.Token != old.Token+1 || taken.Owner != "new" {
		t.Errorf("takeover got token %v for %q, want %v for new", taken.Token, taken.Owner, old.Token+1)
	}
	_, err := e.Store.AcquireLease(t.Context(), kit.Acquiring("run", "old", harness.TTL))
	kit.CheckLeaseHeld(t, "acquire by the old holder", err, taken, harness.TTL)
	run := e.Get(t, "run")
	if run.Holder.Owner != "new" || run.Holder.Preempted != (runstore.Preempted{}) {
		t.Errorf("after a takeover the holder is %s, preempted %+v; want new, nobody preempted", kit.HolderText(run.Holder), run.Holder.Preempted)
	}
}

func liveIsNotTaken(t harness.T, e *harness.Env) {
	e.Create(t, "run")
	lease := e.Acquire(t, e.Store, "run", "holder")
	other := e.Reopen(t)
	for range 2 {
		before := kit.Dump(t, e.Store, "run")
		from := earliestCommitTime(t, e, other)
		req := kit.Acquiring("run", "thief", harness.TTL)
		req.Writes.Append("stolen", nil)
		_, err := other.AcquireLease(t.Context(), req)
		to := e.Now(t)
		kit.CheckLeaseHeld(t, "acquire of a live lease", err, lease, harness.TTL)
		var held *runstore.LeaseHeldError
		if errors.As(err, &held) {
			most, least := lease.ExpiresAt.Sub(from)+clockSlack, lease.ExpiresAt.Sub(to)-clockSlack
			if held.Remaining > most || held.Remaining < least {
				t.Errorf("%v remaining in the error, want between %v and %v", held.Remaining, least, most)
			}
		}
		kit.CheckUnchanged(t, "a refused acquire", before, kit.Dump(t, e.Store, "run"))
		e.Advance(t, e.ShortTTL()/2) // again when half of the TTL has passed
	}
	e.Append(t, e.Store, lease, "still held")
}

func renewedIsNotTaken(t harness.T, e *harness.Env) {
	e.Create(t, "run")
	lease := kit.MustAcquire(t, e.Store, kit.Acquiring("run", "holder", e.ShortTTL()))
	renewed, err := e.Store.RenewLease(t.Context(), runstore.RenewRequest{Fence: lease.Fence(), TTL: 4 * harness.TTL})
	if err != nil {
		t.Fatalf("renew: %v", err)
	}
	if renewed.Token != lease.Token || renewed.Grant != lease.Grant || !renewed.ExpiresAt.After(lease.ExpiresAt) {
		t.Errorf("renewal of token %v until %v gave token %v until %v; want the same grant for longer",
			lease.Token, lease.ExpiresAt, renewed.Token, renewed.ExpiresAt)
	}
	kit.Expire(t, e)
	before := kit.Dump(t, e.Store, "run")
	_, err = e.Reopen(t).AcquireLease(t.Context(), kit.Acquiring("run", "thief", harness.TTL))
	kit.CheckLeaseHeld(t, "acquire at the old expiry", err, renewed.Lease, 4*harness.TTL)
	kit.CheckUnchanged(t, "a refused acquire", before, kit.Dump(t, e.Store, "run"))
	e.Append(t, e.Store, lease, "the fence of before the renewal works")
}

func sameOwnerIsRefused(t harness.T, e *harness.Env) {
	e.Create(t, "run")
	lease := e.Acquire(t, e.Store, "run", "pod")
	before := kit.Dump(t, e.Store, "run")
	for _, s := range []runstore.RunStore{e.Store, e.Reopen(t)} {
		_, err := s.AcquireLease(t.Context(), kit.Acquiring("run", "pod", harness.TTL))
		kit.CheckLeaseHeld(t, "acquire by another process of the same name", err, lease, harness.TTL)
		unnamed := kit.Acquiring("run", "pod", harness.TTL)
		unnamed.Grant = ""
		_, err = s.AcquireLease(t.Context(), unnamed)
		kit.CheckLeaseHeld(t, "acquire by the same name without a grant id", err, lease, harness.TTL)
	}
	kit.CheckUnchanged(t, "a refused acquire", before, kit.Dump(t, e.Store, "run"))
}

func releasedIsFree(t harness.T, e *harness.Env) {
	e.Create(t, "run")
	lease := e.Acquire(t, e.Store, "run", "first")
	kit.MustRelease(t, e.Store, lease)
	run := e.Get(t, "run")
	if run.Holder != (runstore.Holder{}) || run.Token != lease.Token {
		t.Errorf("after the release: holder %s, token %v; want no holder, token %v", kit.HolderText(run.Holder), run.Token, lease.Token)
	}
	next := e.Acquire(t, e.Reopen(t), "run", "second")
	if next.Token != lease.Token+1 {
		t.Errorf("the next token is %v, want %v", next.Token, lease.Token+1)
	}
}

func runShowsHolder(t harness.T, e *harness.Env) {
	if run := e.Create(t, "run"); run.Holder != (runstore.Holder{}) || run.Token != 0 || !run.ExpiresAt.IsZero() {
		t.Errorf("a new run shows holder %s, token %v, expiry %v; want none", kit.HolderText(run.Holder), run.Token, run.ExpiresAt)
	}
	reader := e.Reopen(t)
	for i, strict := range []bool{false, true} {
		req := kit.Acquiring("run", "pod-7", harness.TTL)
		req.Reactor, req.Strict = "outbox", strict
		lease := kit.MustAcquire(t, e.Store, req)
		if lease.Owner != req.Owner || lease.Reactor != req.Reactor || lease.Strict != strict || lease.Grant != req.Grant ||
			lease.TTL != harness.TTL || lease.Run != "run" || lease.Token != runstore.Token(i+1) {
			t.Errorf("asked for %+v, got %+v", req.LeaseSpec, lease)
		}
		run, err := reader.GetRun(t.Context(), "run")
		if err != nil {
			t.Fatalf("get run: %v", err)
		}
		h := run.Holder
		if h.Owner != "pod-7" || h.Reactor != "outbox" || h.Strict != strict || h.Token != lease.Token {
			t.Errorf("the run shows the holder %s, want pod-7/outbox, strict %t, token %v", kit.HolderText(h), strict, lease.Token)
		}
		if !h.ExpiresAt.Equal(lease.ExpiresAt) || !run.ExpiresAt.Equal(lease.ExpiresAt) {
			t.Errorf("the run shows expiry %v and %v, the lease %v", h.ExpiresAt, run.ExpiresAt, lease.ExpiresAt)
		}
		if !run.Live(e.Now(t)) || run.Live(lease.ExpiresAt) {
			t.Errorf("live now: %t, at its expiry: %t; want true and false", run.Live(e.Now(t)), run.Live(lease.ExpiresAt))
		}
		kit.MustRelease(t, e.Store, lease)
		if run := e.Get(t, "run"); !run.ExpiresAt.Equal(lease.ExpiresAt) || run.Live(e.Now(t)) {
			t.Errorf("after its release: expiry %v, live %t; want %v as before, and not live", run.ExpiresAt, run.Live(e.Now(t)), lease.ExpiresAt)
		}
	}
	spec := kit.WithLease("created", "pod-7")
	spec.Lease.Strict, spec.Lease.MaxStall = true, 90*time.Minute
	created, err := e.Store.CreateRun(t.Context(), spec)
	if err != nil || !created.Lease.Strict {
		t.Fatalf("created with a strict lease: got %+v, %v", created.Lease, err)
	}
	run, err := reader.GetRun(t.Context(), "created")
	if err != nil {
		t.Fatalf("get run: %v", err)
	}
	for what, h := range map[string]runstore.Holder{"returned": created.Run.Holder, "read": run.Holder} {
		if !h.Strict || h.MaxStall != spec.Lease.MaxStall {
			t.Errorf("created with a lease: the run that was %s shows strict %t, bound %v; want true, %v", what, h.Strict, h.MaxStall, spec.Lease.MaxStall)
		}
	}
}
