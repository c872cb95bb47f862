package cases

import (
	"fmt"
	"slices"
	"time"

	"github.com/tapestore/tapestore/conformance/harness"
	"github.com/tapestore/tapestore/conformance/internal/kit"
	"github.com/tapestore/tapestore/runstore"
)

// Runnable returns the cases that prove I9 for the indexes that the store keeps itself.
func Runnable() []harness.Case {
	return []harness.Case{
		{Guarantee: "I9", Name: "runs-are-listed-by-creation", Run: runsByCreation, Doc: `
			Nine runs are created, not in the order of their ids, and one is leased and changed. The index of runs
			lists all by the time of creation, in both directions, in pages and up to a bound, and shows the change
			at once. A store that lists by id or by last change, or with an old head, fails.`},
		{Guarantee: "I9", Name: "purged-runs-are-not-listed", Run: runsPurged, Doc: `
			One of three runs is purged and created anew. Neither index of runs lists it after the purge; after the
			creation, the index of runs lists it last, and the runnable index does not list it. A store that leaves the
			entry of a purged run, or reuses it for the new run, fails.`},
		{Guarantee: "I9", Name: "a-run-is-runnable-when-it-says-so", Run: runnableWhen, Doc: `
			A run sets its runnable time: none, now, never, in an hour, in the past while it is held. The runnable
			index lists it from that time on and never otherwise; a batch that sets none leaves the time, and a due
			run that is released is listed. A store that keeps an old entry drives a run that wants no driver.`},
		{Guarantee: "I9", Name: "a-live-lease-hides-a-runnable-run", Run: runnableLease, Doc: `
			A runnable run is acquired, renewed and released, one is created with a lease, and grants carry runnable
			times. While a lease is live, the runnable index lists the run only for a bound at the expiry or later;
			after a release, at once. A store that lists held runs wakes every idle driver for a run that has one.`},
		{Guarantee: "I9", Name: "an-abandoned-run-becomes-runnable", Run: runnableAbandoned, Doc: `
			The lease of a runnable run expires, its holder renews late, and later a second holder abandons the run
			and a third takes over. The index lists the run whenever no lease is live, with the holder that left it,
			and hides it otherwise. A store that removes the entry with the grant never lists a run whose driver has
			died.`},
		{Guarantee: "I9", Name: "a-renewed-lease-hides-its-run-until-its-expiry", Run: runnableRenewed, Doc: `
			Nine runs are leased for a short time, and six of the leases are renewed before that expiry passes. Scans
			by two handles list only the three expired runs, the others from the renewed expiry on; a release, a
			further renewal and a takeover show at once. A store that removes the entry that it passes over never
			lists the run again.`},
		{Guarantee: "I9", Name: "a-lease-that-outlasts-its-runs-time-leaves-it-found", Run: runnableOutlasted, Doc: `
			A lease is renewed beyond its run's runnable time, and a scan may move the entry to the renewed expiry. The
			lease ends before that: by a release, in a commit, by a revocation, by a short grant to a successor. A scan
			up to the run's own time then lists it. A store that leaves the entry at the renewed expiry hides the run
			from every driver until that passes.`},
		{Guarantee: "I9", Name: "a-raised-epoch-shows-the-runs-whose-leases-it-ended", Needs: []harness.Need{harness.NeedEpoch}, Run: runnableRaised, Doc: `
			Runnable runs are leased, some leases renewed, and the epoch is raised twice. After each raise both
			handles list every run at once, and one that is acquired in the new epoch is hidden again. A store that
			leaves the entry at the old expiry keeps the run from every driver until then.`},
		{Guarantee: "I9", Name: "no-runnable-run-is-lost-while-scans-move-entries", Run: runnableMoved, Doc: `
			Drivers preempt, renew, release and leave their runs while two handles scan the runnable index, at the
			present and at the end of time. At the end every run is in the index, and an entry's time agrees with its
			run. A store whose scan moves an entry by an old head loses the run, or lists it beyond its expiry.`},
		{Guarantee: "I9", Name: "runnable-runs-come-in-order-and-in-pages", Run: runnablePages, Doc: `
			Seventeen runs are runnable a second apart, in another order than their ids, and one of them is leased. The
			index lists the other sixteen by their runnable times, in both directions and at any page size. A store
			that ends a page at a leased run, or counts it, loses the runs after it.`},
		{Guarantee: "I9", Name: "no-runnable-run-is-lost-among-concurrent-drivers", Run: runnableDrivers, Doc: `
			Three drivers find six runs by the runnable index alone, drive each for a step and release it, until the
			run wants no driver. Every run comes to its last step, and none is left runnable. A store that removes an
			entry when the run is acquired, and does not add it again, leaves a run undriven.`},
	}
}

// heads returns the ids of the runs that a query over runs finds, and checks that each entry
// carries its run.
func heads(t harness.T, s runstore.RunStore, q runstore.IndexQuery) []runstore.RunID {
	t.Helper()
	var ids []runstore.RunID
	for _, entry := range kit.MustCollect(t, fmt.Sprintf("scan of %q", q.Index), runstore.Entries(t.Context(), s, q)) {
		ids = append(ids, entry.Run)
		checkHead(t, q, entry)
	}
	return ids
}

// onePage is heads for the first page only. An entry that moves between two pages may be on both.
func onePage(t harness.T, s runstore.RunStore, q runstore.IndexQuery) []runstore.RunID {
	t.Helper()
	entries, err := s.ScanIndex(t.Context(), q)
	if err != nil {
		t.Fatalf("scan of %q: %v", q.Index, err)
	}
	var ids []runstore.RunID
	for _, entry := range entries {
		ids = append(ids, entry.Run)
		checkHead(t, q, entry)
	}
	return ids
}

// checkHead fails the case unless an entry of an index of runs carries its run.
func checkHead(t harness.T, q runstore.IndexQuery, entry runstore.IndexEntry) {
	t.Helper()
	from, to := entry.Head.CreatedAt, entry.Head.CreatedAt
	if q.Index == runstore.IndexRunnable {
		from, to = entry.Head.RunnableAt, entry.Head.RunnableAt
		if expires := entry.Head.Holder.ExpiresAt; expires.After(to) {
			to = expires
		}
	}
	if entry.Head.ID != entry.Run || entry.At.Before(from) || entry.At.After(to) || entry.Record.Version != 0 {
		t.Errorf("entry of run %q at %v carries head %+v and record %+v", entry.Run, entry.At, entry.Head, entry.Record)
	}
}

func runsByCreation(t harness.T, e *harness.Env) {
	const runs = 9
	want := make([]runstore.RunID, runs)
	for i := range want {
		want[i] = runstore.RunID(fmt.Sprintf("run-%d", (i*5)%runs)) // not in the order of the ids
		spec := runstore.RunSpec{ID: want[i], Status: runstore.Status(i)}
		if i%2 == 0 {
			spec.Writes.Put(runstore.SummaryKey, []byte("summary of "+want[i]))
		}
		if _, err := e.Store.CreateRun(t.Context(), spec); err != nil {
			t.Fatalf("create: %v", err)
		}
		e.Advance(t, time.Millisecond)
	}
	other := e.Reopen(t)
	for _, limit := range []int{2, 100} {
		kit.Equal(t, "by creation", heads(t, other, runstore.IndexQuery{Index: runstore.IndexRuns, Limit: limit}), want)
		newest := slices.Clone(want)
		slices.Reverse(newest)
		kit.Equal(t, "newest first", heads(t, other, runstore.IndexQuery{Index: runstore.IndexRuns, Limit: limit, Newest: true}), newest)
	}
	// Writes to a run do not move its entry, and show at once.
	lease := e.Acquire(t, e.Store, want[3], "owner")
	b := runstore.NewBatch(want[3], lease.Fence())
	kit.WriteEverything(&b.Writes, "changed", 77)
	kit.MustCommit(t, e.Store, b)
	entries := kit.Queue(t, other, runstore.IndexRuns)
	kit.Equal(t, "the changed run as listed", entries[3].Head, e.Get(t, want[3]))
	kit.Equal(t, "its summary", string(entries[3].Head.Summary.Value), "changed")
	kit.Equal(t, "another's summary", string(entries[2].Head.Summary.Value), "summary of "+string(want[2]))
	until := entries[4].Head.CreatedAt
	kit.Equal(t, "created until then", heads(t, other, runstore.IndexQuery{Index: runstore.IndexRuns, Until: until}), want[:5])
	kit.Equal(t, "created before", heads(t, other, runstore.IndexQuery{Index: runstore.IndexRuns, Until: until.Add(-runstore.TimePrecision)}), want[:4])
}

func runsPurged(t harness.T, e *harness.Env) {
	for _, id := range []runstore.RunID{"a", "b", "c"} {
		if _, err := e.Store.CreateRun(t.Context(), runstore.RunSpec{ID: id, Runnable: runstore.After(0)}); err != nil {
			t.Fatalf("create: %v", err)
		}
		e.Advance(t, time.Millisecond)
	}
	b := runstore.NewBatch("b", runstore.InStatus(0))
	b.Purge = true
	kit.MustCommit(t, e.Store, b)
	for _, name := range []runstore.IndexName{runstore.IndexRuns, runstore.IndexRunnable} {
		kit.Equal(t, "index "+string(name), heads(t, e.Store, runstore.IndexQuery{Index: name}), []runstore.RunID{"a", "c"})
	}
	e.Create(t, "b") // created again as a new run: listed last, and not runnable
	kit.Equal(t, "runs", heads(t, e.Store, runstore.IndexQuery{Index: runstore.IndexRuns}), []runstore.RunID{"a", "c", "b"})
	kit.Equal(t, "runnable", heads(t, e.Store, runstore.IndexQuery{Index: runstore.IndexRunnable}), []runstore.RunID{"a", "c"})
}

// shows fails the case unless a scan up to until lists the run in the runnable index, or does not,
// as want says.
func shows(t harness.T, s runstore.RunStore, what string, id runstore.RunID, until time.Time, want bool) {
	t.Helper()
	found := heads(t, s, runstore.IndexQuery{Index: runstore.IndexRunnable, Until: until})
	if got := slices.Contains(found, id); got != want {
		t.Errorf("%s: the run is runnable: %t, want %t", what, got, want)
	}
}

func runnableWhen(t harness.T, e *harness.Env) {
	now := time.Time{} // as the bound of a scan
	other := e.Reopen(t)
	e.Create(t, "run")
	shows(t, other, "a run made without a time", "run", runstore.EndOfTime, false)
	set := func(when runstore.When, status runstore.Status) {
		t.Helper()
		b := runstore.NewBatch("run", runstore.Unguarded("test"))
		b.Runnable = when
		b.Status = &status
		kit.MustCommit(t, e.Store, b)
		kit.Equal(t, "status", e.Get(t, "run").Status, status)
	}
	set(runstore.After(0), 1)
	shows(t, other, "runnable at once", "run", now, true)
	set(runstore.Never(), 2)
	shows(t, other, "never", "run", runstore.EndOfTime, false)
	kit.Equal(t, "runnable at, never", e.Get(t, "run").RunnableAt, now)
	at := e.Now(t).Add(time.Hour)
	set(runstore.At(at), 3)
	shows(t, other, "in an hour, now", "run", now, false)
	shows(t, other, "in an hour, just before", "run", at.Add(-runstore.TimePrecision), false)
	shows(t, other, "in an hour, then", "run", at, true)
	e.Append(t, e.Store, e.Acquire(t, e.Store, "run", "owner"), "event")
	kit.Equal(t, "a batch that says nothing of it leaves the time", e.Get(t, "run").RunnableAt, at)
	set(runstore.At(at.Add(-2*time.Hour)), 4)
	shows(t, other, "since an hour, but held", "run", now, false)
	set(runstore.After(e.ShortTTL()), 5)
	e.Advance(t, e.ShortTTL())
	b := runstore.NewBatch("run", runstore.Unguarded("test"))
	b.Release = true
	kit.MustCommit(t, e.Store, b)
	shows(t, other, "due and free", "run", now, true)
}

func runnableLease(t harness.T, e *harness.Env) {
	ctx := t.Context()
	now := time.Time{}
	other := e.Reopen(t)
	if _, err := e.Store.CreateRun(ctx, runstore.RunSpec{ID: "run", Runnable: runstore.After(0)}); err != nil {
		t.Fatalf("create: %v", err)
	}
	shows(t, other, "free", "run", now, true)
	lease := e.Acquire(t, e.Store, "run", "owner")
	hidden := func(what string, expires time.Time) {
		t.Helper()
		shows(t, other, what+", now", "run", now, false)
		shows(t, other, what+", just before it expires", "run", expires.Add(-runstore.TimePrecision), false)
		shows(t, other, what+", when it expires", "run", expires, true)
		shows(t, other, what+", at the end of time", "run", runstore.EndOfTime, true)
	}
	hidden("held", lease.ExpiresAt)
	renewed, err := e.Store.RenewLease(ctx, runstore.RenewRequest{Fence: lease.Fence(), TTL: 2 * harness.TTL})
	if err != nil {
		t.Fatalf("renew: %v", err)
	}
	hidden("renewed", renewed.ExpiresAt)
	kit.MustRelease(t, e.Store, lease)
	shows(t, other, "released", "run", now, true)
	created, err := e.Store.CreateRun(ctx, runstore.RunSpec{ID: "held", Runnable: runstore.After(0), Lease: &runstore.LeaseSpec{Owner: "owner", TTL: harness.TTL}})
	if err != nil {
		t.Fatalf("create: %v", err)
	}
	shows(t, other, "created held", "held", now, false)
	shows(t, other, "created held, when it expires", "held", created.Lease.ExpiresAt, true)
	req := kit.Acquiring("run", "second", harness.TTL)
	req.Writes.Runnable = runstore.Never()
	second := kit.MustAcquire(t, e.Store, req)
	shows(t, other, "taken and said to want no driver", "run", runstore.EndOfTime, false)
	end := runstore.ReleaseRequest{Fence: second.Fence()}
	end.Writes.Runnable = runstore.After(0)
	if _, err := e.Store.ReleaseLease(ctx, end); err != nil {
		t.Fatalf("release: %v", err)
	}
	shows(t, other, "released and said to want a driver", "run", now, true)
}

func runnableAbandoned(t harness.T, e *harness.Env) {
	ctx := t.Context()
	now := time.Time{}
	other := e.Reopen(t)
	if _, err := e.Store.CreateRun(ctx, runstore.RunSpec{ID: "run", Runnable: runstore.After(0)}); err != nil {
		t.Fatalf("create: %v", err)
	}
	lease := kit.MustAcquire(t, e.Store, kit.Acquiring("run", "owner", e.ShortTTL()))
	e.Advance(t, e.ShortTTL())
	shows(t, other, "expired", "run", now, true)
	entries := kit.Queue(t, other, runstore.IndexRunnable)
	kit.Equal(t, "the holder that left it", entries[0].Head.Holder.Owner, "owner")
	// No other handle took over, and the holder comes back.
	if _, err := e.Store.RenewLease(ctx, runstore.RenewRequest{Fence: lease.Fence(), TTL: harness.TTL}); err != nil {
		t.Fatalf("late renewal: %v", err)
	}
	shows(t, other, "renewed late", "run", now, false)
	kit.MustRelease(t, e.Store, lease)
	kit.MustAcquire(t, e.Store, kit.Acquiring("run", "second", e.ShortTTL()))
	e.Advance(t, e.ShortTTL())
	shows(t, other, "expired again", "run", now, true)
	kit.MustAcquire(t, other, kit.Acquiring("run", "third", harness.TTL))
	shows(t, other, "taken over", "run", now, false)
}

func runnablePages(t harness.T, e *harness.Env) {
	const runs = 17
	base := e.Now(t).Add(-time.Hour)
	want := make([]runstore.RunID, runs)
	for i := range runs {
		n := (i * 7) % runs
		want[n] = runstore.RunID(fmt.Sprintf("run-%d", i))
		spec := runstore.RunSpec{ID: want[n], Runnable: runstore.At(base.Add(time.Duration(n) * time.Second))}
		if _, err := e.Store.CreateRun(t.Context(), spec); err != nil {
			t.Fatalf("create: %v", err)
		}
	}
	// A run that has a driver is passed over and does not end the page.
	e.Acquire(t, e.Store, want[4], "owner")
	want = slices.Delete(want, 4, 5)
	for _, limit := range []int{1, 3, 100} {
		q := runstore.IndexQuery{Index: runstore.IndexRunnable, Limit: limit}
		kit.Equal(t, fmt.Sprintf("pages of %d", limit), heads(t, e.Store, q), want)
		newest := slices.Clone(want)
		slices.Reverse(newest)
		q.Newest = true
		kit.Equal(t, fmt.Sprintf("pages of %d, newest first", limit), heads(t, e.Store, q), newest)
	}
}

func runnableDrivers(t harness.T, e *harness.Env) {
	const runs, drivers, steps = 6, 3, 3
	ctx := t.Context()
	for i := range runs {
		if _, err := e.Store.CreateRun(ctx, runstore.RunSpec{ID: runstore.RunID(fmt.Sprint("run-", i)), Runnable: runstore.After(0)}); err != nil {
			t.Fatalf("create: %v", err)
		}
	}
	stores := kit.OpenHandles(t, e, drivers)
	kit.RunConcurrently(t, drivers, func(i int) error {
		s := stores[i]
		for {
			entries, err := s.ScanIndex(ctx, runstore.IndexQuery{Index: runstore.IndexRunnable, Limit: runs})
			if err != nil {
				return err
			}
			for _, entry := range entries {
				lease, err := s.AcquireLease(ctx, kit.Acquiring(entry.Run, runstore.Owner(fmt.Sprint("driver-", i)), harness.TTL))
				if err != nil {
					if runstore.KindOf(err) == runstore.ErrLeaseHeld {
						continue
					}
					return err
				}
				end := runstore.ReleaseRequest{Fence: lease.Fence()}
				end.Writes.Append("step", nil)
				if entry.Head.LastSeq+1 >= steps {
					end.Writes.Runnable = runstore.Never()
				}
				if _, err := s.ReleaseLease(ctx, end); err != nil {
					return err
				}
			}
			if len(entries) == 0 {
				// No run is runnable: all are done, or the other drivers hold the rest.
				all, err := kit.Collect(runstore.Entries(ctx, s, runstore.IndexQuery{Index: runstore.IndexRunnable, Until: runstore.EndOfTime}))
				if err != nil || len(all) == 0 {
					return err
				}
			}
		}
	})
	for i := range runs {
		if run := e.Get(t, runstore.RunID(fmt.Sprint("run-", i))); run.LastSeq < steps || !run.RunnableAt.IsZero() {
			t.Errorf("%q was left at step %d of %d, runnable at %v", run.ID, run.LastSeq, steps, run.RunnableAt)
		}
	}
}
