package cases

import (
	"fmt"
	"slices"
	"time"

	"github.com/tapestore/tapestore/conformance/harness"
	"github.com/tapestore/tapestore/conformance/internal/kit"
	"github.com/tapestore/tapestore/runstore"
)

// Former returns the cases that prove what a run and its records report about the grants under
// which they changed, and which runs the index of runs lists.
func Former() []harness.Case {
	return []harness.Case{
		{Guarantee: "I2", Name: "a-successor-learns-how-the-former-grant-ended", Run: formerEnds, Doc: `
			A run's grants end in every way: release, expiry, expiry followed by a preempt, handoff, preempt,
			revocation, a releasing batch, a purge. The next grant, its repeat and the run all report how the former
			grant ended, and a preempted holder is shown after a preempt only. A store that reports an expiry as a
			release keeps the successor from recovering what a crashed holder left.`},
		{Guarantee: "I2", Name: "a-successor-learns-that-an-epoch-ended-the-former-grant", Needs: []harness.Need{harness.NeedEpoch}, Run: formerEpoch, Doc: `
			A lease is held when the epoch is raised, and another owner acquires it. The grant, its repeat and the
			run report that the former grant was revoked. A store that reports no end, a release or an expiry hides
			from the successor that an operator ended the former grant.`},
		{Guarantee: "I3", Name: "records-carry-the-token-of-their-changes", Run: recordTokens, Doc: `
			Records are written by a create, a fenced commit, an acquire, a renewal, a release and an unfenced batch,
			and one is deleted and made again. Each record names the token of its creation and of its last change, 0
			without a fence, alike in reads, in the index and in the summary; an old holder's refused put alters
			neither. A store that stamps the run's last token on every record fails.`},
		{Guarantee: "I9", Name: "unlisted-runs-are-in-no-list-of-runs", Run: unlistedRuns, Doc: `
			Listed and unlisted runs are created, used, purged and created anew with the setting exchanged. The index
			of runs holds only the listed ones, oldest or newest first and at any page size; the runnable index,
			queues and the feed hold both. A store that lists every run, or leaves unlisted runs out of the runnable
			index, fails.`},
	}
}

// sameFormer fails the case unless a grant, its repeat and the run all report that the former grant
// ended as want says.
func sameFormer(t harness.T, e *harness.Env, req runstore.AcquireRequest, want runstore.GrantEnd) runstore.Lease {
	t.Helper()
	granted, err := e.Store.AcquireLease(t.Context(), req)
	if err != nil {
		t.Fatalf("acquire for %q: %v", req.Owner, err)
	}
	again, err := e.Reopen(t).AcquireLease(t.Context(), req)
	if err != nil {
		t.Fatalf("acquire for %q, repeated: %v", req.Owner, err)
	}
	holder := e.Get(t, req.Run).Holder
	if granted.Former != want || again.Former != want || holder.Former != want {
		t.Errorf("the grant before that of %q: %v, %v for a repeat, %v in the run; want %v", req.Owner, granted.Former, again.Former, holder.Former, want)
	}
	if (holder.Preempted != runstore.Preempted{}) != (want == runstore.EndPreempted) {
		t.Errorf("the holder %q shows %+v as preempted after a grant that was %v", req.Owner, holder.Preempted, want)
	}
	return granted.Lease
}

func formerEnds(t harness.T, e *harness.Env) {
	e.Create(t, "run")
	lease := sameFormer(t, e, kit.Acquiring("run", "first", harness.TTL), runstore.EndNone)
	kit.MustRelease(t, e.Store, lease)
	short := kit.Acquiring("run", "short", e.ShortTTL())
	sameFormer(t, e, short, runstore.EndReleased)
	kit.Expire(t, e)
	lease = sameFormer(t, e, kit.Acquiring("run", "late", harness.TTL), runstore.EndExpired)
	kit.MustRelease(t, e.Store, lease)
	sameFormer(t, e, kit.Acquiring("run", "short", e.ShortTTL()), runstore.EndReleased)
	kit.Expire(t, e)
	lease = sameFormer(t, e, kit.Preempting("run", "late operator", "what has expired"), runstore.EndExpired)
	sameFormer(t, e, handingOff(lease, kit.Acquiring("run", "successor", harness.TTL)), runstore.EndHandedOff)
	sameFormer(t, e, kit.Preempting("run", "operator", "test"), runstore.EndPreempted)
	revoke := runstore.NewBatch("run", runstore.Unguarded("test"))
	revoke.Release = true
	kit.MustApply(t, e.Store, "revocation", revoke)
	free := kit.Preempting("run", "needless", "nothing to preempt")
	lease = sameFormer(t, e, free, runstore.EndRevoked)
	end := runstore.NewBatch("run", lease.Fence())
	end.Release = true
	kit.MustApply(t, e.Store, "the holder's own release in a batch", end)
	sameFormer(t, e, kit.Preempting("run", "last", "nothing to preempt"), runstore.EndReleased)
	kit.MustRelease(t, e.Store, sameFormer(t, e, kit.Preempting("run", "operator", "again"), runstore.EndPreempted))
	lease = sameFormer(t, e, kit.Acquiring("run", "after a preempt", harness.TTL), runstore.EndReleased)

	purge(t, e.Store, lease)
	spec := kit.WithLease("run", "reborn")
	created, err := e.Store.CreateRun(t.Context(), spec)
	if err != nil || created.Former != runstore.EndRevoked || created.Run.Holder.Former != runstore.EndRevoked {
		t.Errorf("create after a purge: former grant %v, %v in the run, error %v; want revoked", created.Former, created.Run.Holder.Former, err)
	}
	kit.MustRelease(t, e.Store, created.Lease)
	unfenced := runstore.NewBatch("run", runstore.Unguarded("test"))
	unfenced.Purge = true
	kit.MustApply(t, e.Store, "purge of a free run", unfenced)
	created, err = e.Store.CreateRun(t.Context(), kit.WithLease("run", "third life"))
	if err != nil || created.Former != runstore.EndReleased || created.Run.Holder.Former != runstore.EndReleased {
		t.Errorf("create after the purge of a free run: former grant %v, %v in the run, error %v; want released", created.Former, created.Run.Holder.Former, err)
	}
	created, err = e.Store.CreateRun(t.Context(), kit.WithLease("fresh", "first"))
	if err != nil || created.Former != runstore.EndNone || created.Run.Holder.Former != runstore.EndNone {
		t.Errorf("create: former grant %v, %v in the run, error %v; want none", created.Former, created.Run.Holder.Former, err)
	}
}

func formerEpoch(t harness.T, e *harness.Env) {
	e.Create(t, "run")
	e.Acquire(t, e.Store, "run", "before")
	e.RaiseEpoch(t, e.Store, "test")
	sameFormer(t, e, kit.Acquiring("run", "after", harness.TTL), runstore.EndRevoked)
}

func recordTokens(t harness.T, e *harness.Env) {
	spec := kit.WithLease("run", "a")
	spec.Writes.Put("by create", nil)
	created, err := e.Store.CreateRun(t.Context(), spec)
	if err != nil {
		t.Fatalf("create: %v", err)
	}
	one := created.Lease.Token
	other := e.Reopen(t)
	check := func(key runstore.RecordKey, first, last runstore.Token) {
		t.Helper()
		r := kit.Record(t, other, "run", key)
		if r.Created.Token != first || r.Updated.Token != last {
			t.Errorf("record %q is created under token %v and updated under %v, want %v and %v", key, r.Created.Token, r.Updated.Token, first, last)
		}
	}
	check("by create", one, one)
	b := runstore.NewBatch("run", created.Lease.Fence())
	b.Put("record", []byte("one"), runstore.Place{Index: "queue", At: runstore.After(0)})
	b.Put(runstore.SummaryKey, []byte("one"))
	kit.MustApply(t, e.Store, "fenced", b)
	check("record", one, one)

	req := kit.Preempting("run", "b", "test")
	req.Writes.Put("record", []byte("two"), runstore.Place{Index: "queue", At: runstore.After(0)})
	two := kit.MustAcquire(t, e.Store, req)
	check("record", one, two.Token)
	zombie := runstore.NewBatch("run", created.Lease.Fence())
	zombie.Put("record", []byte("zombie"))
	_, err = e.Store.Commit(t.Context(), zombie)
	kit.CheckFenced(t, "the former holder's checkpoint", err, created.Lease, e.Get(t, "run"))
	check("record", one, two.Token)

	b = runstore.NewBatch("run", runstore.AtVersion(runstore.SummaryKey, 1))
	b.Put(runstore.SummaryKey, []byte("unfenced"))
	b.Put("unfenced", nil)
	kit.MustApply(t, e.Store, "unfenced", b)
	check(runstore.SummaryKey, one, 0)
	check("unfenced", 0, 0)
	renew := runstore.RenewRequest{Fence: two.Fence(), TTL: harness.TTL}
	renew.Writes.Put("unfenced", []byte("fenced"))
	if _, err := e.Store.RenewLease(t.Context(), renew); err != nil {
		t.Fatalf("renew: %v", err)
	}
	check("unfenced", 0, two.Token)
	release := runstore.ReleaseRequest{Fence: two.Fence()}
	release.Writes.Put(runstore.SummaryKey, []byte("released"))
	if _, err := e.Store.ReleaseLease(t.Context(), release); err != nil {
		t.Fatalf("release: %v", err)
	}
	check(runstore.SummaryKey, one, two.Token)
	kit.Equal(t, "summary in the run", e.Get(t, "run").Summary, kit.Record(t, other, "run", runstore.SummaryKey))
	entries := kit.Queue(t, other, "queue")
	if len(entries) != 1 {
		t.Fatalf("%d entries, want 1", len(entries))
	}
	kit.Equal(t, "record in the index", entries[0].Record, kit.Record(t, other, "run", "record"))
	// A record that is created again starts with new stamps.
	b = runstore.NewBatch("run", runstore.Unguarded("test"))
	b.Delete("record")
	kit.MustApply(t, e.Store, "deletion", b)
	b = runstore.NewBatch("run", runstore.Unguarded("test"))
	b.Put("record", nil)
	kit.MustApply(t, e.Store, "put", b)
	check("record", 0, 0)
}

func unlistedRuns(t harness.T, e *harness.Env) {
	create := func(id runstore.RunID, unlisted bool) {
		t.Helper()
		spec := runstore.RunSpec{ID: id, Unlisted: unlisted, Runnable: runstore.After(0)}
		spec.Writes.Append("created", nil)
		created, err := e.Store.CreateRun(t.Context(), spec)
		if err != nil || created.Run.Unlisted != unlisted || e.Get(t, id).Unlisted != unlisted {
			t.Fatalf("create %q: unlisted %t, error %v; want %t", id, created.Run.Unlisted, err, unlisted)
		}
		putIndexed(t, e.Store, id, "record", "queue", runstore.After(0))
		e.Advance(t, time.Millisecond)
	}
	create("a", false)
	create("helper-1", true)
	create("b", false)
	create("helper-2", true)
	lists := func(when string, listed, all []runstore.RunID) {
		t.Helper()
		for _, limit := range []int{1, 100} {
			kit.Equal(t, when+": listed", heads(t, e.Store, runstore.IndexQuery{Index: runstore.IndexRuns, Limit: limit}), listed)
			newest := slices.Clone(listed)
			slices.Reverse(newest)
			kit.Equal(t, when+": listed, newest first",
				heads(t, e.Store, runstore.IndexQuery{Index: runstore.IndexRuns, Limit: limit, Newest: true}), newest)
		}
		kit.Equal(t, when+": runnable", heads(t, e.Store, runstore.IndexQuery{Index: runstore.IndexRunnable, Limit: 100}), all)
	}
	lists("created", []runstore.RunID{"a", "b"}, []runstore.RunID{"a", "helper-1", "b", "helper-2"})
	var placed []runstore.RunID
	for _, entry := range kit.Queue(t, e.Store, "queue") {
		placed = append(placed, entry.Run)
	}
	kit.Equal(t, "runs of the records in a queue", fmt.Sprint(placed), fmt.Sprint([]runstore.RunID{"a", "helper-1", "b", "helper-2"}))
	kit.FeedOf(t, e, e.Store, 4)

	// A lease and a commit leave the run unlisted; a purge ends the setting.
	lease := e.Acquire(t, e.Store, "helper-1", "owner")
	e.Append(t, e.Store, lease, "work")
	kit.MustRelease(t, e.Store, lease)
	lists("used", []runstore.RunID{"a", "b"}, []runstore.RunID{"a", "helper-1", "b", "helper-2"})
	for _, id := range []runstore.RunID{"helper-1", "a"} {
		purge(t, e.Store, e.Acquire(t, e.Store, id, "owner"))
	}
	lists("purged", []runstore.RunID{"b"}, []runstore.RunID{"b", "helper-2"})
	create("helper-1", false)
	create("a", true)
	lists("exchanged", []runstore.RunID{"b", "helper-1"}, []runstore.RunID{"b", "helper-2", "helper-1", "a"})
}
