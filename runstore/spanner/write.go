package spanner

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"slices"

	"cloud.google.com/go/spanner"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/outcome"
)

// request is one write of one run.
type request struct {
	run  runstore.RunID
	keys []runstore.RecordKey // of the records that decide
	// name is that of the result under the caller's id (rules.BatchResult and its like); a
	// write without one gets an id of the adapter's.
	name  string
	epoch bool // it is needed, and the run's former grants: for a grant
	// decide judges what was read, and says what to write. It may be called many times:
	// the client repeats a transaction that was aborted. former is the result, if the
	// write was made before. No edit means that there is nothing to write.
	decide func(g *guarded, former *result) (*edit, error)

	// whole names the commit over several runs that it is part of, if one of them has an
	// id. A result with it shows that all of that commit was made.
	multiCommitID []byte

	adapterID []byte // the adapter's id
	// repeated: the result of the caller's id was there before anything was written.
	foundBefore bool
	counted     bool  // a former attempt has read the run
	countBefore int64 // how many of the run's writes had an id of the adapter's then
}

func (r *request) guardQuery(ambiguous bool) guardQuery {
	a := guardQuery{key: keyOf(r.run), keys: r.keys, epoch: r.epoch}
	if r.name != "" || ambiguous {
		a.id = r.id()
	}
	return a
}

// id returns the id under which the result is kept.
func (r *request) id() resultID {
	if r.name != "" {
		return callersID(r.name)
	}
	return resultID{id: r.adapterID}
}

// errNothingToWrite ends a transaction that has nothing to write.
var errNothingToWrite = errors.New("spanner: nothing to write")

// errResultEvicted: while it was not known what became of a write, the run had so many
// others that its result is not kept any more.
var errResultEvicted = errors.New("spanner: the run had more writes since than it remembers")

// transact makes writes of one run, or of several, in one transaction: one request that
// reads what decides, and the commit.
//
// When the answer to a commit was lost, the transaction is made again. Either it finds
// the first among a run's results, or it writes the runs' rows, which both have read:
// then the first, wherever it still is, can never be committed.
func (s *Store) transact(ctx context.Context, tag string, requests ...*request) error {
	tracker := &commitTracker{here: s.here}
	ctx = tracker.watch(ctx)
	for _, r := range requests {
		r.adapterID = make([]byte, 16)
		_, _ = rand.Read(r.adapterID) // never fails
	}
	defer s.enterRunQueues(ctx, requests)()
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
		if again := retryable(err); ctx.Err() != nil || !again || !t.More(ctx) {
			if tracker.unknown() {
				return outcome.Unknown(outcome.Cause(ctx, err))
			}
			if newer := s.schemaError(ctx, err); outcome.Definite(newer) {
				return newer
			}
			return outcome.Unavailable(outcome.Cause(ctx, err))
		}
	}
}

func (s *Store) enterRunQueues(ctx context.Context, requests []*request) (leave func()) {
	runs := make([]runstore.RunID, len(requests))
	for i, r := range requests {
		runs[i] = r.run
	}
	return s.runQueues.enter(ctx, s.runQueueWait, runs...)
}

// attempt is the transaction once. In ambiguous of a former attempt a refusal too is
// committed, by writing the runs' rows: what was refused now could be in flight still.
func (s *Store) attempt(ctx context.Context, tx *spanner.ReadWriteTransaction, requests []*request, tracker *commitTracker) (refusal, err error) {
	ambiguous := tracker.unknown()
	tracker.leaseEnd.Store(nil)
	asks := make([]guardQuery, len(requests))
	for i, r := range requests {
		asks[i] = r.guardQuery(ambiguous)
	}
	all, err := s.guard(ctx, tx, asks)
	if err != nil {
		return nil, err
	}
	formers, err := lookUpResults(requests, all, ambiguous)
	if err != nil {
		return nil, err
	}
	var edits []*edit
	events := 0
	for i, r := range requests {
		g, former := all[i], formers[i]
		e, err := r.decide(g, former)
		if behind := (*runstore.StoreBehindError)(nil); errors.As(err, &behind) && behind.Field == "token" && !g.Epoch.Valid {
			if err := s.readEpoch(ctx, tx, g); err != nil {
				return nil, err
			}
			e, err = r.decide(g, former)
		}
		if err != nil {
			tracker.leaseEnd.Store(nil) // no lease bounds the commit of a refusal
		}
		switch {
		case err != nil && ambiguous:
			return err, s.touch(tx, all)
		case err != nil:
			return nil, err
		case e != nil:
			if !e.noResult {
				e.recordResult(r.id(), r.multiCommitID)
			}
			e.putHead()
			events += len(e.events)
			edits = append(edits, e)
			if until := tracker.leaseEnd.Load(); !e.strictEnd.IsZero() && (until == nil || e.strictEnd.Before(*until)) {
				tracker.leaseEnd.Store(&e.strictEnd)
			}
		}
	}
	switch {
	case len(edits) == 0 && ambiguous:
		return nil, s.touch(tx, all)
	case len(edits) == 0:
		return nil, errNothingToWrite
	case events > slots:
		return s.tooLarge(tx, all, ambiguous, tooLarge("batches", "%d events, the limit for one commit is %d", events, slots))
	}
	slot := firstSlot(events)
	var whole mutations
	for _, e := range edits {
		e.insertEvents(slot)
		slot += int64(len(e.events))
		whole.join(e.mutations)
	}
	if err := whole.checkLimits(s.maxMutations); err != nil {
		return s.tooLarge(tx, all, ambiguous, err)
	}
	return nil, tx.BufferWrite(whole.list)
}

// tooLarge refuses a write for its size, in ambiguous of a former attempt as all refusals.
func (s *Store) tooLarge(tx *spanner.ReadWriteTransaction, all []*guarded, ambiguous bool, refusal error) (_, err error) {
	if !ambiguous {
		return nil, refusal
	}
	return refusal, s.touch(tx, all)
}

// recall returns the results of former writes, and marks what was read if one of them
// shows that all were made: then none is made again, though some of the runs may be gone
// since, or have forgotten. Otherwise it makes sure that the result of a former attempt
// would have been found.
func lookUpResults(requests []*request, all []*guarded, ambiguous bool) ([]*result, error) {
	formers := make([]*result, len(requests))
	made, forgotten := false, false
	for i, r := range requests {
		g := all[i]
		g.ambiguous = ambiguous && !r.foundBefore
		// What a run had that was purged may still be there, and is no memory of its; a
		// former attempt may have been made before the purge.
		if _, gone := g.head(); len(g.Done) > 0 && (gone == nil || g.ambiguous) {
			formers[i] = newest(g.Done)
			r.foundBefore = r.foundBefore || !ambiguous
			made = made || r.name == "" || len(r.multiCommitID) > 0 && bytes.Equal(r.multiCommitID, formers[i].Whole)
		}
		forgotten = r.resultEvicted(g, ambiguous) || forgotten
	}
	if forgotten && !made {
		return nil, errResultEvicted
	}
	for _, g := range all {
		g.alreadyApplied = made
	}
	return formers, nil
}

// newest returns the last of the results that have one id. There are several where the id of a
// grant came back once it was no longer recognised: one for each release.
func newest(results []*result) *result {
	return slices.MaxFunc(results, func(a, b *result) int { return cmp.Compare(a.Token, b.Token) })
}

// forgotten reports whether the result of a former attempt may have been there, and is
// not kept any more.
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

// touch writes the runs' rows as they are, so that no transaction that has read them
// before can be committed any more.
func (s *Store) touch(tx *spanner.ReadWriteTransaction, all []*guarded) error {
	var list []*spanner.Mutation
	for _, g := range all {
		if len(g.Head) > 0 {
			list = append(list, spanner.Update("Runs", []string{"RunHash", "Run", "Seen"}, []any{g.key.hash, g.key.run, g.Head[0].Seen}))
		}
	}
	return tx.BufferWrite(list)
}

// readEpoch reads the epoch for a refusal that depends on it.
func (s *Store) readEpoch(ctx context.Context, tx *spanner.ReadWriteTransaction, g *guarded) error {
	row, err := tx.ReadRowWithOptions(ctx, "GrantEpochs", spanner.Key{g.key.shard}, []string{"Epoch"},
		&spanner.ReadOptions{Priority: s.opts.Priority, RequestTag: "tapestore-epoch"})
	if err != nil {
		return err
	}
	return row.Columns(&g.Epoch)
}
