package bigtable

import (
	"context"
	"errors"

	"github.com/tapestore/tapestore/runstore"
)

// isForTime reports whether err is a refusal that only the clock decides. The same request may have been allowed
// at the same revision before, so a copy that an earlier call sent could still be applied there.
func isForTime(err error) bool {
	return errors.Is(err, runstore.ErrLeaseExpired) || errors.Is(err, runstore.ErrNoProgress)
}

// touch returns a change that gives the run another revision and nothing else. Once it is applied, no change that
// was decided on the former revision can be, whichever handle sent it.
func (r *cachedRun) touch() *edit { return newEdit(r, runstore.FromMicros(r.head.Time)) }

// isApplied reports whether a change was applied, by a head that was read after it was sent. If the head has
// too many later revisions to show that, the journal does: its events have the nonces of their writes for as
// long as the run exists. Otherwise isApplied returns errLongAgo, also if the journal has other events and the
// row no longer shows whether another request with the same id was applied. It returns errMissing if the
// segment of the event is lost, or if the run was purged between two of its reads.
func (s *engine) isApplied(ctx context.Context, id runstore.RunID, e *edit, found *head) (applied bool, err error) {
	applied, known := found.wrote(e.head.Rev, e.nonce)
	if !known && e.done.FirstSeq > 0 {
		applied, known, err = s.hasAppended(ctx, id, e)
		known = known && (applied || e.result == nil || e.resultShows(found))
	}
	if err != nil {
		return false, err
	}
	if !known {
		return false, errLongAgo
	}
	if applied && found.Rev > e.head.Rev { // what the handle knows of the rest of the row is out of date
		e.superseded = true
	}
	return applied, nil
}

// resultShows reports whether the results in the row of a head show if a request with the change's id was
// applied: none was dropped that was stored since the change was decided.
func (e *edit) resultShows(found *head) bool {
	return e.result != nil && e.isSameRun(found) && found.Batches-e.head.Batches < maxResults
}

// isSameRun reports whether the run was not purged since the change was decided.
func (e *edit) isSameRun(found *head) bool {
	return !found.Purged && found.Generation == e.head.Generation && found.GenerationBy == e.head.GenerationBy
}

// hasAppended reports whether the run's journal has the events of a change. known is false if the run was
// purged since the change was decided: its journal went with it.
func (s *engine) hasAppended(ctx context.Context, id runstore.RunID, e *edit) (appended, known bool, err error) {
	seq := int64(e.done.FirstSeq)
	r, err := s.readRun(ctx, id, eventColumns(seq, seq))
	if err != nil || !r.exists() || !e.isSameRun(&r.head) {
		return false, false, err
	}
	if seq > r.head.Seq {
		return false, true, nil
	}
	var events journalSegment
	if seq > r.head.Sealed*segmentSize {
		err = r.events(func(one journalEvent, _ []byte) error {
			events = append(events, one)
			return nil
		})
	} else {
		key := segmentKey(id, r.head.Generation, (seq-1)/segmentSize) // segments are immutable
		var segments map[string]journalSegment
		segments, err = s.readSegments(ctx, []string{key})
		events = segments[key]
	}
	for _, one := range events {
		if one.seq == seq {
			appended, known = one.meta.Nonce == e.nonce, true
		}
	}
	if err == nil && !known {
		err = errMissing{id} // the segment is lost, or the run was purged meanwhile
	}
	return appended, known, err
}
