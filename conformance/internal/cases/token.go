package cases

import (
	"fmt"

	"github.com/tapestore/tapestore/conformance/harness"
	"github.com/tapestore/tapestore/conformance/internal/kit"
	"github.com/tapestore/tapestore/runstore"
)

// Tokens returns the cases that prove I2: tokens only grow.
func Tokens() []harness.Case {
	return append([]harness.Case{
		{Guarantee: "I2", Name: "token-grows-by-one-per-grant", Run: tokenGrows, Doc: `
			Two handles obtain the lease in every way there is: free, after a release, by takeover, by preempt of
			another and of itself, after a revocation. Every grant's token is exactly one above the last, and the run
			shows it. A store that resets the token on release, or keeps the old token at a takeover, lets an old
			fence match a new grant.`},
		{Guarantee: "I2", Name: "refused-attempts-burn-no-token", Run: noTokenBurnt, Doc: `
			A contender is refused again and again: the lease is held, a guard fails, the request is malformed. The
			holder renews meanwhile. None of this changes the run's token, and the next grant gets exactly the next
			one. A store that draws tokens from a database sequence skips a number for each refusal.`},
		{Guarantee: "I2", Name: "token-survives-purge-and-re-creation", Run: tokenSurvivesPurge, Doc: `
			Three times over, a holder purges the run, and the caller creates the run anew. A purged run is
			ErrNotFound to every read and in no index; a new run is empty but continues with the next token. A store
			that deletes the token with the run starts again at 1, so that a fence from before the purge matches.`},
		{Guarantee: "I2", Name: "old-fence-is-refused-on-the-re-created-run", Run: fenceAfterPurge, Doc: `
			A run is purged and created anew, and the holders from before the purge commit, renew, release and purge.
			All of it is ErrFenced and changes nothing, before the new run's first grant and under it; between purge
			and creation it is ErrNotFound. A store that forgets old tokens at a purge applies those writes to the new
			run.`},
		{Guarantee: "I2", Name: "token-survives-a-new-handle", Run: tokenSurvivesHandle, Doc: `
			Three rounds open a new handle, acquire through it and close it. The next handle finds the grant still
			held, commits under it, and the following grant has the next token. A store that keeps the token or the
			grant in the memory of a handle, or that ends grants when a handle closes, fails.`},
		{Guarantee: "I2", Name: "token-survives-closing-every-handle", Needs: []harness.Need{harness.NeedProcesses}, Run: tokenSurvivesReopen, Doc: `
			Three runs, one held, one released and one purged, outlive the close of the last handle. The new handle
			reads the two remaining runs as they were, old fences stay ErrFenced, the next tokens follow on, and the
			held lease still commits. A store that keeps tokens in memory, or loses those of purged runs on restart,
			fails.`},
		{Guarantee: "I2", Name: "runs-count-their-tokens-apart", Run: tokensApart, Doc: `
			One run is granted five times, and then another run for the first time. The first run's tokens are 1 to 5
			and the other's first is 1. A store that draws the tokens of all runs from one counter fails.`},
		{Guarantee: "I2", Name: "token-beyond-the-known-means-store-behind", Run: tokenBeyond, Doc: `
			A caller commits, renews and releases under a token that the store never granted: one, a thousand, and a
			whole epoch above the known one. Each call is ErrStoreBehind with the presented and the known token, and
			changes nothing. A store that answers ErrFenced hides that an old backup was restored.`},
		{Guarantee: "I2", Name: "position-beyond-the-known-means-store-behind", Run: positionBeyond, Doc: `
			A reader resumes the feed after its last position and gets an empty page; then it resumes after the
			highest position that can exist. That read is ErrStoreBehind with the presented and the last known
			position. A store that returns an empty page lets a reader of a restored store wait for ever and miss
			what follows.`},
		{Guarantee: "I2", Name: "epoch-raises-the-token-and-frees-the-lease", Needs: []harness.Need{harness.NeedEpoch}, Run: epochRaises, Doc: `
			An operator raises the epoch twice, with one run held and one released. No run has a holder afterwards,
			another handle acquires at once, and the first token is the first number of the new epoch, above every
			token before it. A store that raises the number but keeps the grants, or that lets tokens of two epochs
			overlap, fails.`},
		{Guarantee: "I2", Name: "epoch-ends-every-grant-before-it", Needs: []harness.Need{harness.NeedEpoch}, Run: epochFences, Doc: `
			The epoch is raised while an ordinary lease, and then a strict one, is held. The old holder's commit,
			renewal and release are ErrFenced before the next grant and after it, and so is a repeated acquire; a
			token of the new epoch that was never granted is ErrStoreBehind. A store that ends old grants only at the
			next grant lets holders of a lost future go on writing.`},
		{Guarantee: "I2", Name: "raises-at-once-begin-an-epoch-each", Needs: []harness.Need{harness.NeedEpoch}, Run: raisesAtOnce, Doc: `
			Six handles raise the epoch at the same moment, round after round. Each call begins an epoch of its own,
			and the store lists every epoch under the reason of its call. A store that reads the epoch and writes the
			next one in two steps returns the same epoch to two callers and loses a reason.`},
		{Guarantee: "I2", Name: "epoch-reaches-purged-runs", Needs: []harness.Need{harness.NeedEpoch}, Run: epochAfterPurge, Doc: `
			A run is purged, the epoch is raised, and the run is created anew. The old fence is ErrFenced, and both
			this run and one created in the new epoch get the epoch's first token. A store that raises only the
			tokens of runs that exist lets a purged run continue below the new epoch.`},
		{Guarantee: "I2", Name: "epoch-lifts-the-feed-above-lost-positions", Needs: []harness.Need{harness.NeedEpoch}, Run: epochLiftsFeed, Doc: `
			A reader has seen positions that the restored store no longer knows, so reading after them is
			ErrStoreBehind. Once the epoch is raised the same read is empty, and the next event arrives at a position
			above the epoch's floor; older events keep theirs. A store that hands lost positions out again makes the
			reader skip new events.`},
		{Guarantee: "I2", Name: "epochs-are-listed-with-their-reasons", Needs: []harness.Need{harness.NeedEpoch}, Run: epochsListed, Doc: `
			A raise without a reason is ErrInvalid and begins no epoch. Two raises with reasons, one of them in
			several scripts, are then listed through another handle with their number, reason and a time between the
			store clock before and after the call. A store that drops or alters the journal of its epochs fails.`},
		{Guarantee: "I2", Name: "repeated-acquire-finds-its-own-grant", Run: acquireReplay, Doc: `
			A caller repeats an AcquireLease with the same grant id, through both handles, after a commit, as a
			preempt, and after an expiry without a takeover. Every repeat returns the same grant, although its guard
			no longer holds, and writes nothing twice. A store that ignores the grant id makes a lost reply a
			contender of its own request.`},
		{Guarantee: "I2", Name: "copies-of-one-acquire-make-one-grant", Run: acquireCopies, Doc: `
			Six handles send the same acquire, with one grant id, at the same moment. All six calls return the same
			token, the round costs one token, and its event is written once. A store that looks for the grant id
			before its atomic step, and not in it, grants twice or refuses a copy.`},
		{Guarantee: "I2", Name: "late-copy-of-an-acquire-takes-no-lease", Run: acquireLateCopy, Doc: `
			A copy of an acquire arrives after its grant has ended by a release, a releasing batch or a revocation.
			The copy is ErrFenced although it preempts and the lease is free, the run does not change, and the next
			token follows on. A store that forgets the id of an ended grant leases the run to a process that has
			left.`},
		{Guarantee: "I2", Name: "repeated-create-finds-its-own-grant", Run: createReplay, Doc: `
			A caller repeats a CreateRun that carries a lease, with writes and without. Through every handle the repeat
			returns the same lease and result as the first call and writes nothing, with writes also after the
			release; another process of that owner name gets no lease. A store that answers a repeat with "exists"
			leaves the run without a driver.`},
		{Guarantee: "I2", Name: "repeated-release-writes-nothing-twice", Run: releaseReplay, Doc: `
			A caller repeats a release that carries an event, a record and a status: at once, and again under the
			next grant. Each repeat succeeds as a replay, the run does not change, and the next holder keeps its
			lease. A store that applies the repeat writes the events twice or frees another holder's lease.`},
		{Guarantee: "I2", Name: "grants-without-an-id-get-one-each", Run: grantIDsDiffer, Doc: `
			A caller preempts the leases of two runs, three times each, without a grant id. The store gives every
			grant an id of its own, within the limit on its length, and a fence with that id commits. A store that
			leaves the id empty or repeats one cannot tell two grants apart.`},
	}, grantCases()...)
}

func tokenGrows(t harness.T, e *harness.Env) {
	e.Create(t, "run")
	other := e.Reopen(t)
	var lease runstore.Lease
	var last runstore.Token
	granted := func(what string, next runstore.Lease) {
		t.Helper()
		if next.Token != last+1 {
			t.Errorf("%s: token %v follows %v, want %v", what, next.Token, last, last+1)
		}
		if run := e.Get(t, "run"); run.Token != next.Token || run.Holder.Token != next.Token {
			t.Errorf("%s: the run shows token %v, holder's %v; want %v", what, run.Token, run.Holder.Token, next.Token)
		}
		lease, last = next, next.Token
	}
	granted("the first grant", kit.MustAcquire(t, e.Store, kit.Acquiring("run", "a", harness.TTL)))
	kit.MustRelease(t, e.Store, lease)
	granted("after a release", kit.MustAcquire(t, e.Store, kit.Acquiring("run", "a", harness.TTL)))
	kit.MustRelease(t, e.Store, lease)
	granted("after another's release", kit.MustAcquire(t, other, kit.Acquiring("run", "b", e.ShortTTL())))
	kit.Expire(t, e)
	granted("takeover by another", kit.MustAcquire(t, e.Store, kit.Acquiring("run", "a", e.ShortTTL())))
	kit.Expire(t, e)
	granted("takeover from oneself", kit.MustAcquire(t, e.Store, kit.Acquiring("run", "a", harness.TTL)))
	granted("preempt", kit.MustAcquire(t, other, kit.Preempting("run", "c", "test")))
	granted("preempt of oneself", kit.MustAcquire(t, other, kit.Preempting("run", "c", "test")))
	revoke := runstore.NewBatch("run", runstore.Unguarded("an operator ends the grant"))
	revoke.Release = true
	kit.MustApply(t, e.Store, "unguarded release", revoke)
	granted("after a revocation", kit.MustAcquire(t, e.Store, kit.Acquiring("run", "a", harness.TTL)))
	if err := kit.Renew(t, e.Store, lease, 2*harness.TTL); err != nil {
		t.Fatalf("renew: %v", err)
	}
	kit.MustRelease(t, e.Store, lease)
	granted("preempt of a free lease", kit.MustAcquire(t, other, kit.Preempting("run", "c", "test")))
}

func noTokenBurnt(t harness.T, e *harness.Env) {
	e.Create(t, "run")
	other := e.Reopen(t)
	lease := e.Acquire(t, e.Store, "run", "holder")
	attempt := func(what string, want, err error) {
		t.Helper()
		harness.Refused(t, what, err, want)
	}
	for range 5 {
		_, err := other.AcquireLease(t.Context(), kit.Acquiring("run", "contender", harness.TTL))
		attempt("acquire of a live lease", runstore.ErrLeaseHeld, err)
		guarded := kit.Preempting("run", "contender", "test")
		guarded.Guards = []runstore.Guard{runstore.AtSeq(99)}
		_, err = other.AcquireLease(t.Context(), guarded)
		attempt("preempt with a guard that fails", runstore.ErrConflict, err)
		_, err = other.AcquireLease(t.Context(), kit.Acquiring("run", "", harness.TTL))
		attempt("acquire without an owner", runstore.ErrInvalid, err)
		if err := kit.Renew(t, e.Store, lease, harness.TTL); err != nil {
			t.Errorf("renew: %v", err)
		}
	}
	if run := e.Get(t, "run"); run.Token != lease.Token {
		t.Errorf("after refused attempts the run's token is %v, want %v", run.Token, lease.Token)
	}
	kit.MustRelease(t, e.Store, lease)
	guarded := kit.Acquiring("run", "contender", harness.TTL)
	guarded.Guards = []runstore.Guard{runstore.AtVersion("absent", 1)}
	_, err := other.AcquireLease(t.Context(), guarded)
	attempt("acquire of a free lease with a guard that fails", runstore.ErrConflict, err)
	if next := e.Acquire(t, other, "run", "next"); next.Token != lease.Token+1 {
		t.Errorf("after refused attempts the next token is %v, want %v", next.Token, lease.Token+1)
	}
}

func tokenSurvivesHandle(t harness.T, e *harness.Env) {
	e.Create(t, "run")
	var last runstore.Token
	for range 3 {
		s := e.Reopen(t)
		lease := e.Acquire(t, s, "run", "a")
		if lease.Token != last+1 {
			t.Errorf("a new handle granted token %v after %v, want %v", lease.Token, last, last+1)
		}
		last = lease.Token
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		s = e.Reopen(t)
		if run := e.Get(t, "run"); run.Holder.Token != lease.Token {
			t.Errorf("closing a handle ended the grant: the run is held by %s, want token %v", kit.HolderText(run.Holder), lease.Token)
		}
		e.Append(t, s, lease, "through another handle")
		kit.MustRelease(t, s, lease)
	}
}

func tokenSurvivesReopen(t harness.T, e *harness.Env) {
	e.Create(t, "held")
	e.Create(t, "free")
	e.Create(t, "purged")
	held, free, purged := e.Acquire(t, e.Store, "held", "a"), e.Acquire(t, e.Store, "free", "a"), e.Acquire(t, e.Store, "purged", "a")
	kit.MustRelease(t, e.Store, free)
	purge(t, e.Store, purged)
	before := kit.Dump(t, e.Store, "held") + kit.Dump(t, e.Store, "free")
	if err := e.Store.Close(); err != nil {
		t.Fatalf("close: %v", err)
	}
	e.Store = e.Reopen(t)
	kit.CheckUnchanged(t, "closing every handle", before, kit.Dump(t, e.Store, "held")+kit.Dump(t, e.Store, "free"))
	e.Create(t, "purged")
	for _, old := range []runstore.Lease{free, purged} {
		_, err := e.Store.Commit(t.Context(), kit.Appending(old, "zombie"))
		kit.CheckFenced(t, fmt.Sprintf("commit on %q with a fence of before", old.Run), err, old, e.Get(t, old.Run))
		if next := e.Acquire(t, e.Store, old.Run, "b"); next.Token != old.Token+1 {
			t.Errorf("%q: token %v follows %v, want %v", old.Run, next.Token, old.Token, old.Token+1)
		}
	}
	e.Append(t, e.Store, held, "the lease outlived its handles")
}

func tokensApart(t harness.T, e *harness.Env) {
	e.Create(t, "busy")
	e.Create(t, "quiet")
	for i := range 5 {
		lease := kit.MustAcquire(t, e.Store, kit.Preempting("busy", "a", "test"))
		if lease.Token != runstore.Token(i+1) {
			t.Errorf("grant %d of one run has token %v", i+1, lease.Token)
		}
	}
	if lease := e.Acquire(t, e.Store, "quiet", "a"); lease.Token != 1 {
		t.Errorf("the first grant of another run has token %v, want 1", lease.Token)
	}
}

func tokenBeyond(t harness.T, e *harness.Env) {
	e.Create(t, "fresh")
	e.Create(t, "leased")
	lease := e.Acquire(t, e.Store, "leased", "a")
	for id, known := range map[runstore.RunID]runstore.Token{"fresh": 0, "leased": lease.Token} {
		for _, ahead := range []runstore.Token{1, 1000, runstore.Epoch(1).Floor() + 1} {
			future := lease
			future.Run, future.Token = id, known+ahead
			storeIsBehind(t, e, future, known)
		}
	}
	e.Append(t, e.Store, lease, "still held")
}

// storeIsBehind fails the case unless every write under a lease that the store never granted is
// refused with ErrStoreBehind.
func storeIsBehind(t harness.T, e *harness.Env, future runstore.Lease, known runstore.Token) {
	t.Helper()
	before := kit.Dump(t, e.Store, future.Run)
	what := func(op string) string {
		return fmt.Sprintf("%s on %q under token %v when %v is known", op, future.Run, future.Token, known)
	}
	_, err := e.Store.Commit(t.Context(), kit.Appending(future, "from the future"))
	kit.CheckStoreBehind(t, what("commit"), err, "token", int64(future.Token), int64(known))
	kit.CheckStoreBehind(t, what("renew"), kit.Renew(t, e.Store, future, harness.TTL), "token", int64(future.Token), int64(known))
	kit.CheckStoreBehind(t, what("release"), kit.Release(t, e.Store, future), "token", int64(future.Token), int64(known))
	kit.CheckUnchanged(t, "a fence from the future", before, kit.Dump(t, e.Store, future.Run))
}

func positionBeyond(t harness.T, e *harness.Env) {
	e.Create(t, "run")
	lease := e.Acquire(t, e.Store, "run", "a")
	e.Append(t, e.Store, lease, "one")
	var last runstore.Position
	e.Await(t, awaitFeed, func() bool {
		page, err := e.Store.ReadFeed(t.Context(), runstore.FeedQuery{Limit: 10})
		if err != nil {
			t.Fatalf("read feed: %v", err)
		}
		for _, event := range page {
			last = event.Position
		}
		return len(page) > 0
	})
	if page, err := e.Store.ReadFeed(t.Context(), runstore.FeedQuery{After: last, Limit: 10}); err != nil || len(page) != 0 {
		t.Errorf("the feed after its last position: got %d events and error %v, want neither", len(page), err)
	}
	const beyond = runstore.MaxPosition
	_, err := e.Store.ReadFeed(t.Context(), runstore.FeedQuery{After: beyond, Limit: 10})
	var b *runstore.StoreBehindError
	if !asBehind(err, &b) || b.Field != "position" || b.Presented != int64(beyond) || b.Known < int64(last) || b.Known >= int64(beyond) {
		t.Errorf("the feed after position %d got error %v, want ErrStoreBehind with that position and the last known, at least %d", beyond, err, last)
	}
}
