package faultystores

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"

	"github.com/tapestore/tapestore/crossrun"
	"github.com/tapestore/tapestore/runstore"
)

// stepStores make steps over two runs by a wrong protocol: that of package crossrun with one of its
// writes corrupted on the way to the store.
func stepStores() []faultyStore {
	return []faultyStore{
		{"step-begun-without-the-fence", "The intent is written without a check of the lead's fence.",
			"I3/a-fenced-driver-begins-no-step-by-intent", corrupt(proposing, dropFence)},
		{"step-guarded-by-version-alone", "The other run's batch is guarded by its versions and its id: a record can become absent again, and ids are forgotten.",
			"I3/a-zombie-in-any-gap-of-a-step-changes-nothing-by-intent", corrupt(applying, dropMark, dropID)},
		{"refusal-not-recorded", "A step whose guard failed is cleared without a record of the refusal on the other run.",
			"I3/a-refused-step-stays-refused-for-a-zombie-by-intent", refusalUnrecorded},
		{"step-finished-without-the-fence", "Any driver that finds the intent makes the lead's writes, whether or not it holds the lead.",
			"I3/a-zombie-does-not-write-the-lead-of-its-step-by-intent", corrupt(finishing, dropFence)},
		{"step-cleared-without-the-fence", "Any driver that finds the intent of a refused step clears it, whether or not it holds the lead.",
			"I3/a-zombie-does-not-write-the-lead-of-its-step-by-intent", corrupt(clearing, dropFence)},
		{"step-finished-without-the-intent", "Every driver that completes the step makes the lead's writes, however often.",
			"I3/a-zombie-in-any-gap-of-a-step-changes-nothing-by-intent", corrupt(finishing, dropGuards, dropID)},
		{"step-overwrites-the-one-before", "An intent overwrites that of a step that is still in progress.",
			"I4/a-step-after-one-of-unknown-outcome-completes-it-by-intent", corrupt(proposing, dropIdle)},
		{"step-forgets-the-other-runs-versions", "The other run's batch is applied whatever its versions are.",
			"I4/a-refused-step-leaves-nothing-on-either-run-by-intent", corrupt(applying, keepMark)},
		{"step-forgets-the-leads-guards", "The intent is written under the fence, and the lead's other guards are ignored.",
			"I4/a-refused-step-leaves-nothing-on-either-run-by-intent", corrupt(proposing, keepFence)},
		{"completion-skipped", "A driver that acquires the lead does not look for a step in progress.",
			"I4/a-step-cut-anywhere-is-whole-for-the-next-holder-by-intent", completionSkipped},
		{"cleared-first-applied-after", "The lead's writes are made and the intent is cleared before the other run's batch is sent.",
			"I4/a-step-cut-anywhere-is-whole-for-the-next-holder-by-intent", appliedAfter},
		{"records-not-spoken-for", "A step changes a run that leads a step itself, whose records are about to be written.",
			"I4/a-step-under-way-keeps-others-from-its-records-by-intent", corrupt(applying, dropIdle)},
		{"step-in-two-commits", "A step over two runs is one commit after the other.",
			"I4/a-refused-step-leaves-nothing-on-either-run-natively", multiInSteps},
		{"step-id-not-remembered", "The lead's last write does not carry the step's id, so a repeat is a new step.",
			"I8/a-repeated-step-gets-the-first-result-by-intent", corrupt(finishing, dropID)},
		{"verdict-removed-too-early", "The mark is gone before the intent is: a successor cannot tell whether the step was applied.",
			"I8/a-step-is-completed-once-though-its-ids-are-forgotten-by-intent", verdictRemoved},
		{"step-under-way-called-unavailable", "An intent whose reply was lost is reported as not applied.",
			"I11/an-error-of-a-step-is-true-by-intent", underWayUnavailable},
		{"purged-run-waited-for", "A step whose other run was purged never ends.",
			"I11/a-step-whose-other-run-is-gone-ends-by-intent", purgedWaitedFor},
	}
}

// writeKind selects one of the writes of which package crossrun makes a step.
type writeKind func(b runstore.Batch) bool

func proposing(b runstore.Batch) bool { return touches(b, crossrun.IntentKey, false) }
func finishing(b runstore.Batch) bool {
	return touches(b, crossrun.IntentKey, true) && !clearing(b)
}
func clearing(b runstore.Batch) bool  { return strings.HasSuffix(string(b.ID), "/clear") }
func applying(b runstore.Batch) bool  { return strings.HasSuffix(string(b.ID), "/apply") }
func refusing(b runstore.Batch) bool  { return strings.HasSuffix(string(b.ID), "/refuse") }
func unmarking(b runstore.Batch) bool { return touches(b, crossrun.Reserved+"mark/", true) }

// touches reports whether b puts, or if deletes is true deletes, a record whose key begins with
// prefix.
func touches(b runstore.Batch, prefix runstore.RecordKey, deletes bool) bool {
	return slices.ContainsFunc(b.Records, func(r runstore.RecordWrite) bool {
		return strings.HasPrefix(string(r.Key), string(prefix)) && r.Delete == deletes
	})
}

// corrupt applies changes to every batch that r selects.
func corrupt(r writeKind, changes ...func(runstore.Batch) runstore.Batch) func(s *store) {
	return func(s *store) {
		s.commit = func(ctx context.Context, h *handle, b runstore.Batch) (runstore.Committed, error) {
			if r(b) {
				for _, change := range changes {
					b = change(b)
				}
			}
			return h.Handle.Commit(ctx, b)
		}
	}
}

func dropID(b runstore.Batch) runstore.Batch {
	b.ID = ""
	return b
}

func dropFence(b runstore.Batch) runstore.Batch  { return refenced(b, runstore.Fence{}) }
func dropGuards(b runstore.Batch) runstore.Batch { return reguarded(b, runstore.Guards{}) }

func keepFence(b runstore.Batch) runstore.Batch {
	return reguarded(b, runstore.Guards{Fence: b.Guards().Fence})
}

func dropMark(b runstore.Batch) runstore.Batch {
	return versioned(b, func(key runstore.RecordKey) bool { return !isMark(key) })
}

func keepMark(b runstore.Batch) runstore.Batch { return versioned(b, isMark) }

func dropIdle(b runstore.Batch) runstore.Batch {
	return versioned(b, func(key runstore.RecordKey) bool { return key != crossrun.IntentKey })
}

func isMark(key runstore.RecordKey) bool {
	return strings.HasPrefix(string(key), string(crossrun.Reserved+"mark/"))
}

// versioned returns b with only those version guards whose key keep accepts.
func versioned(b runstore.Batch, keep func(runstore.RecordKey) bool) runstore.Batch {
	g := b.Guards()
	g.Versions = slices.DeleteFunc(slices.Clone(g.Versions), func(v runstore.VersionGuard) bool { return !keep(v.Key) })
	return reguarded(b, g)
}

func refusalUnrecorded(s *store) {
	s.commit = func(ctx context.Context, h *handle, b runstore.Batch) (runstore.Committed, error) {
		if refusing(b) {
			return runstore.Committed{Versions: []runstore.Version{b.Guards().Versions[0].Version + 1}}, nil
		}
		return h.Handle.Commit(ctx, b)
	}
}

func completionSkipped(s *store) {
	s.records = func(ctx context.Context, h *handle, id runstore.RunID, q runstore.RecordQuery) ([]runstore.Record, error) {
		if slices.Equal(q.Keys, []runstore.RecordKey{crossrun.IntentKey}) {
			return nil, nil
		}
		return h.Handle.ReadRecords(ctx, id, q)
	}
}

// appliedAfter withholds a step's batch for the other run, and sends it at the last write of the
// step.
func appliedAfter(s *store) {
	var mu sync.Mutex
	aside := map[runstore.RunID]runstore.Batch{}
	s.commit = func(ctx context.Context, h *handle, b runstore.Batch) (runstore.Committed, error) {
		mu.Lock()
		defer mu.Unlock()
		if applying(b) {
			aside[b.Run()] = b
			return runstore.Committed{Versions: make([]runstore.Version, len(b.Records))}, nil
		}
		if late, ok := aside[b.Run()]; ok && unmarking(b) {
			delete(aside, b.Run())
			return h.Handle.Commit(ctx, late)
		}
		return h.Handle.Commit(ctx, b)
	}
}

func verdictRemoved(s *store) {
	s.commit = func(ctx context.Context, h *handle, b runstore.Batch) (runstore.Committed, error) {
		if !applying(b) {
			return h.Handle.Commit(ctx, b)
		}
		done, err := h.Handle.Commit(ctx, dropID(b))
		if err == nil {
			gone := runstore.NewBatch(b.Run(), runstore.Unguarded("the broken step does not need it"))
			gone.Delete(b.Records[len(b.Records)-1].Key)
			_, err = h.Handle.Commit(ctx, gone)
		}
		return done, err
	}
}

func underWayUnavailable(s *store) {
	s.commit = func(ctx context.Context, h *handle, b runstore.Batch) (runstore.Committed, error) {
		done, err := h.Handle.Commit(ctx, b)
		if err == nil && proposing(b) {
			return runstore.Committed{}, &runstore.OpError{Op: "commit", Run: b.Run(), Err: runstore.ErrUnavailable}
		}
		return done, err
	}
}

func purgedWaitedFor(s *store) {
	s.commit = func(ctx context.Context, h *handle, b runstore.Batch) (runstore.Committed, error) {
		done, err := h.Handle.Commit(ctx, b)
		if applying(b) && errors.Is(err, runstore.ErrNotFound) {
			return done, &runstore.OpError{Op: "commit", Run: b.Run(), Err: runstore.ErrUnavailable}
		}
		return done, err
	}
}
