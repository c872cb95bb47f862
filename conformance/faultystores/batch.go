package faultystores

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/tapestore/tapestore/runstore"
)

// batchStores apply batches wrongly.
func batchStores() []faultyStore {
	return []faultyStore{
		{"version-not-checked", "Record versions are not compared: the last writer wins.",
			"I4/a-conflict-tells-the-current-version", versionUnchecked},
		{"guards-beyond-the-first-hundred", "Of many record versions the first hundred are compared.",
			"I12/fullest-batch-works", hundredGuards},
		{"guards-judged-from-memory", "A handle judges a guard by what it wrote last, though another handle has written since.",
			"I4/guards-are-judged-by-what-other-handles-wrote", guardsFromMemory},
		{"version-restarts", "A record that is deleted and made again begins at version 1, where old claims match it.",
			"I4/a-record-made-anew-repeats-no-version", versionRestarts},
		{"half-a-batch-applied", "Events are appended, and the records that go with them are not.",
			"I4/a-batch-applies-whole", halfBatch},
		{"batch-in-two-steps", "Events are appended first and records put afterwards, as two writes.",
			"I4/readers-never-see-half-a-batch", twoSteps},
		{"creation-in-two-steps", "A run is inserted, and its lease and writes follow.",
			"I4/readers-never-see-half-a-creation", createInSteps},
		{"several-runs-in-several-steps", "A commit over several runs is one commit after another.",
			"I4/a-failing-guard-leaves-nothing-on-any-run", multiInSteps},
		{"several-runs-without-their-releases", "A commit over several runs leaves out that a batch releases.",
			"I4/a-commit-over-several-runs-applies-whole", multiWithoutReleases},
		{"existing-run-without-its-summary", "A create returns a run that exists without its summary.",
			"I4/creation-with-writes-is-one-step", existingBare},
		{"seq-with-gaps", "Seqs come from a sequence that skips numbers.",
			"I5/seq-is-dense-under-many-writers", seqGaps},
		{"acknowledged-and-lost", "Sometimes a commit is acknowledged and not written.",
			"I5/seq-is-dense-under-many-writers", acknowledgedLost},
		{"batch-id-not-remembered", "A repeated batch is applied again.",
			"I8/a-repeat-gets-the-first-result", idForgotten},
		{"epoch-forgets-batch-ids", "Raising the epoch removes the ids of the batches before it.",
			"I8/batch-id-outlives-an-epoch", epochForgetsBatches},
		{"batch-id-of-any-run", "A batch is taken for one of the same id on another run.",
			"I8/a-batch-id-belongs-to-its-run", idOfAnyRun},
		{"several-runs-repeated-run-by-run", "A repeat of a commit over several runs is applied again to the runs that have forgotten it.",
			"I8/a-repeat-over-several-runs-applies-all-or-nothing", multiRunByRun},
		{"blind-retry", "After a lost reply the adapter sends the write again without its id.",
			"I8/a-repeat-gets-the-first-result", blindRetry},
		{"definite-error-although-applied", "A commit whose reply was lost is reported as not applied.",
			"I11/a-refused-batch-leaves-nothing-under-load", definiteAlthoughApplied},
		{"cancelled-but-applied", "A write whose context ends in flight is reported as not applied, and arrives later.",
			"I11/a-context-that-ends-in-flight-is-obeyed", cancelledApplied},
	}
}

func versionUnchecked(s *store) {
	s.commit = func(ctx context.Context, h *handle, b runstore.Batch) (runstore.Committed, error) {
		g := b.Guards()
		g.Versions = nil
		return h.Handle.Commit(ctx, reguarded(b, g))
	}
}

func hundredGuards(s *store) {
	s.commit = func(ctx context.Context, h *handle, b runstore.Batch) (runstore.Committed, error) {
		g := b.Guards()
		if n := len(g.Versions); n <= 100 || n > runstore.MaxGuards {
			return h.Handle.Commit(ctx, b)
		}
		g.Versions = g.Versions[:100]
		return h.Handle.Commit(ctx, reguarded(b, g))
	}
}

func multiWithoutReleases(s *store) {
	s.multi = func(ctx context.Context, h *handle, batches []runstore.Batch) ([]runstore.Committed, error) {
		batches = slices.Clone(batches)
		for i := range batches {
			batches[i].Release = false
		}
		return h.Handle.CommitMulti(ctx, batches)
	}
}

func existingBare(s *store) {
	s.create = func(ctx context.Context, h *handle, spec runstore.RunSpec) (runstore.Created, error) {
		created, err := ownCreate(ctx, h, spec)
		if !created.New {
			created.Run.Summary = runstore.Record{}
		}
		return created, err
	}
}

func guardsFromMemory(s *store) {
	type written struct {
		by  *handle
		run runstore.RunID
	}
	var mu sync.Mutex
	last := map[written]runstore.Seq{}
	s.commit = func(ctx context.Context, h *handle, b runstore.Batch) (runstore.Committed, error) {
		mu.Lock()
		defer mu.Unlock()
		own := written{h, b.Run()}
		if seq, ok := last[own]; ok && b.Guards().NextSeq != 0 && b.Guards().NextSeq != seq+1 {
			return runstore.Committed{}, &runstore.OpError{Op: "commit", Run: b.Run(), Err: &runstore.ConflictError{Guard: "seq", NextSeq: seq + 1}}
		}
		done, err := h.Handle.Commit(ctx, b)
		if err == nil {
			last[own] = done.LastSeq
		}
		return done, err
	}
}

func versionRestarts(s *store) {
	var mu sync.Mutex
	base := map[runstore.RecordKey]runstore.Version{} // by key: a case uses one run
	s.commit = func(ctx context.Context, h *handle, b runstore.Batch) (runstore.Committed, error) {
		mu.Lock()
		defer mu.Unlock()
		g := b.Guards()
		deleted := map[runstore.RecordKey]runstore.Version{}
		for i, v := range g.Versions {
			if v.Version > 0 {
				g.Versions[i].Version += base[v.Key]
			}
			deleted[v.Key] = g.Versions[i].Version
		}
		done, err := h.Handle.Commit(ctx, reguarded(b, g))
		if err != nil {
			return done, err
		}
		for i, r := range b.Records {
			if r.Delete {
				base[r.Key] = max(base[r.Key], deleted[r.Key])
			} else {
				done.Versions[i] -= base[r.Key]
			}
		}
		return done, nil
	}
	s.records = func(ctx context.Context, h *handle, id runstore.RunID, q runstore.RecordQuery) ([]runstore.Record, error) {
		mu.Lock()
		defer mu.Unlock()
		records, err := h.Handle.ReadRecords(ctx, id, q)
		for i, r := range records {
			records[i].Version -= base[r.Key]
		}
		return records, err
	}
}

func halfBatch(s *store) {
	s.commit = func(ctx context.Context, h *handle, b runstore.Batch) (runstore.Committed, error) {
		records := b.Records
		if len(b.Events) > 0 {
			b.Records = nil
		}
		done, err := h.Handle.Commit(ctx, b)
		for range len(records) - len(done.Versions) {
			done.Versions = append(done.Versions, 1)
		}
		return done, err
	}
}

func twoSteps(s *store) {
	s.commit = func(ctx context.Context, h *handle, b runstore.Batch) (runstore.Committed, error) {
		if len(b.Events) == 0 || len(b.Records) == 0 {
			return h.Handle.Commit(ctx, b)
		}
		rest := reguarded(b, runstore.Guards{})
		rest.ID, rest.Events = "", nil
		rest.Records = append([]runstore.RecordWrite(nil), b.Records...)
		for i := range rest.Records {
			rest.Records[i].Event = 0
		}
		b.Records, b.Status, b.Runnable, b.Release = nil, nil, runstore.When{}, false
		first, err := h.Handle.Commit(ctx, b)
		if err != nil || first.Replayed {
			return first, err
		}
		s.pauseBetweenSteps()
		second, err := h.Handle.Commit(ctx, rest)
		first.Versions = second.Versions
		return first, err
	}
}

func createInSteps(s *store) {
	s.create = func(ctx context.Context, h *handle, spec runstore.RunSpec) (runstore.Created, error) {
		bare := spec
		bare.Lease, bare.Writes = nil, runstore.Writes{}
		created, err := h.Handle.CreateRun(ctx, bare)
		if err != nil || !created.New || spec.Lease == nil {
			return created, err
		}
		s.pauseBetweenSteps()
		granted, err := ownAcquire(ctx, h, runstore.AcquireRequest{Run: spec.ID, LeaseSpec: *spec.Lease, Writes: spec.Writes})
		if err != nil {
			return created, err
		}
		created.Lease, created.Committed, created.Former = granted.Lease, granted.Committed, granted.Former
		created.Run, err = h.Handle.GetRun(ctx, spec.ID)
		return created, err
	}
}

func multiInSteps(s *store) {
	s.multi = func(ctx context.Context, h *handle, batches []runstore.Batch) ([]runstore.Committed, error) {
		if err := runstore.CheckMulti(batches); err != nil {
			return nil, err
		}
		var all []runstore.Committed
		for _, b := range batches {
			done, err := h.Handle.Commit(ctx, b)
			if err != nil {
				return nil, err
			}
			all = append(all, done)
		}
		return all, nil
	}
}

// multiRunByRun gives each commit over several runs a new identity by a further batch on another
// run, so that a repeat is recognized only by the ids of its batches.
func multiRunByRun(s *store) {
	s.multi = func(ctx context.Context, h *handle, batches []runstore.Batch) ([]runstore.Committed, error) {
		if _, err := h.Handle.CreateRun(ctx, runstore.RunSpec{ID: "beside"}); err != nil {
			return nil, err
		}
		beside := runstore.NewBatch("beside", runstore.Unguarded("test"))
		beside.ID = runstore.NewBatchID()
		done, err := h.Handle.CommitMulti(ctx, append(slices.Clone(batches), beside))
		if err != nil {
			return nil, err
		}
		return done[:len(batches)], nil
	}
}

func seqGaps(s *store) {
	gap := func(seq runstore.Seq) runstore.Seq { return seq + seq/10 }
	s.commit = func(ctx context.Context, h *handle, b runstore.Batch) (runstore.Committed, error) {
		done, err := h.Handle.Commit(ctx, b)
		done.FirstSeq, done.LastSeq = gap(done.LastSeq)-(done.LastSeq-done.FirstSeq), gap(done.LastSeq)
		return done, err
	}
	s.journal = func(ctx context.Context, h *handle, id runstore.RunID, from runstore.Seq, limit int) ([]runstore.Event, error) {
		events, err := h.Handle.ReadJournal(ctx, id, from, limit)
		for i := range events {
			events[i].Seq = gap(events[i].Seq)
		}
		return events, err
	}
}

// everyNth returns a function that returns true on every nth call.
func everyNth(n int64) func() bool {
	var calls atomic.Int64
	return func() bool { return calls.Add(1)%n == 0 }
}

func acknowledgedLost(s *store) {
	unlucky := everyNth(7)
	s.commit = func(ctx context.Context, h *handle, b runstore.Batch) (runstore.Committed, error) {
		run, err := h.Handle.GetRun(ctx, b.Run())
		now, clockErr := h.Now(ctx)
		if err != nil || clockErr != nil || !unlucky() {
			return h.Handle.Commit(ctx, b)
		}
		last := run.LastSeq + runstore.Seq(len(b.Events))
		return runstore.Committed{FirstSeq: run.LastSeq + 1, LastSeq: last, Time: now,
			Versions: make([]runstore.Version, len(b.Records))}, nil
	}
}

func idForgotten(s *store) {
	s.commit = func(ctx context.Context, h *handle, b runstore.Batch) (runstore.Committed, error) {
		b.ID = ""
		return h.Handle.Commit(ctx, b)
	}
}

func epochForgetsBatches(s *store) {
	var epoch atomic.Int64
	s.raise = func(ctx context.Context, h *handle, reason string) (runstore.Epoch, error) {
		epoch.Add(1)
		return h.Handle.RaiseEpoch(ctx, reason)
	}
	s.commit = func(ctx context.Context, h *handle, b runstore.Batch) (runstore.Committed, error) {
		if n := epoch.Load(); n > 0 && b.ID != "" {
			b.ID += runstore.BatchID(fmt.Sprint(" of epoch ", n))
		}
		return h.Handle.Commit(ctx, b)
	}
}

func idOfAnyRun(s *store) {
	var mu sync.Mutex
	known := map[runstore.BatchID]runstore.Committed{}
	s.commit = func(ctx context.Context, h *handle, b runstore.Batch) (runstore.Committed, error) {
		mu.Lock()
		defer mu.Unlock()
		if done, ok := known[b.ID]; ok && b.ID != "" {
			done.Replayed = true
			return done, nil
		}
		done, err := h.Handle.Commit(ctx, b)
		if err == nil {
			known[b.ID] = done
		}
		return done, err
	}
}

func blindRetry(s *store) {
	lost := everyNth(2)
	s.commit = func(ctx context.Context, h *handle, b runstore.Batch) (runstore.Committed, error) {
		done, err := h.Handle.Commit(ctx, b)
		if err == nil && !done.Replayed && lost() {
			b.ID = ""
			return h.Handle.Commit(ctx, b)
		}
		return done, err
	}
}

func definiteAlthoughApplied(s *store) {
	lost := everyNth(5)
	s.commit = func(ctx context.Context, h *handle, b runstore.Batch) (runstore.Committed, error) {
		done, err := h.Handle.Commit(ctx, b)
		if err == nil && lost() {
			return runstore.Committed{}, &runstore.OpError{Op: "commit", Run: b.Run(), Err: &runstore.ConflictError{Guard: "seq"}}
		}
		return done, err
	}
}

// cancelledApplied keeps the write of a caller that has given up in a queue, and applies it before
// the next write.
func cancelledApplied(s *store) {
	var mu sync.Mutex
	var queue sync.WaitGroup
	s.commit = func(ctx context.Context, h *handle, b runstore.Batch) (runstore.Committed, error) {
		done, err := h.Handle.Commit(ctx, b)
		mu.Lock()
		defer mu.Unlock()
		if err != nil && ctx.Err() != nil {
			queue.Go(func() { _, _ = h.Handle.Commit(context.WithoutCancel(ctx), b) })
			return done, err
		}
		if err == nil {
			queue.Wait()
		}
		return done, err
	}
}
