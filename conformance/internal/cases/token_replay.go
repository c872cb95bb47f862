package cases

import (
	"time"

	"github.com/tapestore/tapestore/conformance/harness"
	"github.com/tapestore/tapestore/conformance/internal/kit"
	"github.com/tapestore/tapestore/runstore"
)

// sameGrant fails the case unless both leases are one grant with one expiry.
func sameGrant(t harness.T, what string, got, want runstore.Lease) {
	t.Helper()
	oneGrant(t, what, got, want, want.ExpiresAt)
}

// oneGrant is sameGrant for an engine that may store a slightly later expiry than it returned to
// the holder, but none later than latest.
func oneGrant(t harness.T, what string, got, want runstore.Lease, latest time.Time) {
	t.Helper()
	if got.Run != want.Run || got.Owner != want.Owner || got.Reactor != want.Reactor || got.Token != want.Token ||
		got.Grant != want.Grant || got.Strict != want.Strict || got.ExpiresAt.Before(want.ExpiresAt) || got.ExpiresAt.After(latest) {
		t.Errorf("%s: got %+v, want %+v until %v", what, got, want, latest)
	}
}

func acquireReplay(t harness.T, e *harness.Env) {
	e.Create(t, "run")
	req := kit.Acquiring("run", "a", harness.TTL)
	req.Guards = []runstore.Guard{runstore.AtSeq(1)} // true for the first copy only
	req.Writes.Append("granted", []byte("once"))
	req.Writes.Put("record", []byte("once"))
	lease := kit.MustAcquire(t, e.Store, req)
	before := kit.Dump(t, e.Store, "run")
	for _, s := range []runstore.RunStore{e.Store, e.Reopen(t)} {
		sameGrant(t, "the repeated acquire", kit.MustAcquire(t, s, req), lease)
	}
	kit.CheckUnchanged(t, "a repeated acquire", before, kit.Dump(t, e.Store, "run"))
	e.Append(t, e.Store, lease, "the grant is good")
	sameGrant(t, "the repeat after a commit", kit.MustAcquire(t, e.Store, req), lease)

	// A preempt can be repeated like any other acquire, and its repeat preempts no holder.
	taken := kit.Preempting("run", "b", "test")
	second := kit.MustAcquire(t, e.Store, taken)
	sameGrant(t, "the repeated preempt", kit.MustAcquire(t, e.Reopen(t), taken), second)
	if run := e.Get(t, "run"); run.Token != second.Token || run.Holder.Preempted.From != "a" {
		t.Errorf("after a repeated preempt: token %v, preempted %+v; want %v, from a", run.Token, run.Holder.Preempted, second.Token)
	}

	// An expired grant that no other handle took over still belongs to the request.
	kit.MustRelease(t, e.Store, second)
	short := kit.Acquiring("run", "c", e.ShortTTL())
	third := kit.MustAcquire(t, e.Store, short)
	latest := e.Now(t).Add(short.TTL)
	kit.Expire(t, e)
	oneGrant(t, "the repeat after the expiry", kit.MustAcquire(t, e.Store, short), third, latest)
}

func acquireCopies(t harness.T, e *harness.Env) {
	const copies, rounds = 6, 5
	e.Create(t, "run")
	handles := kit.OpenHandles(t, e, copies)
	for round := range rounds {
		req := kit.Acquiring("run", "a", harness.TTL)
		req.Writes.Append("granted", []byte("once"))
		leases := make([]runstore.Granted, copies)
		kit.Contend(copies, func(i int) {
			var err error
			if leases[i], err = handles[i].AcquireLease(t.Context(), req); err != nil {
				t.Errorf("round %d: copy %d of one request: %v", round, i, err)
			}
		})
		for _, l := range leases {
			if l.Token != runstore.Token(round+1) || l.Grant != req.Grant {
				t.Errorf("round %d: a copy got token %v, want %d", round, l.Token, round+1)
			}
		}
		if got := len(kit.Journal(t, e.Store, "run")); got != round+1 {
			t.Errorf("round %d: %d events, want one per grant: %d", round, got, round+1)
		}
		kit.MustRelease(t, e.Store, leases[0].Lease)
	}
}

func acquireLateCopy(t harness.T, e *harness.Env) {
	e.Create(t, "run")
	for _, end := range []struct {
		how string
		do  func(lease runstore.Lease)
	}{
		{"a release", func(l runstore.Lease) { kit.MustRelease(t, e.Store, l) }},
		{"a releasing batch", func(l runstore.Lease) {
			b := runstore.NewBatch("run", l.Fence())
			b.Release = true
			kit.MustApply(t, e.Store, "releasing batch", b)
		}},
		{"a revocation", func(runstore.Lease) {
			b := runstore.NewBatch("run", runstore.Unguarded("an operator ends the grant"))
			b.Release = true
			kit.MustApply(t, e.Store, "revocation", b)
		}},
	} {
		req := kit.Acquiring("run", "a", harness.TTL)
		req.Preempt = "so that nothing but the grant id can refuse it"
		lease := kit.MustAcquire(t, e.Store, req)
		e.Append(t, e.Store, lease, "once")
		end.do(lease)
		before := kit.Dump(t, e.Store, "run")
		_, err := e.Reopen(t).AcquireLease(t.Context(), req)
		kit.CheckFenced(t, "a copy of the acquire after "+end.how, err, lease, e.Get(t, "run"))
		kit.CheckUnchanged(t, "a copy of the acquire after "+end.how, before, kit.Dump(t, e.Store, "run"))
		if next := e.Acquire(t, e.Store, "run", "a"); next.Token != lease.Token+1 {
			t.Errorf("after %s and a late copy the next token is %v, want %v", end.how, next.Token, lease.Token+1)
		} else {
			kit.MustRelease(t, e.Store, next)
		}
	}
}

func createReplay(t harness.T, e *harness.Env) {
	spec := kit.WithLease("run", "a")
	spec.Status = 3
	spec.Writes.Append("begun", []byte("once"))
	spec.Writes.Put(runstore.SummaryKey, []byte("once"))
	first, err := e.Store.CreateRun(t.Context(), spec)
	if err != nil || !first.New {
		t.Fatalf("create: new %t, error %v", first.New, err)
	}
	before := kit.Dump(t, e.Store, "run")
	for _, s := range []runstore.RunStore{e.Store, e.Reopen(t)} {
		again, err := s.CreateRun(t.Context(), spec)
		if err != nil || !again.New {
			t.Fatalf("repeated create: new %t, error %v; want true and none", again.New, err)
		}
		sameGrant(t, "the repeated create", again.Lease, first.Lease)
		if again.Run.Status != 3 || again.Run.LastSeq != 1 || string(again.Run.Summary.Value) != "once" {
			t.Errorf("the repeated create shows status %d, seq %d, summary %q; want 3, 1, once",
				again.Run.Status, again.Run.LastSeq, again.Run.Summary.Value)
		}
	}
	other, err := e.Store.CreateRun(t.Context(), kit.WithLease("run", "a"))
	if err != nil || other.New || other.Lease != (runstore.Lease{}) {
		t.Errorf("create by another process of that name: new %t, token %v, error %v; want no lease, no error", other.New, other.Lease.Token, err)
	}
	kit.CheckUnchanged(t, "a repeated create", before, kit.Dump(t, e.Store, "run"))
	e.Append(t, e.Store, first.Lease, "the grant is good")

	// Once the grant has ended, a late copy gets the first result, marked as ended.
	kit.MustRelease(t, e.Store, first.Lease)
	before = kit.Dump(t, e.Store, "run")
	late, err := e.Store.CreateRun(t.Context(), spec)
	if err != nil || !late.New || late.Lease.Token != first.Lease.Token || late.Run.Holder.Token != 0 {
		t.Errorf("create repeated after the release: new %t, token %v, holder %+v, error %v; want the first lease and a run without a holder",
			late.New, late.Lease.Token, late.Run.Holder, err)
	}
	sameResult(t, "create repeated after the release", late.Committed, first.Committed)
	kit.CheckUnchanged(t, "a late copy of a create", before, kit.Dump(t, e.Store, "run"))

	// Of a creation without writes no result is remembered: the current grant alone shows the repeat.
	plain := kit.WithLease("plain", "a")
	made, err := e.Store.CreateRun(t.Context(), plain)
	if err != nil || !made.New {
		t.Fatalf("create without writes: new %t, error %v", made.New, err)
	}
	repeated, err := e.Store.CreateRun(t.Context(), plain)
	if err != nil || !repeated.New || !repeated.Committed.Replayed {
		t.Errorf("repeated create without writes: new %t, replayed %t, error %v; want true, true and none",
			repeated.New, repeated.Committed.Replayed, err)
	}
	sameGrant(t, "the repeated create without writes", repeated.Lease, made.Lease)
}

func releaseReplay(t harness.T, e *harness.Env) {
	e.Create(t, "run")
	lease := e.Acquire(t, e.Store, "run", "a")
	req := runstore.ReleaseRequest{Fence: lease.Fence()}
	req.Writes.Append("ended", []byte("once"))
	status := runstore.Status(9)
	req.Writes.Status = &status
	req.Writes.Put("record", []byte("once"))
	first, err := e.Store.ReleaseLease(t.Context(), req)
	if err != nil || first.FirstSeq != 1 || first.LastSeq != 1 || first.Replayed {
		t.Fatalf("release: %+v, error %v; want seq 1, not replayed", first, err)
	}
	before := kit.Dump(t, e.Store, "run")
	for _, s := range []runstore.RunStore{e.Store, e.Reopen(t)} {
		again, err := s.ReleaseLease(t.Context(), req)
		if err != nil || !again.Replayed {
			t.Errorf("repeated release: replayed %t, error %v; want true and none", again.Replayed, err)
		}
	}
	kit.CheckUnchanged(t, "a repeated release", before, kit.Dump(t, e.Store, "run"))

	next := e.Acquire(t, e.Store, "run", "b")
	before = kit.Dump(t, e.Store, "run")
	again, err := e.Store.ReleaseLease(t.Context(), req)
	if err != nil {
		t.Errorf("a release repeated under the next grant: %v", err)
	}
	sameResult(t, "a release repeated under the next grant", again, first)
	kit.CheckUnchanged(t, "a release repeated under the next grant", before, kit.Dump(t, e.Store, "run"))
	e.Append(t, e.Store, next, "still held")
}

func grantIDsDiffer(t harness.T, e *harness.Env) {
	seen := map[runstore.GrantID]bool{}
	for _, id := range []runstore.RunID{"run-1", "run-2"} {
		e.Create(t, id)
		for range 3 {
			req := kit.Preempting(id, "a", "test")
			req.Grant = ""
			lease := kit.MustAcquire(t, e.Store, req)
			if lease.Grant == "" || seen[lease.Grant] || len(lease.Grant) > runstore.MaxGrantID {
				t.Errorf("the store made the grant id %q, want one of its own of at most %d bytes", lease.Grant, runstore.MaxGrantID)
			}
			seen[lease.Grant] = true
			e.Append(t, e.Store, lease, "the grant is good")
		}
	}
}
