package cases

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/tapestore/tapestore/conformance/harness"
	"github.com/tapestore/tapestore/conformance/internal/kit"
	"github.com/tapestore/tapestore/conformance/internal/panics"
	"github.com/tapestore/tapestore/runstore"
)

// An engine may apply appends to several runs in one step (group commit across runs). These cases
// provoke that: one handle appends to more than ten runs at once, and each append must pass or fail
// by the fence of its own run.

// manyRunsCases are the cases of I3 in which one handle appends to many runs at once.
func manyRunsCases() []harness.Case {
	return []harness.Case{
		{Guarantee: "I3", Name: "appends-to-many-runs-at-once-are-fenced-one-by-one", Run: manyFences, Doc: `
			One handle appends to a dozen runs at the same moment, some under sound fences and eight under fences
			that are each bad in one part (preempted, released, older token, forged, strict and expired, purged).
			Sound appends apply, bad ones get their own error, and no bad one is in a journal. A store whose group
			commit checks part of the fence fails.`},
		{Guarantee: "I3", Name: "appends-to-many-runs-at-once-lose-to-a-preempt-held-open", Needs: []harness.Need{harness.NeedBlockWriters}, Run: manyHeldOpen, Doc: `
			Preempts of three runs are begun and held open at the engine while the old holder appends to twelve runs.
			After the preempts are acknowledged, nothing of the old holder is added; an append succeeded only if it
			comes before the preempt in the journal. The nine other appends succeed. A store whose group commit reads
			the fence before it has the run's lock fails.`},
	}
}

// badFence is one way to make a fence invalid, with no other defect.
type badFence struct {
	name string
	// spoil returns the lease to append under. lease is the run's first grant, of owner "pod".
	spoil func(t harness.T, e *harness.Env, lease runstore.Lease) runstore.Lease
	// want is the expected error, if it is not ErrFenced.
	want error
}

// badFences returns one badFence for each part of a fence.
func badFences() []badFence {
	again := func(t harness.T, e *harness.Env, lease runstore.Lease) runstore.Lease {
		kit.MustRelease(t, e.Store, lease)
		return kit.MustAcquire(t, e.Store, kit.Acquiring(lease.Run, lease.Owner, harness.TTL))
	}
	return []badFence{
		{"preempted by its own owner's name", func(t harness.T, e *harness.Env, lease runstore.Lease) runstore.Lease {
			kit.MustAcquire(t, e.Store, kit.Preempting(lease.Run, lease.Owner, "test"))
			return lease
		}, nil},
		{"released, and acquired again by its own owner's name", func(t harness.T, e *harness.Env, lease runstore.Lease) runstore.Lease {
			again(t, e, lease)
			return lease
		}, nil},
		{"released", func(t harness.T, e *harness.Env, lease runstore.Lease) runstore.Lease {
			kit.MustRelease(t, e.Store, lease)
			return lease
		}, nil},
		{"with an earlier token", func(t harness.T, e *harness.Env, lease runstore.Lease) runstore.Lease {
			forged := again(t, e, lease)
			forged.Token = lease.Token
			return forged
		}, nil},
		{"with another grant id", func(_ harness.T, _ *harness.Env, lease runstore.Lease) runstore.Lease {
			lease.Grant = runstore.NewGrantID()
			return lease
		}, nil},
		{"with another owner", func(_ harness.T, _ *harness.Env, lease runstore.Lease) runstore.Lease {
			lease.Owner = "somebody"
			return lease
		}, nil},
		{"strict and expired", func(t harness.T, e *harness.Env, lease runstore.Lease) runstore.Lease {
			kit.MustRelease(t, e.Store, lease)
			req := kit.Acquiring(lease.Run, lease.Owner, e.ShortTTL())
			req.Strict = true
			strict := kit.MustAcquire(t, e.Store, req)
			kit.Expire(t, e)
			return strict
		}, runstore.ErrLeaseExpired},
		{"of a run that was purged", func(t harness.T, e *harness.Env, lease runstore.Lease) runstore.Lease {
			purge(t, e.Store, lease)
			return lease
		}, runstore.ErrNotFound},
	}
}

// manyFences starts each round with another run, because an engine with group commit may send the
// first appends alone.
func manyFences(t harness.T, e *harness.Env) {
	const sound = 4
	rounds := e.Scaled(t, "rounds", 2, 3)
	bad := badFences()
	n := sound + len(bad)
	former := e.Reopen(t)
	leases := heldRuns(t, e, former, n)
	for i, b := range bad {
		leases[sound+i] = b.spoil(t, e, leases[sound+i])
	}
	want := ""
	for round := range rounds {
		errs := make([]error, n)
		kit.Contend(n, func(k int) {
			i := (k + round*n/rounds) % n
			_, errs[i] = former.Commit(t.Context(), kit.Appending(leases[i], fmt.Sprint("round ", round)))
		})
		want += fmt.Sprintf(" round %d@%v", round, leases[0].Token)
		for i, lease := range leases[:sound] {
			if errs[i] != nil {
				t.Errorf("round %d: an append to %q under the current grant, beside others: %v", round, lease.Run, errs[i])
				continue
			}
			if got := " " + kit.JournalText(kit.Journal(t, e.Store, lease.Run)); got != want {
				t.Errorf("round %d: the journal of %q is%s, want%s", round, lease.Run, got, want)
			}
		}
		for i, b := range bad {
			lease, err := leases[sound+i], errs[sound+i]
			what := fmt.Sprintf("round %d: an append beside others, %s", round, b.name)
			if b.want != nil {
				harness.Refused(t, what, err, b.want)
			} else {
				kit.CheckFenced(t, what, err, lease, e.Get(t, lease.Run))
			}
			if errors.Is(b.want, runstore.ErrNotFound) {
				_, err := e.Store.GetRun(t.Context(), lease.Run)
				harness.Refused(t, what+" then its run", err, b.want)
			} else if events := kit.Journal(t, e.Store, lease.Run); len(events) > 0 {
				t.Errorf("%s is in the journal: %s", what, kit.JournalText(events))
			}
		}
		if t.Failed() {
			return
		}
	}
}

// heldRuns creates n runs whose leases one handle holds under one owner.
func heldRuns(t harness.T, e *harness.Env, s runstore.RunStore, n int) []runstore.Lease {
	t.Helper()
	leases := make([]runstore.Lease, n)
	kit.RunConcurrently(t, n, func(i int) error {
		created, err := s.CreateRun(t.Context(), kit.WithLease(runstore.RunID(fmt.Sprintf("run-%02d", i)), "pod"))
		leases[i] = created.Lease
		return err
	})
	return leases
}

// manyHeldOpen holds three preempts open, because an engine with group commit may send the first
// appends alone.
func manyHeldOpen(t harness.T, e *harness.Env) {
	const preempted, n = 3, 12
	former := e.Reopen(t)
	successors := make([]runstore.RunStore, preempted) // one handle each, because a handle may limit its concurrent writes
	for i := range successors {
		successors[i] = e.Reopen(t)
	}
	leases := heldRuns(t, e, former, n)
	var grants, others, writers sync.WaitGroup
	var blocked kit.BlockedWriters
	open, bound := 1, kit.ArrivalTime
	if e.BlockPuts != nil {
		open, bound = preempted, 2*time.Second // the appends to the other runs go on and end the wait
		blocked = kit.Block(t, e.BlockPuts)
	} else {
		blocked = kit.BlockWriters(t, e)
	}

	next, seen, failed := make([]runstore.Granted, preempted), make([][]runstore.Event, preempted), make([]error, preempted)
	for i := range preempted {
		req := kit.Preempting(leases[i].Run, leases[i].Owner, "test")
		req.Writes.Append("test", []byte("taken over"))
		req.Writes.Put("claim", []byte("taken over"))
		successor := successors[i]
		grants.Go(panics.Guarded(t, func() {
			if next[i], failed[i] = successor.AcquireLease(t.Context(), req); failed[i] == nil {
				seen[i], failed[i] = successor.ReadJournal(t.Context(), req.Run, 1, runstore.MaxPage)
			}
		}))
	}
	blocked.AwaitMany(t, open, closedAfter(&grants))
	errs := make([]error, n)
	others.Add(n - preempted)
	for i := range n {
		writers.Go(panics.Guarded(t, func() {
			if i >= preempted {
				defer others.Done()
			}
			_, errs[i] = former.Commit(t.Context(), kit.Appending(leases[i], "former"))
		}))
	}
	kit.WaitAtMost(t, closedAfter(&others), bound)
	blocked.Resume()
	writers.Wait()
	grants.Wait()

	if err := errors.Join(failed...); err != nil {
		t.Fatalf("preempt: %v", err)
	}
	for i, old := range leases {
		final := kit.Journal(t, e.Store, old.Run)
		if i >= preempted {
			if got, want := kit.JournalText(final), fmt.Sprintf("former@%v", old.Token); errs[i] != nil || got != want {
				t.Errorf("an append to %q, which nobody preempted: error %v, the journal is %q, want %q", old.Run, errs[i], got, want)
			}
			continue
		}
		what := fmt.Sprintf("%q, preempted by its own owner's name", old.Run)
		nothingAfter(t, what, final, seen[i], old, next[i].Lease)
		if errs[i] != nil {
			kit.CheckFenced(t, what+": the former holder's append", errs[i], old, e.Get(t, old.Run))
		}
		want := fmt.Sprintf("taken over@%v", next[i].Lease.Token)
		if errs[i] == nil { // the append came before the preempt, under its own token
			want = fmt.Sprintf("former@%v ", old.Token) + want
		}
		if got := kit.JournalText(final); got != want {
			t.Errorf("%s: the journal is %q after the answer %v, want %q", what, got, errs[i], want)
		}
	}
}

// closedAfter returns a channel that is closed when wg is done.
func closedAfter(wg *sync.WaitGroup) <-chan struct{} {
	done := make(chan struct{})
	go func() {
		defer close(done)
		wg.Wait()
	}()
	return done
}
