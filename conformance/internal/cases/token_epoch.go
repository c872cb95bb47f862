package cases

import (
	"errors"
	"fmt"

	"github.com/tapestore/tapestore/conformance/harness"
	"github.com/tapestore/tapestore/conformance/internal/kit"
	"github.com/tapestore/tapestore/runstore"
)

// awaitFeed bounds the wait for an event in the feed.
const awaitFeed = harness.CaseTimeout

func asBehind(err error, target **runstore.StoreBehindError) bool {
	return errors.As(err, target) && errors.Is(err, runstore.ErrStoreBehind)
}

func epochRaises(t harness.T, e *harness.Env) {
	e.Create(t, "held")
	e.Create(t, "free")
	old := e.Acquire(t, e.Store, "held", "a")
	kit.MustRelease(t, e.Store, e.Acquire(t, e.Store, "free", "a"))
	other := e.Reopen(t)
	highest := old.Token
	for i := range 2 {
		epoch := e.RaiseEpoch(t, e.Store, fmt.Sprintf("restore %d", i))
		if want := highest.Epoch() + 1; epoch != want {
			t.Errorf("raised to epoch %d, want %d", epoch, want)
		}
		above := highest
		for _, id := range []runstore.RunID{"held", "free"} {
			if run := e.Get(t, id); run.Holder != (runstore.Holder{}) {
				t.Errorf("%q: in the new epoch the run is held by %s, want nobody", id, kit.HolderText(run.Holder))
			}
			lease := e.Acquire(t, other, id, "b") // at once: no grant is live any more
			if want := epoch.Floor() + 1; lease.Token != want || lease.Token <= above {
				t.Errorf("%q: the first token of epoch %d is %v (%d), want %v (%d)", id, epoch, lease.Token, lease.Token, want, want)
			}
			kit.MustRelease(t, other, lease)
			next := e.Acquire(t, e.Store, id, "c")
			if next.Token != lease.Token+1 || next.Token.Epoch() != epoch || next.Token.Counter() != 2 {
				t.Errorf("%q: token %v follows %v, want the next number of the same epoch", id, next.Token, lease.Token)
			}
			e.Append(t, other, next, "in the new epoch")
			highest = max(highest, next.Token)
		}
	}
}

func raisesAtOnce(t harness.T, e *harness.Env) {
	const operators = 6
	handles := kit.OpenHandles(t, e, operators)
	for round := range e.Scaled(t, "rounds", 2, 5) {
		errs, raised := make([]error, operators), make([]string, operators)
		kit.Contend(operators, func(i int) {
			reason := fmt.Sprintf("operator %d, round %d", i, round)
			epoch, err := kit.Capability[runstore.EpochManager](handles[i]).RaiseEpoch(t.Context(), reason)
			errs[i] = err
			if k := int(epoch) - operators*round - 1; k >= 0 && k < operators {
				raised[k] = fmt.Sprintf("%d: %s", epoch, reason)
			}
		})
		if err := errors.Join(errs...); err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		for _, each := range raised {
			e.ExpectEpoch(each) // what the store must list when the case ends, see CheckEpochs
		}
	}
}

func epochFences(t harness.T, e *harness.Env) {
	for _, id := range []runstore.RunID{"held", "strict"} {
		e.Create(t, id)
		req := kit.Acquiring(id, "a", harness.TTL)
		req.Strict = id == "strict"
		old := kit.MustAcquire(t, e.Store, req)
		e.Append(t, e.Store, old, "before")
		epoch := e.RaiseEpoch(t, e.Reopen(t), "test")

		before := kit.Dump(t, e.Store, id)
		refused := func(when string) {
			t.Helper()
			run := e.Get(t, id)
			_, err := e.Store.Commit(t.Context(), kit.Appending(old, "zombie"))
			kit.CheckFenced(t, when+": commit", err, old, run)
			kit.CheckFenced(t, when+": renew", kit.Renew(t, e.Store, old, harness.TTL), old, run)
			kit.CheckFenced(t, when+": release", kit.Release(t, e.Store, old), old, run)
			kit.CheckUnchanged(t, when+": a fence of the old epoch", before, kit.Dump(t, e.Store, id))
		}
		refused("before the next grant")
		_, err := e.Store.AcquireLease(t.Context(), req)
		harness.Refused(t, "a late copy of the old epoch's acquire", err, runstore.ErrFenced)
		future := old
		future.Token = epoch.Floor() + 1
		storeIsBehind(t, e, future, epoch.Floor())

		current := e.Acquire(t, e.Store, id, "b")
		before = kit.Dump(t, e.Store, id)
		refused("under the next grant")
		e.Append(t, e.Store, current, "after")
	}
}

func epochAfterPurge(t harness.T, e *harness.Env) {
	e.Create(t, "run")
	old := e.Acquire(t, e.Store, "run", "a")
	purge(t, e.Store, old)
	epoch := e.RaiseEpoch(t, e.Store, "test")
	e.Create(t, "run")
	_, err := e.Store.Commit(t.Context(), kit.Appending(old, "zombie"))
	kit.CheckFenced(t, "commit with a fence of the epoch before", err, old, e.Get(t, "run"))
	if lease := e.Acquire(t, e.Store, "run", "a"); lease.Token != epoch.Floor()+1 {
		t.Errorf("the re-created run granted token %v, want %v", lease.Token, epoch.Floor()+1)
	}
	created, err := e.Store.CreateRun(t.Context(), kit.WithLease("later", "a"))
	if err != nil {
		t.Fatalf("create with a lease: %v", err)
	}
	if created.Lease.Token != epoch.Floor()+1 {
		t.Errorf("a run created in epoch %d granted token %v, want %v", epoch, created.Lease.Token, epoch.Floor()+1)
	}
}

func epochLiftsFeed(t harness.T, e *harness.Env) {
	e.Create(t, "run")
	lease := e.Acquire(t, e.Store, "run", "a")
	e.Append(t, e.Store, lease, "before")
	last := kit.FeedOf(t, e, e.Store, 1)[0].Position
	seen := last + 1000
	_, err := e.Store.ReadFeed(t.Context(), runstore.FeedQuery{After: seen, Limit: 10})
	harness.Refused(t, "the feed after a position that was lost", err, runstore.ErrStoreBehind)
	epoch := e.RaiseEpoch(t, e.Reopen(t), "restored")
	if page, err := e.Store.ReadFeed(t.Context(), runstore.FeedQuery{After: seen, Limit: 10}); err != nil || len(page) != 0 {
		t.Errorf("the feed after that position in the new epoch: %d events, error %v; want neither", len(page), err)
	}
	lease = e.Acquire(t, e.Store, "run", "b")
	e.Append(t, e.Store, lease, "after")
	var page []runstore.FeedEvent
	e.Await(t, awaitFeed, func() bool {
		var err error
		if page, err = e.Store.ReadFeed(t.Context(), runstore.FeedQuery{After: seen, Limit: 10}); err != nil {
			t.Fatalf("read feed: %v", err)
		}
		return len(page) > 0
	})
	if len(page) != 1 || string(page[0].Data) != "after" || page[0].Position <= runstore.Position(epoch.Floor()) {
		t.Errorf("the feed goes on with %d events, the first %q at position %d; want one, at a position above %d",
			len(page), page[0].Data, page[0].Position, epoch.Floor())
	}
	if all := kit.FeedOf(t, e, e.Store, 2); all[0].Position != last {
		t.Errorf("raising the epoch moved an event from position %d to %d", last, all[0].Position)
	}
}

func epochsListed(t harness.T, e *harness.Env) {
	other := e.Reopen(t)
	epochs := func() []runstore.EpochChange {
		all, err := kit.Capability[runstore.EpochManager](other).Epochs(t.Context())
		if err != nil {
			t.Fatalf("epochs: %v", err)
		}
		return all
	}
	known := epochs() // an engine may have raised it by itself
	_, err := kit.Capability[runstore.EpochManager](e.Store).RaiseEpoch(t.Context(), "")
	harness.Refused(t, "raising the epoch without a reason", err, runstore.ErrInvalid)
	if got := epochs(); len(got) != len(known) {
		t.Errorf("a refused raise left %d epochs, want %d", len(got), len(known))
	}
	for i, reason := range []string{"restored from Tuesday's backup", "für die Prüfung: 復元"} {
		from := e.Now(t)
		epoch := e.RaiseEpoch(t, e.Store, reason)
		to := e.Now(t)
		all := epochs()
		if len(all) != len(known)+i+1 {
			t.Fatalf("%d epochs are listed, want %d", len(all), len(known)+i+1)
		}
		last := all[len(all)-1]
		if last.Epoch != epoch || last.Reason != reason {
			t.Errorf("the current epoch is %d for %q, want %d for %q", last.Epoch, last.Reason, epoch, reason)
		}
		checkBetween(t, "the epoch's beginning", last.At, from, to)
	}
}
