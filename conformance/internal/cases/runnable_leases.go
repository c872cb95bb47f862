package cases

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/tapestore/tapestore/conformance/harness"
	"github.com/tapestore/tapestore/conformance/internal/kit"
	"github.com/tapestore/tapestore/runstore"
)

// createRunnable creates runs whose runnable times began an hour ago, a second apart, and returns
// their ids in that order.
func createRunnable(t harness.T, e *harness.Env, runs int) []runstore.RunID {
	t.Helper()
	base := e.Now(t).Add(-time.Hour)
	ids := make([]runstore.RunID, runs)
	for i := range ids {
		ids[i] = runstore.RunID(fmt.Sprint("run-", i))
		spec := runstore.RunSpec{ID: ids[i], Runnable: runstore.At(base.Add(time.Duration(i) * time.Second))}
		if _, err := e.Store.CreateRun(t.Context(), spec); err != nil {
			t.Fatalf("create: %v", err)
		}
	}
	return ids
}

// runnableRenewed makes entries that are due although their runs are held, because the time of an
// entry is the expiry at the grant. A scan may move such an entry.
func runnableRenewed(t harness.T, e *harness.Env) {
	const runs = 9
	ids := createRunnable(t, e, runs)
	leases := make([]runstore.Lease, runs)
	var expired []runstore.RunID
	latest := time.Time{}
	for i, id := range ids {
		leases[i] = kit.MustAcquire(t, e.Store, kit.Acquiring(id, "owner", e.ShortTTL()))
		if i%3 == 0 {
			expired = append(expired, id)
			continue
		}
		again, err := e.Store.RenewLease(t.Context(), runstore.RenewRequest{Fence: leases[i].Fence(), TTL: 2 * harness.TTL})
		if err != nil {
			t.Fatalf("renew: %v", err)
		}
		latest = again.ExpiresAt
	}
	kit.Expire(t, e)
	due := runstore.IndexQuery{Index: runstore.IndexRunnable, Limit: 2}
	sorted := func(q runstore.IndexQuery, s runstore.RunStore) []runstore.RunID {
		t.Helper()
		found := heads(t, s, q)
		slices.Sort(found)
		return found
	}
	other := e.Reopen(t)
	for range 2 { // a second scan reads what the first one moved
		for _, s := range []runstore.RunStore{e.Store, other} {
			kit.Equal(t, "expired runs", sorted(due, s), expired)
			newest := due
			newest.Newest = true
			kit.Equal(t, "expired runs, newest first", sorted(newest, s), expired)
			all := onePage(t, s, runstore.IndexQuery{Index: runstore.IndexRunnable, Until: latest, Limit: 100})
			slices.Sort(all)
			kit.Equal(t, "runs at the renewed expiry", all, ids)
		}
	}
	released := ids[1]
	kit.MustRelease(t, e.Store, leases[1])
	kit.Equal(t, "after a release", sorted(due, other), slices.Sorted(slices.Values(append(slices.Clone(expired), released))))
	if err := kit.Renew(t, e.Store, leases[2], 3*harness.TTL); err != nil {
		t.Fatalf("renew: %v", err)
	}
	shows(t, other, "renewed again, at the expiry of before", ids[2], latest, false)
	shows(t, other, "renewed again, at the end of time", ids[2], runstore.EndOfTime, true)
	e.Acquire(t, other, ids[0], "successor")
	shows(t, other, "taken over", ids[0], time.Time{}, false)
	b := runstore.NewBatch(ids[4], leases[4].Fence())
	b.Runnable = runstore.At(latest.Add(time.Hour))
	kit.MustCommit(t, e.Store, b)
	shows(t, other, "runnable after its lease, at the expiry", ids[4], latest, false)
	shows(t, other, "runnable after its lease, then", ids[4], latest.Add(time.Hour), true)
	b = runstore.NewBatch(ids[4], leases[4].Fence())
	b.Runnable, b.Release = runstore.After(0), true
	kit.MustCommit(t, e.Store, b)
	shows(t, other, "released and runnable at once", ids[4], time.Time{}, true)
}

// runnableOutlasted ends leases that were renewed beyond the runnable times of their runs, which
// are later than the expiry at the grant. A scan may have moved the entries to the renewed expiry.
// Each run must be found at its own runnable time as soon as its lease has ended.
func runnableOutlasted(t harness.T, e *harness.Env) {
	at := e.Now(t).Add(harness.TTL / 2)
	ends := map[runstore.RunID]func(l runstore.Lease){
		"released": func(l runstore.Lease) { kit.MustRelease(t, e.Store, l) },
		"released by a commit": func(l runstore.Lease) {
			b := runstore.NewBatch(l.Run, l.Fence())
			b.Release = true
			kit.MustCommit(t, e.Store, b)
		},
		"revoked": func(l runstore.Lease) {
			b := runstore.NewBatch(l.Run, runstore.Unguarded("test"))
			b.Release = true
			kit.MustCommit(t, e.Store, b)
		},
		"taken for a while": func(l runstore.Lease) {
			req := kit.Acquiring(l.Run, "successor", runstore.MinTTL)
			req.Preempt = "test"
			kit.MustAcquire(t, e.Store, req)
		},
	}
	leases := map[runstore.RunID]runstore.Lease{}
	want := slices.Sorted(maps.Keys(ends))
	for _, id := range want {
		if _, err := e.Store.CreateRun(t.Context(), runstore.RunSpec{ID: id, Runnable: runstore.At(at)}); err != nil {
			t.Fatalf("create: %v", err)
		}
		leases[id] = kit.MustAcquire(t, e.Store, kit.Acquiring(id, "owner", runstore.MinTTL))
		if err := kit.Renew(t, e.Store, leases[id], 2*harness.TTL); err != nil {
			t.Fatalf("renew: %v", err)
		}
	}
	found := func(what string, want ...runstore.RunID) {
		t.Helper()
		s := e.Reopen(t)
		got := heads(t, s, runstore.IndexQuery{Index: runstore.IndexRunnable, Until: at})
		slices.Sort(got)
		kit.Equal(t, what, got, want)
		if err := s.Close(); err != nil { // ends what the scan began in the background
			t.Fatalf("close: %v", err)
		}
	}
	found("while they are held")
	for _, id := range want {
		ends[id](leases[id])
	}
	found("once the leases have ended", want...)
}

func runnableRaised(t harness.T, e *harness.Env) {
	ids := createRunnable(t, e, 5)
	for i, id := range ids[:4] {
		lease := e.Acquire(t, e.Store, id, "owner")
		if i%2 == 0 {
			if err := kit.Renew(t, e.Store, lease, 2*harness.TTL); err != nil {
				t.Fatalf("renew: %v", err)
			}
		}
	}
	other := e.Reopen(t)
	due := runstore.IndexQuery{Index: runstore.IndexRunnable, Limit: 2}
	kit.Equal(t, "before the raise", heads(t, other, due), ids[4:])
	for _, reason := range []string{"a restore", "another restore"} {
		e.RaiseEpoch(t, e.Store, reason)
		for _, s := range []runstore.RunStore{e.Store, other} {
			found := heads(t, s, due)
			slices.Sort(found)
			kit.Equal(t, "after "+reason, found, ids)
		}
		e.Acquire(t, other, ids[1], "successor")
		shows(t, e.Store, "taken in the new epoch", ids[1], time.Time{}, false)
	}
}

func runnableMoved(t harness.T, e *harness.Env) {
	const drivers, scanners, runsOfEach = 3, 2, 2
	rounds := e.Scaled(t, "rounds of each driver", 6, 40)
	ids := createRunnable(t, e, drivers*runsOfEach)
	stores := kit.OpenHandles(t, e, drivers+scanners)
	drive := func(s runstore.RunStore, id runstore.RunID, release bool) error {
		req := kit.Acquiring(id, "driver", runstore.MinTTL)
		req.Preempt = "the driver left it"
		granted, err := s.AcquireLease(t.Context(), req)
		if err != nil {
			return err
		}
		if _, err := s.RenewLease(t.Context(), runstore.RenewRequest{Fence: granted.Fence(), TTL: harness.TTL}); err != nil || !release {
			return err
		}
		_, err = s.ReleaseLease(t.Context(), runstore.ReleaseRequest{Fence: granted.Fence()})
		return err
	}
	var scan []func() error
	for _, s := range stores[drivers:] {
		scan = append(scan, func() error {
			for _, until := range []time.Time{{}, runstore.EndOfTime} {
				q := runstore.IndexQuery{Index: runstore.IndexRunnable, Until: until, Limit: 2}
				if _, err := kit.Collect(runstore.Entries(t.Context(), s, q)); err != nil {
					return err
				}
			}
			return nil
		})
	}
	kit.During(t, func() error {
		kit.RunConcurrently(t, drivers, func(i int) error {
			for round := range rounds {
				for _, id := range ids[i*runsOfEach : (i+1)*runsOfEach] {
					if err := drive(stores[i], id, round%2 == 0); err != nil {
						return err
					}
				}
			}
			return nil
		})
		return nil
	}, scan...)
	found := onePage(t, e.Store, runstore.IndexQuery{Index: runstore.IndexRunnable, Until: runstore.EndOfTime, Limit: 100})
	slices.Sort(found)
	// A run may be on two pages, if an earlier scan moved its entry between them.
	kit.Equal(t, "runs in the index at the end", slices.Compact(found), ids)
}
