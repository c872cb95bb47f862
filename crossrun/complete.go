package crossrun

import (
	"context"
	"errors"
	"fmt"

	"github.com/tapestore/tapestore/runstore"
)

// ending is how a step that was written ahead ended.
type ending struct {
	// verdict is applied, refused or void.
	verdict verdict
	// result is set for a step that was applied.
	result Result
	// reason tells why it was not.
	reason error
	// left tells why the intent of a refused step is still there; nil if it is gone.
	left error
}

// complete ends the step whose intent, in, is on its lead at that version. Any
// number of callers may try at once, under fences that hold or have ended, or at
// the lead's token: the mark lets them agree on the verdict, and the intent's
// version, with that guard, lets the verdict's consequence happen once. An error
// says that the step was not seen to its end, and is of unknown outcome.
func complete(ctx context.Context, s runstore.RunStore, under runstore.Guard, in intent, version runstore.Version) (ending, error) {
	end, markAt, err := decide(ctx, s, in)
	if err != nil {
		return ending{}, pendingError(in.lead, err)
	}
	if end.verdict == applied {
		done, err := s.Commit(ctx, in.finish(under, version))
		if err != nil {
			return ending{}, pendingError(in.lead, err)
		}
		end.result.Lead = without(done, len(in.own.Records))
		removeMark(ctx, s, in, markAt)
		return end, nil
	}
	_, err = s.Commit(ctx, in.clear(under, version))
	if err == nil {
		if end.verdict == refused {
			removeMark(ctx, s, in, markAt)
		}
		return end, nil
	}
	if end.verdict == refused { // for good: the mark says so, whoever clears the intent
		end.left = err
		return end, nil
	}
	// A step is void only while its intent is there: else somebody has ended it and
	// removed the mark.
	if done, known, _ := recall(ctx, s, in.lead, in.id); known {
		return ending{verdict: applied, result: Result{Lead: without(done, len(in.own.Records))}}, nil
	}
	return ending{}, pendingError(in.lead, err)
}

// decide brings about the verdict on the other run, or learns it there, and
// returns the version of the mark that holds it. The verdict applied or refused is
// true whoever asks; void is, if the intent is still on the lead afterwards.
func decide(ctx context.Context, s runstore.RunStore, in intent) (ending, runstore.Version, error) {
	done, refusal := s.Commit(ctx, in.apply())
	if refusal == nil {
		n := len(in.writes.Records)
		return ending{verdict: applied, result: Result{Other: without(done, n)}}, versionAt(done, n), nil
	}
	if unjudged(refusal) {
		return ending{}, 0, refusal
	}
	// Whatever the refusal says: what the mark says counts. It leaves in.mark once.
	for range 3 {
		rec, found, err := read(ctx, s, in.other, in.markKey())
		switch {
		case errors.Is(err, runstore.ErrNotFound):
			return ending{verdict: void, reason: err}, 0, nil
		case err != nil:
			return ending{}, 0, err
		case !found:
			return ending{verdict: void, reason: opError(in.other, runstore.ErrConflict, errStale)}, 0, nil
		}
		if rec.Version == in.mark {
			done, err := s.Commit(ctx, in.refuse(refusal))
			if err == nil {
				return ending{verdict: refused, reason: refusal}, versionAt(done, 0), nil
			}
			if !errors.Is(err, runstore.ErrConflict) && !errors.Is(err, runstore.ErrNotFound) {
				return ending{}, 0, err
			}
			continue // somebody was quicker
		}
		m, err := decodeMark(rec.Value)
		switch {
		case err != nil:
			return ending{}, 0, unreadable(in.other, in.markKey(), err)
		case m.name != in.name:
			return ending{verdict: void, reason: opError(in.other, runstore.ErrConflict, errStale)}, 0, nil
		case m.verdict == applied:
			return ending{verdict: applied, result: Result{Other: stamped(rec, len(in.writes.Events))}}, rec.Version, nil
		default:
			return ending{verdict: refused, reason: m.reason(in.other)}, rec.Version, nil
		}
	}
	return ending{}, 0, refusal
}

var errStale = errors.New("the mark of the step is gone")

// removeMark is the last write of a step, and nothing depends on it: what it
// leaves behind, Sweep removes.
func removeMark(ctx context.Context, s runstore.RunStore, in intent, version runstore.Version) {
	_, _ = s.Commit(ctx, unmark(in.other, in.markKey(), version))
}

// pending reads the intent of a run, if there is one.
func pending(ctx context.Context, s runstore.RunStore, lead runstore.RunID) (in intent, version runstore.Version, err error) {
	rec, found, err := read(ctx, s, lead, IntentKey)
	if err != nil || !found {
		return intent{}, 0, err
	}
	in, err = decodeIntent(lead, rec.Value)
	if err != nil {
		return intent{}, 0, unreadable(lead, IntentKey, err)
	}
	return in, rec.Version, nil
}

// recall asks the lead whether it remembers a step. The guard can never hold, so
// nothing is applied.
func recall(ctx context.Context, s runstore.RunStore, lead runstore.RunID, id runstore.BatchID) (done runstore.Committed, known bool, err error) {
	b := runstore.NewBatch(lead, runstore.AtVersion(IntentKey, never))
	b.ID = id
	done, err = s.Commit(ctx, b)
	switch {
	case err == nil:
		return done, done.Replayed, nil
	case errors.Is(err, runstore.ErrConflict):
		return runstore.Committed{}, false, nil
	default:
		return runstore.Committed{}, false, err
	}
}

// never is a version that no record reaches.
const never runstore.Version = 1<<63 - 1

func read(ctx context.Context, s runstore.RunStore, id runstore.RunID, key runstore.RecordKey) (rec runstore.Record, found bool, err error) {
	records, err := s.ReadRecords(ctx, id, runstore.RecordQuery{Keys: []runstore.RecordKey{key}})
	if err != nil || len(records) == 0 {
		return runstore.Record{}, false, err
	}
	return records[0], true, nil
}

// without returns done as the caller's n records know it, without the step's own.
func without(done runstore.Committed, n int) runstore.Committed {
	if len(done.Versions) > n {
		done.Versions = done.Versions[:n:n]
	}
	return done
}

// versionAt returns the version of the batch's record number i.
func versionAt(done runstore.Committed, i int) runstore.Version {
	if i < len(done.Versions) {
		return done.Versions[i]
	}
	return 0
}

// stamped is what a mark tells of the batch that wrote it.
func stamped(rec runstore.Record, events int) runstore.Committed {
	done := runstore.Committed{LastSeq: rec.Updated.Seq, Time: rec.Updated.Time, Replayed: true}
	if events > 0 {
		done.FirstSeq = rec.Updated.Seq
		done.LastSeq = done.FirstSeq + runstore.Seq(events) - 1
	}
	return done
}

func unreadable(run runstore.RunID, key runstore.RecordKey, err error) error {
	return opError(run, runstore.ErrUnsupported, fmt.Errorf("record %q: %w", key, err))
}
