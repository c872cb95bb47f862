package spanner

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"

	"cloud.google.com/go/spanner"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter/outcome"
)

// request is one write to one run.
type request struct {
	run  runstore.RunID
	keys []runstore.RecordKey // the records that the decision depends on
	// name identifies the result under the caller's id (rules.BatchResult and the like). A write
	// without a name has an id of the adapter.
	name  string
	epoch bool // read the epoch and the run's former grants: for a grant
	// decide judges the state that was read and returns the edit to write. A nil edit with a nil
	// error means that nothing is left to write. former is the stored result if this write was
	// applied before. decide may be called many times, because the client library reruns an aborted
	// transaction.
	decide func(g *guarded, former *result) (*edit, error)

	// multiCommitID names the commit over several runs that this write is part of, if one of its
	// batches has an id. A stored result with this id proves that the whole commit was applied.
	multiCommitID []byte

	// repeatOf names the result that makes a purge a repeat. The purge deletes the results under
	// callers' ids, so its own result has no name.
	repeatOf string

	adapterID []byte // the adapter's id of this write
	// foundBefore: the result under the caller's id was stored before this call had an ambiguous
	// commit, so an earlier call applied the write.
	foundBefore bool
	counted     bool  // an earlier attempt has set countBefore
	countBefore int64 // how many results the run's ring had received before this call
}

// id returns the id under which the result is stored.
func (r *request) id() resultID {
	if r.name != "" {
		return callersID(r.name)
	}
	return resultID{kind: batchKind, id: r.adapterID}
}

// lookedUp returns the id of the result to look up, zero for none. After an ambiguous commit it is
// the id under which this write stores its result.
func (r *request) lookedUp(ambiguous bool) resultID {
	switch {
	case r.name != "" || ambiguous:
		return r.id()
	case r.repeatOf != "":
		return callersID(r.repeatOf)
	default:
		return resultID{}
	}
}

// errNothingToWrite ends a transaction without a commit.
var errNothingToWrite = errors.New("spanner: nothing to write")

// errResultEvicted: while the outcome of a commit was unknown, the run had so many other writes
// that its ring may have evicted the result.
var errResultEvicted = fmt.Errorf("spanner: the run had more writes since than it remembers: %w", runstore.ErrForgotten)

// transact applies writes to one run or several in one transaction of two requests: the guard
// statement and the commit.
//
// If a commit has an ambiguous outcome (its reply was lost), the transaction is run again. The next
// attempt either finds the result of the first among the runs' results, or its events in the
// journals ([engine.findInJournals]), or it writes the runs' rows, also when it refuses. Both
// transactions have read these rows, so after that the first can no longer be committed, wherever
// it still is.
func (s *engine) transact(ctx context.Context, tag string, requests ...*request) error {
	tracker := &commitTracker{here: s.here}
	ctx = tracker.watch(ctx)
	runs := make([]runstore.RunID, len(requests))
	for i, r := range requests {
		r.adapterID = make([]byte, 16)
		_, _ = rand.Read(r.adapterID) // never fails
		runs[i] = r.run
	}
	defer s.runQueues.enter(ctx, s.runQueueWait, runs...)()
	for t := s.newBackoff(); ; {
		bound, cancel := t.Attempt(ctx, s.attemptTimeout)
		var refusal error
		_, err := s.client.ReadWriteTransactionWithOptions(bound, func(ctx context.Context, tx *spanner.ReadWriteTransaction) (err error) {
			s.attempts.Add(1)
			refusal, err = s.attempt(ctx, tx, requests, tracker)
			return err
		}, s.transaction(tag))
		cancel()
		switch {
		case err == nil:
			return refusal
		case errors.Is(err, errNothingToWrite):
			return nil
		case errors.Is(err, errResultEvicted):
			return outcome.Unknown(err)
		case outcome.Definite(err):
			return err
		}
		if again := retryable(err) || tracker.unknown(); ctx.Err() != nil || !again || !t.More(ctx) {
			if tracker.unknown() {
				return outcome.Unknown(outcome.Cause(ctx, err))
			}
			if newer := s.schemaError(ctx, t, err); outcome.Definite(newer) {
				return newer
			}
			return outcome.Unavailable(outcome.Cause(ctx, err))
		}
	}
}

// writer returns the mutations of a transaction, none for a transaction that need not be committed.
// It makes the reads of the transaction. The client library calls it again after an abort.
type writer func(ctx context.Context, tx *spanner.ReadWriteTransaction) ([]*spanner.Mutation, error)

// write commits a transaction of the adapter's own, which is safe to repeat.
func (s *engine) write(ctx context.Context, tag string, f writer) error {
	return s.retry(ctx, func(ctx context.Context) error { return s.writeOnce(ctx, tag, f) })
}

// writeOnce is one attempt of write.
func (s *engine) writeOnce(ctx context.Context, tag string, f writer) error {
	_, err := s.client.ReadWriteTransactionWithOptions(ctx, func(ctx context.Context, tx *spanner.ReadWriteTransaction) error {
		list, err := f(ctx, tx)
		if err == nil && len(list) == 0 {
			err = errNothingToWrite
		}
		if err != nil {
			return err
		}
		return tx.BufferWrite(list)
	}, s.transaction(tag))
	if errors.Is(err, errNothingToWrite) {
		return nil
	}
	return err
}

// attempt is the body of the transaction. After an ambiguous commit it commits even a refusal, by
// touching the runs' rows: otherwise the write that is refused now could still be applied by the
// earlier transaction. It does so as well if a grant is refused because a strict lease is over. The
// statement of a grant takes shared locks, so the transaction of an earlier call with the same
// request may still be open; it was judged before the end, and the rows that it has read are
// unchanged.
func (s *engine) attempt(ctx context.Context, tx *spanner.ReadWriteTransaction, requests []*request, tracker *commitTracker) (refusal, err error) {
	ambiguous := tracker.unknown()
	if !ambiguous {
		tracker.tries = nil
	}
	tracker.leaseEnd.Store(nil)
	all, err := s.guard(ctx, tx, requests, ambiguous)
	if err != nil {
		return nil, err
	}
	formers, err := s.lookUpResults(ctx, tx, requests, all, tracker.tries, ambiguous)
	if err != nil {
		return nil, err
	}
	refuse := func(refusal error) (error, error) {
		tracker.leaseEnd.Store(nil) // a strict lease does not bound the commit of a refusal
		byClock := requests[0].epoch && errors.Is(refusal, runstore.ErrLeaseExpired)
		if !ambiguous && !byClock {
			return nil, refusal
		}
		return refusal, s.touch(tx, all)
	}
	var edits []*edit
	next := &try{results: make([]*result, len(requests))}
	events := 0
	for i, r := range requests {
		var e *edit
		refusal, err := s.judge(ctx, tx, all[i], func() (err error) {
			e, err = r.decide(all[i], formers[i])
			return err
		})
		switch {
		case err != nil:
			return nil, err
		case refusal != nil:
			return refuse(refusal)
		case e == nil:
			continue
		}
		if !e.noResult {
			e.recordResult(r.id(), r.multiCommitID)
		}
		e.putHead()
		next.add(i, e)
		events += len(e.events)
		edits = append(edits, e)
		if until := tracker.leaseEnd.Load(); !e.strictEnd.IsZero() && (until == nil || e.strictEnd.Before(*until)) {
			tracker.leaseEnd.Store(&e.strictEnd)
		}
	}
	switch {
	case len(edits) == 0 && ambiguous:
		return nil, s.touch(tx, all)
	case len(edits) == 0:
		return nil, errNothingToWrite
	case events > slots:
		return refuse(tooLarge("batches", "%d events, the limit for one commit is %d", events, slots))
	}
	slot := firstSlot(events)
	next.slot = slot
	tracker.tries = append(tracker.tries, next)
	var total mutations
	for _, e := range edits {
		e.insertEvents(slot)
		slot += int64(len(e.events))
		total.join(e.mutations)
	}
	if err := total.checkLimits(s.maxMutations); err != nil {
		return refuse(err)
	}
	return nil, tx.BufferWrite(total.list)
}

// lookUpResults returns the stored result of each request, nil for none. If one of them, or the
// journal of a run, proves that all writes of the transaction were applied, it sets alreadyApplied
// on all runs: nothing is applied again, even though some of the runs may have been purged since or
// have evicted their result. Without such proof it returns errResultEvicted if the result of an
// earlier attempt may have been evicted, unless the journals prove that no attempt was applied.
func (s *engine) lookUpResults(ctx context.Context, tx *spanner.ReadWriteTransaction, requests []*request, all []*guarded, tries []*try, ambiguous bool) ([]*result, error) {
	formers := make([]*result, len(requests))
	applied, evicted, evictedID := false, false, false
	for i, r := range requests {
		g := all[i]
		g.ambiguous = ambiguous && !r.foundBefore
		// Rows of a purged run may still be there; they are not results of the present run. But an
		// earlier attempt of this call may have been applied before the purge.
		if _, gone := g.judged(); len(g.Done) > 0 && (gone == nil || g.ambiguous) {
			formers[i] = newest(g.Done)
			r.foundBefore = r.foundBefore || !ambiguous
			if r.name == "" && !ambiguous { // a purge that is a repeat
				r.name, r.counted = r.repeatOf, false
			}
			applied = applied || r.name == "" || len(r.multiCommitID) > 0 && bytes.Equal(r.multiCommitID, formers[i].Whole)
		}
		if r.resultEvicted(g, ambiguous) {
			evicted, evictedID = true, evictedID || r.name != ""
		}
	}
	if evicted && !applied {
		found, known, err := s.findInJournals(ctx, tx, tries)
		if err != nil {
			return nil, err
		}
		switch {
		case found != nil:
			applied = true
			for i, r := range found.results {
				if r != nil {
					formers[i] = r
				}
			}
		case !known || evictedID: // another call may have applied a write with the caller's id
			return nil, errResultEvicted
		}
	}
	for _, g := range all {
		g.alreadyApplied = applied
	}
	return formers, nil
}

// newest returns the result with the highest token among those of one id. There may be several
// results of releases if a grant id was used again after the run had forgotten it.
func newest(results []*result) *result {
	return slices.MaxFunc(results, func(a, b *result) int { return cmp.Compare(a.Token, b.Token) })
}

// resultEvicted reports whether the result of an earlier attempt may have been stored and evicted
// again.
func (r *request) resultEvicted(g *guarded, ambiguous bool) bool {
	n := int64(0)
	switch {
	case len(g.Head) == 0:
	case r.name != "":
		n = g.Head[0].CallerWrites
	default:
		n = g.Head[0].OtherWrites
	}
	if !r.counted {
		r.counted, r.countBefore = true, n
		return false
	}
	return ambiguous && len(g.Done) == 0 && n-r.countBefore >= g.ring
}

// touch rewrites the runs' rows unchanged, so that no transaction that has read them before can be
// committed any more.
func (s *engine) touch(tx *spanner.ReadWriteTransaction, all []*guarded) error {
	var list []*spanner.Mutation
	for _, g := range all {
		if len(g.Head) > 0 {
			list = append(list, spanner.Update("Runs", []string{"RunHash", "Run", "Seen"}, []any{g.key.hash, g.key.run, g.Head[0].Seen}))
		}
	}
	return tx.BufferWrite(list)
}

// judge returns the refusal of decide, which depends on g. If that is ErrStoreBehind because of a
// token, and the epoch was not read, judge reads it and calls decide again. err is an error of that
// read.
func (s *engine) judge(ctx context.Context, tx *spanner.ReadWriteTransaction, g *guarded, decide func() error) (refusal, err error) {
	refusal = decide()
	behind := (*runstore.StoreBehindError)(nil)
	if !errors.As(refusal, &behind) || behind.Field != "token" || g.Epoch.Valid {
		return refusal, nil
	}
	row, err := tx.ReadRowWithOptions(ctx, "GrantEpochs", spanner.Key{g.key.shard}, []string{"Epoch"}, s.read("epoch", 0))
	if err == nil {
		err = row.Columns(&g.Epoch)
	}
	if err != nil {
		return nil, err
	}
	return decide(), nil
}
