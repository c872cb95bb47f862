package cases

import (
	"maps"
	"slices"

	"github.com/tapestore/tapestore/conformance/harness"
	"github.com/tapestore/tapestore/conformance/internal/kit"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter/wakeup"
)

// RunNotify returns the cases that prove what a RunNotifier promises within one process, where no
// hint is late.
func RunNotify() []harness.Case {
	needs := []harness.Need{harness.NeedRunNotify}
	return []harness.Case{
		{Guarantee: "I10", Name: "a-write-to-a-run-wakes-its-waiters", Needs: needs, Run: runWakes, Doc: `
			Two handles wait for writes to one run: a creation, an event, a record, a status, a grant, a heartbeat
			with an event, a release, a purge, and (where the store has them) an import and a commit of several runs.
			When each call returns, both waiters have a hint. A store that hints at events alone leaves a waiter for
			a record or a release to its slow poll.`},
		{Guarantee: "I10", Name: "refused-writes-and-heartbeats-wake-no-waiter", Needs: needs, Run: refusedWakesNobody, Doc: `
			A caller repeats a commit whose guard fails, an acquire of a held lease, a release under a wrong fence,
			and a plain heartbeat. After some repeats (an earlier hint may be late) none wakes the run's waiter. A
			store that hints at refused writes lets contenders wake each other without end.`},
		{Guarantee: "I10", Name: "a-freed-lease-wakes-its-waiters", Needs: needs, Run: releaseWakes, Doc: `
			Two handles wait for the release of a lease. The holder's commits soon wake neither; a commit that releases,
			a release and a purge each wake both, and where the store has them an import and a commit of several runs that
			release and a raise of the epoch. A store that does not hint at a release lets the next holder wait for a slow
			poll; one that hints at every commit wakes contenders in vain.`},
	}
}

func runWakeups(t harness.T, s runstore.RunStore, id runstore.RunID, on runstore.WakeOn) <-chan struct{} {
	t.Helper()
	ch, err := kit.Capability[runstore.RunNotifier](s).RunWakeups(t.Context(), id, on)
	if err != nil {
		t.Fatalf("wake-ups of run %q: %v", id, err)
	}
	return ch
}

// wakesEach makes writes and fails the case unless each wakes all waiters.
func wakesEach(t harness.T, waiting map[string]<-chan struct{}, writes []namedWrite) {
	t.Helper()
	for _, w := range writes {
		for _, ch := range waiting {
			wakeup.Take(ch) // drop the hint of an earlier write
		}
		if err := w.do(); err != nil {
			t.Fatalf("%s: %v", w.name, err)
		}
		for where, ch := range waiting {
			if !wakeup.Take(ch) {
				t.Errorf("%s: no hint for the waiter at %s", w.name, where)
			}
		}
	}
}

type namedWrite struct {
	name string
	do   func() error
}

func runWakes(t harness.T, e *harness.Env) {
	ctx, id := t.Context(), runstore.RunID("run")
	waiting := map[string]<-chan struct{}{
		"the handle that writes": runWakeups(t, e.Store, id, runstore.OnWrite),
		"another handle":         runWakeups(t, e.Reopen(t), id, runstore.OnWrite),
	}
	var lease runstore.Lease
	commit := func(fill func(b *runstore.Batch)) func() error {
		return func() error {
			b := runstore.NewBatch(id, runstore.Unguarded("test"))
			fill(&b)
			_, err := e.Store.Commit(ctx, b)
			return err
		}
	}
	e.Create(t, "other")
	status := runstore.Status(3)
	writes := []namedWrite{
		{"a creation", func() error { _, err := e.Store.CreateRun(ctx, runstore.RunSpec{ID: id}); return err }},
		{"an event", commit(func(b *runstore.Batch) { b.Append("event", nil) })},
		{"a record", commit(func(b *runstore.Batch) { b.Put("record", nil) })},
		{"a status", commit(func(b *runstore.Batch) { b.Status = &status })},
		{"a grant", func() error {
			granted, err := e.Store.AcquireLease(ctx, kit.Acquiring(id, "owner", harness.TTL))
			lease = granted.Lease
			return err
		}},
		{"a heartbeat with an event", func() error {
			req := runstore.RenewRequest{Fence: lease.Fence(), TTL: harness.TTL}
			req.Writes.Append("event", nil)
			_, err := e.Store.RenewLease(ctx, req)
			return err
		}},
	}
	if mover, ok := runstore.As[runstore.Mover](e.Store); ok {
		writes = append(writes, namedWrite{"an import", func() error {
			imported := status + 1
			_, err := mover.Import(ctx, runstore.Import{Fence: lease.Fence(), Status: &imported})
			return err
		}})
	}
	if multi, ok := runstore.As[runstore.MultiCommitter](e.Store); ok {
		writes = append(writes, namedWrite{"a commit of several runs", func() error {
			batches := []runstore.Batch{runstore.NewBatch("other", runstore.Unguarded("test")), runstore.NewBatch(id, runstore.Unguarded("test"))}
			for i := range batches {
				batches[i].Append("event", nil)
			}
			_, err := multi.CommitMulti(ctx, batches)
			return err
		}})
	}
	wakesEach(t, waiting, append(writes,
		namedWrite{"a release", func() error {
			_, err := e.Store.ReleaseLease(ctx, runstore.ReleaseRequest{Fence: lease.Fence()})
			return err
		}},
		namedWrite{"a purge", commit(func(b *runstore.Batch) { b.Purge = true })}))
}

func refusedWakesNobody(t harness.T, e *harness.Env) {
	ctx, id := t.Context(), runstore.RunID("run")
	e.Create(t, id)
	lease := e.Acquire(t, e.Store, id, "owner")
	ch := runWakeups(t, e.Store, id, runstore.OnWrite)
	for _, w := range []namedWrite{
		{"a commit whose guard does not hold", func() error {
			b := runstore.NewBatch(id, runstore.AtSeq(77))
			b.Append("event", nil)
			_, err := e.Store.Commit(ctx, b)
			return err
		}},
		{"an acquire of a lease that is held", func() error { _, err := e.Store.AcquireLease(ctx, kit.Acquiring(id, "other", harness.TTL)); return err }},
		{"a release under a fence that is not current", func() error {
			another := lease
			another.Grant = "another grant"
			_, err := e.Store.ReleaseLease(ctx, runstore.ReleaseRequest{Fence: another.Fence()})
			return err
		}},
		{"a heartbeat", func() error {
			_, err := e.Store.RenewLease(ctx, runstore.RenewRequest{Fence: lease.Fence(), TTL: harness.TTL})
			return err
		}},
	} {
		awaitNoWakeup(t, w, []<-chan struct{}{ch}, func(err error) bool { return (err == nil) == (w.name == "a heartbeat") })
	}
}

// awaitNoWakeup repeats a write until it has woken no waiter several times in a row, because the
// hint of an earlier write may be late.
func awaitNoWakeup(t harness.T, w namedWrite, waiting []<-chan struct{}, expected func(err error) bool) {
	t.Helper()
	const tries = 200
	for quiet, n := 0, 0; quiet < 5; n++ {
		if err := w.do(); !expected(err) {
			t.Fatalf("%s: error %v", w.name, err)
		}
		quiet++
		for _, ch := range waiting {
			if wakeup.Take(ch) {
				quiet = 0
			}
		}
		if n == tries {
			t.Fatalf("%s still wakes waiters, after %d times", w.name, tries)
		}
	}
}

func releaseWakes(t harness.T, e *harness.Env) {
	ctx, id := t.Context(), runstore.RunID("run")
	e.Create(t, id)
	waiting := map[string]<-chan struct{}{
		"the handle that writes": runWakeups(t, e.Store, id, runstore.OnRelease),
		"another handle":         runWakeups(t, e.Reopen(t), id, runstore.OnRelease),
	}
	lease := e.Acquire(t, e.Store, id, "owner")
	var writes []namedWrite
	if mover, ok := runstore.As[runstore.Mover](e.Store); ok {
		writes = append(writes, namedWrite{"an import that releases", func() error {
			_, err := mover.Import(ctx, runstore.Import{Fence: lease.Fence(), Release: true})
			lease = e.Acquire(t, e.Store, id, "owner")
			return err
		}})
	}
	if multi, ok := runstore.As[runstore.MultiCommitter](e.Store); ok {
		e.Create(t, "other")
		writes = append(writes, namedWrite{"a commit of several runs that releases", func() error {
			b, other := kit.Appending(lease, "last"), runstore.NewBatch("other", runstore.Unguarded("test"))
			b.Release = true
			other.Append("event", nil)
			_, err := multi.CommitMulti(ctx, []runstore.Batch{other, b})
			lease = e.Acquire(t, e.Store, id, "owner")
			return err
		}})
	}
	writes = append(writes, []namedWrite{
		{"a commit that releases", func() error {
			b := kit.Appending(lease, "last")
			b.Release = true
			_, err := e.Store.Commit(ctx, b)
			lease = e.Acquire(t, e.Store, id, "owner")
			return err
		}},
		{"a release", func() error {
			_, err := e.Store.ReleaseLease(ctx, runstore.ReleaseRequest{Fence: lease.Fence()})
			return err
		}},
		{"a purge", func() error {
			b := runstore.NewBatch(id, runstore.Unguarded("test"))
			b.Purge = true
			_, err := e.Store.Commit(ctx, b)
			return err
		}},
	}...)
	if _, ok := runstore.As[runstore.EpochManager](e.Store); ok {
		writes = append(writes, namedWrite{"a raise of the epoch", func() error { e.RaiseEpoch(t, e.Store, "test"); return nil }})
	}
	awaitNoWakeup(t, namedWrite{"a commit of the holder", func() error {
		_, err := e.Store.Commit(ctx, kit.Appending(lease, "work"))
		return err
	}}, slices.Collect(maps.Values(waiting)), func(err error) bool { return err == nil })
	wakesEach(t, waiting, writes)
}
