package crossrun

import (
	"context"
	"errors"
	"fmt"

	"github.com/tapestore/tapestore/runstore"
)

// ending is how a step with a write-ahead intent ended.
type ending struct {
	// verdict is verdictApplied, verdictRefused or verdictVoid.
	verdict verdict
	// result is set if the step was applied.
	result Result
	// reason is why the step was not applied.
	reason error
	// intentErr is why the intent of a step that was refused, or applied by an earlier call, could not
	// be deleted; nil if it is gone.
	intentErr error
}

// complete is conclude for an intent that was read from the lead. It first asks the lead for the result of an
// earlier call: earlier versions of this package wrote the intent of a repeat of a step that had ended
// meanwhile. Such an attempt ends as applied, with the earlier call's result.
func complete(ctx context.Context, s runstore.RunStore, under runstore.Guard, in intent, version runstore.Version) (ending, error) {
	done, known, err := lookUpResult(ctx, s, in.lead, in.id)
	if err != nil {
		return ending{}, pendingError(in.lead, err)
	}
	if known {
		end, decided, err := completed(ctx, s, under, in, version, done)
		if err != nil || !decided {
			return end, err
		}
	}
	return conclude(ctx, s, under, in, version)
}

// conclude ends the step whose intent, in, is on its lead at that version. Any number of callers
// may run it concurrently, under fences that are current or ended, or guarded by the lead's token.
// The mark makes all of them reach the same verdict; the intent's version, with the guard under,
// makes its consequences apply once. After an error the step may still be in progress; the error
// matches runstore.ErrUnknownOutcome.
func conclude(ctx context.Context, s runstore.RunStore, under runstore.Guard, in intent, version runstore.Version) (ending, error) {
	end, markAt, err := decide(ctx, s, in)
	if err != nil {
		return ending{}, pendingError(in.lead, err)
	}
	if end.verdict == verdictApplied {
		done, err := s.Commit(ctx, in.finish(under, version))
		if err != nil {
			return ending{}, pendingError(in.lead, err)
		}
		end.result.Lead = trimVersions(done, len(in.leadWrites.Records))
		removeMark(ctx, s, in, markAt)
		return end, nil
	}
	_, err = s.Commit(ctx, in.clear(under, version))
	if err == nil {
		if end.verdict == verdictRefused {
			removeMark(ctx, s, in, markAt)
		}
		return end, nil
	}
	if end.verdict == verdictRefused { // final: the mark holds the verdict, whichever caller deletes the intent
		end.intentErr = err
		return end, nil
	}
	// A void verdict holds only while the intent exists. Otherwise another caller has completed the
	// step and deleted the mark.
	if done, known, _ := lookUpResult(ctx, s, in.lead, in.id); known {
		return ending{verdict: verdictApplied, result: Result{Lead: trimVersions(done, len(in.leadWrites.Records))}}, nil
	}
	return ending{}, pendingError(in.lead, err)
}

// completed ends the attempt at a step that an earlier call has completed meanwhile, with that call's result.
// The mark goes before the intent: without it the attempt cannot be applied any more, even if the lead
// no longer remembers the step. decided reports that another caller, which found the step forgotten, has
// applied the attempt on the other run: then the lead must follow.
func completed(ctx context.Context, s runstore.RunStore, under runstore.Guard, in intent, version runstore.Version, done runstore.Committed) (end ending, decided bool, err error) {
	_, err = s.Commit(ctx, deleteMark(in.other, in.markKey(), in.mark))
	if errors.Is(err, runstore.ErrConflict) {
		var rec runstore.Record
		var found bool
		if rec, found, err = read(ctx, s, in.other, in.markKey()); err == nil && found {
			m, unread := decodeMark(rec.Value)
			if unread != nil {
				return ending{}, false, pendingError(in.lead, unreadable(in.other, in.markKey(), unread))
			}
			if m.name == in.name && m.verdict == verdictApplied {
				return ending{}, true, nil
			}
		}
	}
	if err != nil && !errors.Is(err, runstore.ErrNotFound) {
		return ending{}, false, pendingError(in.lead, err)
	}
	end = ending{verdict: verdictApplied, result: Result{Lead: trimVersions(done, len(in.leadWrites.Records))}}
	_, end.intentErr = s.Commit(ctx, in.clear(under, version))
	return end, false, nil
}

// decide applies the other run's batch, or finds the verdict on the mark. It also returns the
// version of the mark that holds the verdict. Applied and refused are final for every caller. Void
// is final only if the intent is still on the lead afterwards.
func decide(ctx context.Context, s runstore.RunStore, in intent) (ending, runstore.Version, error) {
	done, refusal := s.Commit(ctx, in.apply())
	if refusal == nil {
		n := len(in.otherWrites.Records)
		return ending{verdict: verdictApplied, result: Result{Other: trimVersions(done, n)}}, versionAt(done, n), nil
	}
	if undecidable(refusal) {
		return ending{}, 0, refusal
	}
	// The mark decides, whatever the refusal was. The mark leaves version in.mark only once, so few
	// rounds suffice.
	for range 3 {
		rec, found, err := read(ctx, s, in.other, in.markKey())
		switch {
		case errors.Is(err, runstore.ErrNotFound):
			return ending{verdict: verdictVoid, reason: err}, 0, nil
		case err != nil:
			return ending{}, 0, err
		case !found:
			return ending{verdict: verdictVoid, reason: opError(in.other, runstore.ErrConflict, errStale)}, 0, nil
		}
		if rec.Version == in.mark {
			done, err := s.Commit(ctx, in.refuse(refusal))
			if err == nil {
				return ending{verdict: verdictRefused, reason: refusal}, versionAt(done, 0), nil
			}
			if !errors.Is(err, runstore.ErrConflict) && !errors.Is(err, runstore.ErrNotFound) {
				return ending{}, 0, err
			}
			continue // another caller decided first
		}
		m, err := decodeMark(rec.Value)
		switch {
		case err != nil:
			return ending{}, 0, unreadable(in.other, in.markKey(), err)
		case m.name != in.name:
			return ending{verdict: verdictVoid, reason: opError(in.other, runstore.ErrConflict, errStale)}, 0, nil
		case m.verdict == verdictApplied:
			return ending{verdict: verdictApplied, result: Result{Other: resultFromMark(rec, len(in.otherWrites.Events))}}, rec.Version, nil
		default:
			return ending{verdict: verdictRefused, reason: m.reason(in.other)}, rec.Version, nil
		}
	}
	return ending{}, 0, refusal
}

var errStale = errors.New("the mark of the step is gone")

// removeMark deletes the mark, the last write of a step. Errors are ignored because nothing depends
// on it: Sweep deletes leftover marks.
func removeMark(ctx context.Context, s runstore.RunStore, in intent, version runstore.Version) {
	_, _ = s.Commit(ctx, deleteMark(in.other, in.markKey(), version))
}

// readIntent reads the intent of a run. version is 0 if there is none.
func readIntent(ctx context.Context, s runstore.RunStore, lead runstore.RunID) (in intent, version runstore.Version, err error) {
	rec, found, err := read(ctx, s, lead, IntentKey)
	if err != nil || !found {
		return intent{}, 0, err
	}
	in, err = decodeIntent(lead, rec.Value)
	if err != nil {
		return intent{}, 0, unreadable(lead, IntentKey, err)
	}
	in.token = rec.Updated.Token
	return in, rec.Version, nil
}

// lookUpResult asks the lead whether it remembers the id of a step, and returns the result. Its
// guard can never hold, so nothing is applied.
func lookUpResult(ctx context.Context, s runstore.RunStore, lead runstore.RunID, id runstore.BatchID) (done runstore.Committed, known bool, err error) {
	b := runstore.NewBatch(lead, runstore.AtVersion(IntentKey, unreachableVersion))
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

// unreachableVersion is a version that no record reaches.
const unreachableVersion runstore.Version = 1<<63 - 1

func read(ctx context.Context, s runstore.RunStore, id runstore.RunID, key runstore.RecordKey) (rec runstore.Record, found bool, err error) {
	records, err := s.ReadRecords(ctx, id, runstore.RecordQuery{Keys: []runstore.RecordKey{key}})
	if err != nil || len(records) == 0 {
		return runstore.Record{}, false, err
	}
	return records[0], true, nil
}

// trimVersions drops the versions of the step's own records, which follow the caller's n records.
func trimVersions(done runstore.Committed, n int) runstore.Committed {
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

// resultFromMark returns the result of the batch that wrote the mark, as far as the record's stamp
// shows it.
func resultFromMark(rec runstore.Record, events int) runstore.Committed {
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
