package conformance

import (
	"fmt"

	"github.com/tapestore/tapestore/runstore"
)

// tokenCases prove I2: tokens only grow.
func tokenCases() []Case {
	return append([]Case{
		{Guarantee: "I2", Name: "token-grows-by-one-per-grant", Run: tokenGrows},
		{Guarantee: "I2", Name: "refused-attempts-burn-no-token", Run: noTokenBurnt},
		{Guarantee: "I2", Name: "token-survives-purge-and-re-creation", Run: tokenSurvivesPurge},
		{Guarantee: "I2", Name: "old-fence-is-refused-on-the-re-created-run", Run: fenceAfterPurge},
		{Guarantee: "I2", Name: "token-survives-a-new-handle", Run: tokenSurvivesHandle},
		{Guarantee: "I2", Name: "token-survives-closing-every-handle", Needs: []Need{NeedProcesses}, Run: tokenSurvivesReopen},
		{Guarantee: "I2", Name: "runs-count-their-tokens-apart", Run: tokensApart},
		{Guarantee: "I2", Name: "token-beyond-the-known-means-store-behind", Run: tokenBeyond},
		{Guarantee: "I2", Name: "position-beyond-the-known-means-store-behind", Run: positionBeyond},
		{Guarantee: "I2", Name: "epoch-raises-the-token-and-frees-the-lease", Needs: []Need{NeedEpoch}, Run: epochRaises},
		{Guarantee: "I2", Name: "epoch-ends-every-grant-before-it", Needs: []Need{NeedEpoch}, Run: epochFences},
		{Guarantee: "I2", Name: "raises-at-once-begin-an-epoch-each", Needs: []Need{NeedEpoch}, Run: raisesAtOnce},
		{Guarantee: "I2", Name: "epoch-reaches-purged-runs", Needs: []Need{NeedEpoch}, Run: epochAfterPurge},
		{Guarantee: "I2", Name: "epoch-lifts-the-feed-above-lost-positions", Needs: []Need{NeedEpoch}, Run: epochLiftsFeed},
		{Guarantee: "I2", Name: "epochs-are-listed-with-their-reasons", Needs: []Need{NeedEpoch}, Run: epochsListed},
		{Guarantee: "I2", Name: "repeated-acquire-finds-its-own-grant", Run: acquireReplay},
		{Guarantee: "I2", Name: "copies-of-one-acquire-make-one-grant", Run: acquireCopies},
		{Guarantee: "I2", Name: "late-copy-of-an-acquire-takes-no-lease", Run: acquireLateCopy},
		{Guarantee: "I2", Name: "repeated-create-finds-its-own-grant", Run: createReplay},
		{Guarantee: "I2", Name: "repeated-release-writes-nothing-twice", Run: releaseReplay},
		{Guarantee: "I2", Name: "grants-without-an-id-get-one-each", Run: grantIDsDiffer},
	}, grantCases()...)
}

// tokenGrows takes the lease in every way there is.
func tokenGrows(t T, e *Env) {
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
	granted("the first grant", hold(t, e.Store, acquire("run", "a", TTL)))
	letGo(t, e.Store, lease)
	granted("after a release", hold(t, e.Store, acquire("run", "a", TTL)))
	letGo(t, e.Store, lease)
	granted("after another's release", hold(t, other, acquire("run", "b", e.ShortTTL())))
	e.expire(t)
	granted("takeover by another", hold(t, e.Store, acquire("run", "a", e.ShortTTL())))
	e.expire(t)
	granted("takeover from oneself", hold(t, e.Store, acquire("run", "a", TTL)))
	granted("preempt", hold(t, other, preempting("run", "c", "test")))
	granted("preempt of oneself", hold(t, other, preempting("run", "c", "test")))
	revoke := runstore.NewBatch("run", runstore.Unguarded("an operator ends the grant"))
	revoke.Release = true
	applied(t, e.Store, "unguarded release", revoke)
	granted("after a revocation", hold(t, e.Store, acquire("run", "a", TTL)))
	if err := renew(t, e.Store, lease, 2*TTL); err != nil {
		t.Fatalf("renew: %v", err)
	}
	letGo(t, e.Store, lease)
	granted("preempt of a free lease", hold(t, other, preempting("run", "c", "test")))
}

func noTokenBurnt(t T, e *Env) {
	e.Create(t, "run")
	other := e.Reopen(t)
	lease := e.Acquire(t, e.Store, "run", "holder")
	attempt := func(what string, want, err error) {
		t.Helper()
		Refused(t, what, err, want)
	}
	for range 5 {
		_, err := other.AcquireLease(t.Context(), acquire("run", "contender", TTL))
		attempt("acquire of a live lease", runstore.ErrLeaseHeld, err)
		guarded := preempting("run", "contender", "test")
		guarded.Guards = []runstore.Guard{runstore.AtSeq(99)}
		_, err = other.AcquireLease(t.Context(), guarded)
		attempt("preempt with a guard that fails", runstore.ErrConflict, err)
		_, err = other.AcquireLease(t.Context(), acquire("run", "", TTL))
		attempt("acquire without an owner", runstore.ErrInvalid, err)
		if err := renew(t, e.Store, lease, TTL); err != nil {
			t.Errorf("renew: %v", err)
		}
	}
	if run := e.Get(t, "run"); run.Token != lease.Token {
		t.Errorf("after refused attempts the run's token is %v, want %v", run.Token, lease.Token)
	}
	letGo(t, e.Store, lease)
	guarded := acquire("run", "contender", TTL)
	guarded.Guards = []runstore.Guard{runstore.AtVersion("absent", 1)}
	_, err := other.AcquireLease(t.Context(), guarded)
	attempt("acquire of a free lease with a guard that fails", runstore.ErrConflict, err)
	if next := e.Acquire(t, other, "run", "next"); next.Token != lease.Token+1 {
		t.Errorf("after refused attempts the next token is %v, want %v", next.Token, lease.Token+1)
	}
}

func tokenSurvivesHandle(t T, e *Env) {
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
			t.Errorf("closing a handle ended the grant: the run is held by %s, want token %v", named(run.Holder), lease.Token)
		}
		e.Append(t, s, lease, "through another handle")
		letGo(t, s, lease)
	}
}

func tokenSurvivesReopen(t T, e *Env) {
	e.Create(t, "held")
	e.Create(t, "free")
	e.Create(t, "purged")
	held, free, purged := e.Acquire(t, e.Store, "held", "a"), e.Acquire(t, e.Store, "free", "a"), e.Acquire(t, e.Store, "purged", "a")
	letGo(t, e.Store, free)
	purge(t, e.Store, purged)
	before := dump(t, e.Store, "held") + dump(t, e.Store, "free")
	if err := e.Store.Close(); err != nil {
		t.Fatalf("close: %v", err)
	}
	e.Store = e.Reopen(t)
	same(t, "closing every handle", before, dump(t, e.Store, "held")+dump(t, e.Store, "free"))
	e.Create(t, "purged")
	for _, old := range []runstore.Lease{free, purged} {
		_, err := e.Store.Commit(t.Context(), appending(old, "zombie"))
		fencedOut(t, fmt.Sprintf("commit on %q with a fence of before", old.Run), err, old, e.Get(t, old.Run))
		if next := e.Acquire(t, e.Store, old.Run, "b"); next.Token != old.Token+1 {
			t.Errorf("%q: token %v follows %v, want %v", old.Run, next.Token, old.Token, old.Token+1)
		}
	}
	e.Append(t, e.Store, held, "the lease outlived its handles")
}

func tokensApart(t T, e *Env) {
	e.Create(t, "busy")
	e.Create(t, "quiet")
	for i := range 5 {
		lease := hold(t, e.Store, preempting("busy", "a", "test"))
		if lease.Token != runstore.Token(i+1) {
			t.Errorf("grant %d of one run has token %v", i+1, lease.Token)
		}
	}
	if lease := e.Acquire(t, e.Store, "quiet", "a"); lease.Token != 1 {
		t.Errorf("the first grant of another run has token %v, want 1", lease.Token)
	}
}

func tokenBeyond(t T, e *Env) {
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

// storeIsBehind tries every write under a lease that the store never granted.
func storeIsBehind(t T, e *Env, future runstore.Lease, known runstore.Token) {
	t.Helper()
	before := dump(t, e.Store, future.Run)
	what := func(op string) string {
		return fmt.Sprintf("%s on %q under token %v when %v is known", op, future.Run, future.Token, known)
	}
	_, err := e.Store.Commit(t.Context(), appending(future, "from the future"))
	behind(t, what("commit"), err, "token", int64(future.Token), int64(known))
	behind(t, what("renew"), renew(t, e.Store, future, TTL), "token", int64(future.Token), int64(known))
	behind(t, what("release"), release(t, e.Store, future), "token", int64(future.Token), int64(known))
	same(t, "a fence from the future", before, dump(t, e.Store, future.Run))
}

func positionBeyond(t T, e *Env) {
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
