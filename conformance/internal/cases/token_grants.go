package cases

import (
	"errors"
	"fmt"

	"github.com/tapestore/tapestore/conformance/harness"
	"github.com/tapestore/tapestore/conformance/internal/kit"
	"github.com/tapestore/tapestore/runstore"
)

// grantCases prove that a grant id names one grant for ever: a late copy of a request makes no
// second grant, even after other grants.
func grantCases() []harness.Case {
	return []harness.Case{
		{Guarantee: "I2", Name: "late-copy-of-an-acquire-is-refused-after-later-grants", Run: lateAfterOthers, Doc: `
			A copy of an acquire arrives after its grant was released and others have held the lease: while it is
			free, while it is held, as a preempt, and among contenders of one handle. Every copy is ErrFenced and
			changes nothing. A store that remembers only the last grant id grants the copy; one that answers
			ErrLeaseHeld makes the caller retry for ever.`},
		{Guarantee: "I2", Name: "grant-id-is-remembered-over-many-grants", Run: lateAfterMany, Doc: `
			A holder's acquire is followed by as many grants as the store must remember (a quick run makes 16).
			Copies of the first request and of later ones are ErrFenced through another handle; a repeat of the last
			request returns its grant. A store that remembers fewer grant ids than the contract promises leases the
			run to a late copy.`},
		{Guarantee: "I2", Name: "grant-id-outlives-purge-and-re-creation", Run: grantsAfterPurge, Doc: `
			A run is purged, and copies of its old requests arrive. A late create is ErrFenced and creates nothing;
			once the run exists again, acquires with the former grant ids are ErrFenced too, before and under a new
			grant. A store that drops the grant ids with the run revives it, or leases it, for a process that has
			left.`},
		{Guarantee: "I2", Name: "grant-id-outlives-an-epoch", Needs: []harness.Need{harness.NeedEpoch}, Run: grantsAfterEpoch, Doc: `
			The epoch is raised, and copies of two older acquires arrive: one whose grant was released, one whose
			grant the epoch ended. Both are ErrFenced, while the lease is free and under a grant of the new epoch. A
			store that drops the grant ids with the old epoch leases the run to a late copy.`},
		{Guarantee: "I2", Name: "late-copy-of-a-release-is-refused-after-later-grants", Run: lateRelease, Doc: `
			An owner releases its lease without writes, acquires again, and a copy of the first release arrives. The
			copy is ErrFenced through both handles, while the lease is held and after the second release; only the
			last release may be repeated. A store that acknowledges any release of a free lease, or frees the current
			one, fails.`},
		{Guarantee: "I3", Name: "older-token-with-the-current-grant-id-is-refused", Run: olderToken, Doc: `
			A caller presents the current owner and grant id under an older token, and writes an event, a record, a
			status, a release and a purge, renews and releases. Everything is ErrFenced, while the lease is held and
			after its release, and the expiry stays. A store that compares only owner and grant id accepts a fence
			that no grant ever had.`},
	}
}

// grantEnded fails the case unless err says that the grant of the request has ended and names the
// current grant. The store need not know the former grant's token.
func grantEnded(t harness.T, what string, err error, lease runstore.Lease, run runstore.Run) {
	t.Helper()
	var fenced *runstore.FencedError
	if errors.As(err, &fenced) && fenced.Presented == 0 {
		lease.Token = 0
	}
	kit.CheckFenced(t, what, err, lease, run)
}

func lateAfterOthers(t harness.T, e *harness.Env) {
	e.Create(t, "run")
	other := e.Reopen(t)
	first := kit.Acquiring("run", "a", harness.TTL)
	lease := kit.MustAcquire(t, e.Store, first)
	e.Append(t, e.Store, lease, "by the first holder")
	kit.MustRelease(t, e.Store, lease)
	second := kit.Acquiring("run", "a", harness.TTL)
	secondLease := kit.MustAcquire(t, other, second)
	kit.MustRelease(t, e.Store, secondLease)

	refused := func(when string) {
		t.Helper()
		before, run := kit.Dump(t, e.Store, "run", "queue"), e.Get(t, "run")
		for i, s := range []runstore.RunStore{e.Store, other} {
			what := fmt.Sprintf("%s: late copy of the first request, handle %d", when, i+1)
			_, err := s.AcquireLease(t.Context(), first)
			grantEnded(t, what, err, lease, run)
		}
		preempting := first
		preempting.Preempt = "so that nothing but the grant id can refuse it"
		_, err := other.AcquireLease(t.Context(), preempting)
		grantEnded(t, when+": late copy of the first request, preempting", err, lease, run)
		_, err = e.Store.AcquireLease(t.Context(), second)
		grantEnded(t, when+": late copy of the second request", err, secondLease, run)
		kit.CheckUnchanged(t, when+": late copies", before, kit.Dump(t, e.Store, "run", "queue"))
	}
	refused("the lease is free")
	third := e.Acquire(t, e.Store, "run", "c")
	if want := secondLease.Token + 1; third.Token != want {
		t.Errorf("after late copies the next token is %v, want %v", third.Token, want)
	}
	refused("the lease is held")

	// Among contenders of one process, whose requests an adapter may judge together.
	run := e.Get(t, "run")
	kit.Contend(6, func(i int) {
		if i%2 == 0 {
			_, err := e.Store.AcquireLease(t.Context(), first)
			grantEnded(t, "late copy among contenders", err, lease, run)
			return
		}
		_, err := e.Store.AcquireLease(t.Context(), kit.Acquiring("run", "d", harness.TTL))
		kit.CheckLeaseHeld(t, "contender among late copies", err, third, harness.TTL)
	})
	e.Append(t, e.Store, third, "still held")
}

func lateAfterMany(t harness.T, e *harness.Env) {
	e.Create(t, "run")
	between := e.Scaled(t, "grants in between", 16, runstore.RememberedGrants)
	first := kit.Acquiring("run", "a", harness.TTL)
	lease := kit.MustAcquire(t, e.Store, first)
	var requests []runstore.AcquireRequest
	var leases []runstore.Lease
	for i := range between {
		req := kit.Preempting("run", "b", fmt.Sprint("grant ", i))
		requests, leases = append(requests, req), append(leases, kit.MustAcquire(t, e.Store, req))
	}
	before, run := kit.Dump(t, e.Store, "run"), e.Get(t, "run")
	other := e.Reopen(t)
	_, err := other.AcquireLease(t.Context(), first)
	grantEnded(t, fmt.Sprintf("a copy of the first request after %d grants", between), err, lease, run)
	for _, i := range []int{0, between / 2, between - 2} {
		_, err := other.AcquireLease(t.Context(), requests[i])
		grantEnded(t, fmt.Sprintf("a copy of the request of token %v after token %v", leases[i].Token, run.Token), err, leases[i], run)
	}
	kit.CheckUnchanged(t, "late copies", before, kit.Dump(t, e.Store, "run"))
	last := between - 1
	sameGrant(t, "the repeat of the last request", kit.MustAcquire(t, other, requests[last]), leases[last])
}

func grantsAfterPurge(t harness.T, e *harness.Env) {
	spec := kit.WithLease("run", "a")
	spec.Writes.Append("begun", []byte("once"))
	created, err := e.Store.CreateRun(t.Context(), spec)
	if err != nil {
		t.Fatalf("create: %v", err)
	}
	kit.MustRelease(t, e.Store, created.Lease)
	req := kit.Acquiring("run", "a", harness.TTL)
	lease := kit.MustAcquire(t, e.Store, req)
	purge(t, e.Store, lease)

	other := e.Reopen(t)
	lateLast := kit.WithLease("run", "a")
	lateLast.Lease.Grant = lease.Grant
	for what, late := range map[string]runstore.RunSpec{
		"a late copy of the create": spec, "a create with the purging grant's id": lateLast,
	} {
		again, err := other.CreateRun(t.Context(), late)
		harness.Refused(t, what+" after the purge", err, runstore.ErrFenced)
		if again.New {
			t.Errorf("%s after the purge created the run anew", what)
		}
		_, err = e.Store.GetRun(t.Context(), "run")
		harness.Refused(t, "get of the purged run after "+what, err, runstore.ErrNotFound)
	}

	e.Create(t, "run")
	first := kit.Acquiring("run", "a", harness.TTL)
	first.Grant = created.Lease.Grant
	refused := func(when string) {
		t.Helper()
		before, run := kit.Dump(t, e.Store, "run"), e.Get(t, "run")
		_, err := other.AcquireLease(t.Context(), first)
		grantEnded(t, when+": an acquire with the id of the former run's first grant", err, created.Lease, run)
		_, err = e.Store.AcquireLease(t.Context(), req)
		grantEnded(t, when+": a copy of the former run's last acquire", err, lease, run)
		kit.CheckUnchanged(t, when+": requests of the run's former life", before, kit.Dump(t, e.Store, "run"))
	}
	refused("the new run was never leased")
	next := e.Acquire(t, e.Store, "run", "b")
	if next.Token != lease.Token+1 {
		t.Errorf("the new run's first token is %v, want %v", next.Token, lease.Token+1)
	}
	refused("the new run is leased")
}

func grantsAfterEpoch(t harness.T, e *harness.Env) {
	e.Create(t, "run")
	first := kit.Acquiring("run", "a", harness.TTL)
	released := kit.MustAcquire(t, e.Store, first)
	kit.MustRelease(t, e.Store, released)
	second := kit.Acquiring("run", "a", harness.TTL)
	ended := kit.MustAcquire(t, e.Store, second)
	e.RaiseEpoch(t, e.Store, "test")
	other := e.Reopen(t)
	refused := func(when string) {
		t.Helper()
		before, run := kit.Dump(t, e.Store, "run"), e.Get(t, "run")
		_, err := other.AcquireLease(t.Context(), first)
		grantEnded(t, when+": a copy of the request whose grant was released", err, released, run)
		_, err = e.Store.AcquireLease(t.Context(), second)
		grantEnded(t, when+": a copy of the request whose grant the epoch ended", err, ended, run)
		kit.CheckUnchanged(t, when+": requests of the epoch before", before, kit.Dump(t, e.Store, "run"))
	}
	refused("in the new epoch")
	third := e.Acquire(t, e.Store, "run", "a")
	refused("under a grant of the new epoch")
	e.Append(t, e.Store, third, "still held")
}

func lateRelease(t harness.T, e *harness.Env) {
	e.Create(t, "run")
	first := e.Acquire(t, e.Store, "run", "a")
	req := runstore.ReleaseRequest{Fence: first.Fence()}
	if _, err := e.Store.ReleaseLease(t.Context(), req); err != nil {
		t.Fatalf("release: %v", err)
	}
	second := e.Acquire(t, e.Store, "run", "a")
	refused := func(when string) {
		t.Helper()
		before, run := kit.Dump(t, e.Store, "run"), e.Get(t, "run")
		for _, s := range []runstore.RunStore{e.Store, e.Reopen(t)} {
			_, err := s.ReleaseLease(t.Context(), req)
			kit.CheckFenced(t, when+": a copy of the first release", err, first, run)
		}
		kit.CheckUnchanged(t, when+": a copy of the first release", before, kit.Dump(t, e.Store, "run"))
	}
	refused("the lease is held again")
	e.Append(t, e.Store, second, "still held")
	kit.MustRelease(t, e.Store, second)
	refused("the lease is released again")
}

func olderToken(t harness.T, e *harness.Env) {
	e.Create(t, "run")
	first := e.Acquire(t, e.Store, "run", "a")
	kit.MustRelease(t, e.Store, first)
	second := e.Acquire(t, e.Store, "run", "a")
	old := second
	old.Token = first.Token
	refused := func(when string) {
		t.Helper()
		before, run := kit.Dump(t, e.Store, "run", "queue"), e.Get(t, "run")
		status := runstore.Status(7)
		for what, write := range map[string]func(w *runstore.Writes){
			"events": func(w *runstore.Writes) { w.Append("zombie", nil); w.Append("zombie", nil) },
			"event":  func(w *runstore.Writes) { w.Append("zombie", nil) },
			"record": func(w *runstore.Writes) {
				w.Put("record", []byte("zombie"), runstore.Place{Index: "queue", At: runstore.After(0)})
			},
			"status":  func(w *runstore.Writes) { w.Status, w.Runnable = &status, runstore.After(0) },
			"release": func(w *runstore.Writes) { w.Release = true },
			"purge":   func(w *runstore.Writes) { w.Purge = true },
		} {
			b := runstore.NewBatch("run", old.Fence())
			write(&b.Writes)
			_, err := e.Store.Commit(t.Context(), b)
			kit.CheckFenced(t, when+": commit of "+what+" under the older token", err, old, run)
		}
		kit.CheckFenced(t, when+": renewal under the older token", kit.Renew(t, e.Store, old, 2*harness.TTL), old, run)
		kit.CheckFenced(t, when+": release under the older token", kit.Release(t, e.Store, old), old, run)
		kit.CheckUnchanged(t, when+": the older token", before, kit.Dump(t, e.Store, "run", "queue"))
		if after := e.Get(t, "run"); !after.ExpiresAt.Equal(run.ExpiresAt) {
			t.Errorf("%s: a renewal under the older token moved the expiry from %v to %v", when, run.ExpiresAt, after.ExpiresAt)
		}
	}
	refused("the lease is held")
	kit.MustRelease(t, e.Store, second)
	refused("the lease is released")
}
