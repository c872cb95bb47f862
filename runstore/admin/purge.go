package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/tapestore/tapestore/crossrun"
	"github.com/tapestore/tapestore/internal/optimistic"
	"github.com/tapestore/tapestore/runstore"
)

const (
	// OperationsRun is the unlisted run whose journal records what operators did to runs that
	// cannot record it themselves, because they are purged.
	OperationsRun runstore.RunID = "tapestore/operations"
	// OperationKind is the kind of its events. Their data is an [OperationEntry].
	OperationKind = "operation"
	// purgeReactor is the reactor of the grant under which a run is purged.
	purgeReactor runstore.Reactor = "operator"
	// purgeTTL is how long that grant lasts, 1 min: longer than an engine tries a purge (its retry
	// timeout is 30 s), short enough that a run is free soon after a purge that was interrupted.
	purgeTTL = time.Minute
)

// The stages of an OperationEntry.
const (
	StageIntended = "intended" // written ahead of the purge
	StageDone     = "done"
	StageFailed   = "failed" // the run was not purged
)

// OperationEntry is an event of [OperationsRun], as a JSON object. An operation whose last stage is
// intended may have been done.
type OperationEntry struct {
	// Operation is "purge", or "retain" for the purges of package retain: two entries for all runs of a
	// pass, without Run and Token.
	Operation string         `json:"operation"`
	Stage     string         `json:"stage"`
	Run       runstore.RunID `json:"run"`
	// Token is the token of the grant under which the run was purged, so that the stages of one
	// operation have one token.
	Token    runstore.Token `json:"token"`
	Operator runstore.Owner `json:"operator"`
	Reason   string         `json:"reason"`
	// Preempted is the holder of the grant that the operation ended, if there was one.
	Preempted runstore.Owner `json:"preempted,omitempty"`
	Problem   string         `json:"problem,omitempty"`
}

// PurgeRequest asks for the purge of a run.
type PurgeRequest struct {
	Run runstore.RunID
	// Token is the run's last token as the operator has read it. If a grant was made since, nothing
	// is purged.
	Token runstore.Token
	// Next is the seq of the run's next event as the operator has read it; 0 is no condition. If an event was
	// appended since, nothing is purged. Purge compares Next at its grant and again when it deletes the run.
	// The second comparison is left out if Purge has completed a step over two runs, which may have appended
	// events.
	Next runstore.Seq
	// Preempt purges a run whose lease is live. Its holder's next write is refused.
	Preempt bool
	// Operator names the person who decides, and Reason says why: 1 to runstore.MaxOwner bytes of
	// UTF-8 each.
	Operator runstore.Owner
	Reason   string
}

// Purged is the result of [Purge].
type Purged struct {
	// Token is the token of the grant under which the run was purged. It is the run's last token,
	// which stays: a new run of this id continues above it (I2).
	Token runstore.Token
	// Former is the holder whose grant was ended; zero if the lease was free.
	Former runstore.Holder
	// Recorded reports whether [OperationsRun] has the stage done. If it is false, the stage
	// intended is the last.
	Recorded bool
}

// Purge deletes a run's journal and records, as [runstore.Writes] describes, and records the
// decision in the journal of [OperationsRun].
//
// Purge first acquires the run's lease, so that it deletes nothing under a live holder. It then
// completes the step over two runs that the former holder left in progress ([crossrun.Recover]), so
// that the step changes its other run before the purge or never. It records the intent (a write-ahead
// intent), purges under its own fence, and records the end.
//
// Errors:
//
//   - ErrInvalid or ErrTooLarge: a field of the request;
//   - ErrNotFound: there is no such run;
//   - ErrLeaseHeld: the lease is live, and the request does not preempt;
//   - ErrConflict: a grant was made since the operator read the token, or an event was appended since the
//     operator read the next seq;
//   - ErrUnknownOutcome: the run may have been purged; repeat the request, with the present token;
//   - any other error: the run was not purged. A lease that the request has preempted is lost,
//     and the next holder recovers the run.
func Purge(ctx context.Context, store runstore.RunStore, req PurgeRequest) (Purged, error) {
	if err := req.check(); err != nil {
		return Purged{}, err
	}
	head, err := store.GetRun(ctx, req.Run)
	if err != nil {
		return Purged{}, err
	}
	acquire := runstore.AcquireRequest{
		Run: req.Run, Guards: []runstore.Guard{runstore.AtToken(req.Token)},
		LeaseSpec: runstore.LeaseSpec{Owner: req.Operator, Reactor: purgeReactor, TTL: purgeTTL, Grant: runstore.NewGrantID()},
	}
	if req.Preempt {
		acquire.Preempt = req.Reason
	}
	if req.Next > 0 {
		acquire.Guards = append(acquire.Guards, runstore.AtSeq(req.Next))
	}
	granted, err := store.AcquireLease(ctx, acquire)
	if runstore.OutcomeOf(err) == runstore.Unknown { // the repeat is safe under the same grant id
		granted, err = store.AcquireLease(ctx, acquire)
	}
	if err != nil {
		return Purged{}, notPurged(err)
	}
	// Without the run's intent, the next driver could not find the step, and the former holder could
	// still apply it to the other run.
	completed, err := crossrun.Recover(ctx, store, granted.Fence())
	if err != nil {
		release(ctx, store, granted.Lease)
		return Purged{}, notPurged(fmt.Errorf("the run's step over two runs could not be completed: %w", err))
	}
	result := Purged{Token: granted.Token}
	if head.Holder.Token == req.Token {
		result.Former = head.Holder
	}
	entry := OperationEntry{
		Operation: "purge", Stage: StageIntended, Run: req.Run, Token: granted.Token,
		Operator: req.Operator, Reason: req.Reason, Preempted: result.Former.Owner,
	}
	if err := record(ctx, store, entry); err != nil {
		release(ctx, store, granted.Lease)
		return Purged{}, notPurged(fmt.Errorf("the intent could not be recorded: %w", err))
	}
	next := req.Next // events without a fence may arrive under the grant, too
	if completed.ID != "" {
		next = 0
	}
	if err := purge(ctx, store, granted.Lease, next); err != nil {
		if runstore.OutcomeOf(err) == runstore.NotApplied {
			release(ctx, store, granted.Lease)
			entry.Stage, entry.Problem = StageFailed, err.Error()
			_ = recordEnd(ctx, store, entry) // the error of the purge is the one to return
		}
		return Purged{}, err
	}
	entry.Stage = StageDone
	result.Recorded = recordEnd(ctx, store, entry) == nil
	return result, nil
}

// notPurged returns err with the outcome "not applied": whatever became of the step that failed, the
// run was not purged.
func notPurged(err error) error {
	if runstore.OutcomeOf(err) == runstore.NotApplied {
		return err
	}
	return &runstore.OpError{Op: "purge run", Err: runstore.ErrUnavailable, Cause: stepError{err}}
}

// stepError wraps the error of a step that precedes the purge. It keeps the text and hides the runstore
// kinds: an unknown outcome of that step says nothing about the purge.
type stepError struct{ err error }

func (e stepError) Error() string { return e.err.Error() }
func (e stepError) Is(target error) bool {
	return !slices.Contains(runstore.Kinds(), target) && errors.Is(e.err, target)
}

// purge deletes what the run has, if its next event has the seq next; 0 is no condition. After an unknown
// outcome it looks whether the run is gone.
func purge(ctx context.Context, store runstore.RunStore, lease runstore.Lease, next runstore.Seq) error {
	batch := runstore.NewBatch(lease.Run, lease.Fence(), crossrun.Idle())
	if next > 0 {
		batch.Require(runstore.AtSeq(next))
	}
	batch.Purge = true
	_, err := store.Commit(ctx, batch)
	if err == nil || runstore.OutcomeOf(err) == runstore.NotApplied {
		return err
	}
	look, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanup)
	defer cancel()
	if _, failed := store.GetRun(look, lease.Run); errors.Is(failed, runstore.ErrNotFound) {
		return nil
	}
	return err
}

// release gives the lease back, also after ctx has ended. It ends the grant without the fence, as a
// revocation: the holder before may have left something unfinished, which the operator has not
// recovered. An error leaves the lease to expire.
func release(ctx context.Context, store runstore.RunStore, lease runstore.Lease) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanup)
	defer cancel()
	batch := runstore.NewBatch(lease.Run, runstore.AtToken(lease.Token))
	batch.Release = true
	_, _ = store.Commit(ctx, batch)
}

// recordEnd is record for a last stage, also after ctx has ended.
func recordEnd(ctx context.Context, store runstore.RunStore, entry OperationEntry) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanup)
	defer cancel()
	return record(ctx, store, entry)
}

// RecordOperation appends an entry to the journal of [OperationsRun]. Errors: those of the store.
func RecordOperation(ctx context.Context, store runstore.RunStore, entry OperationEntry) error {
	return record(ctx, store, entry)
}

// record appends an entry to the journal of operations, and creates that run if it is missing. A
// repeat after an unknown outcome appends nothing twice.
func record(ctx context.Context, store runstore.RunStore, entry OperationEntry) error {
	data, err := json.Marshal(entry)
	if err != nil {
		return err
	}
	batch := runstore.NewBatch(OperationsRun, runstore.Unguarded("the journal of operations: every operator appends"))
	batch.ID = runstore.NewBatchID()
	batch.Append(OperationKind, data)
	_, err = optimistic.Commit(ctx, store, batch)
	if !errors.Is(err, runstore.ErrNotFound) {
		return err
	}
	if _, err := store.CreateRun(ctx, runstore.RunSpec{ID: OperationsRun, Unlisted: true}); err != nil {
		return err
	}
	_, err = optimistic.Commit(ctx, store, batch)
	return err
}

// check refuses a request that is not complete.
func (req PurgeRequest) check() error {
	faults := []error{runstore.CheckRunID(req.Run)}
	refuse := func(kind error, field, format string, args ...any) {
		faults = append(faults, &runstore.InputError{Kind: kind, Field: field, Problem: fmt.Sprintf(format, args...)})
	}
	if req.Run == OperationsRun {
		refuse(runstore.ErrInvalid, "run", "%q is the record of all purges, and is not purged", string(req.Run))
	}
	if req.Token < 0 {
		refuse(runstore.ErrInvalid, "token", "%d is negative", int64(req.Token))
	}
	if req.Next < 0 {
		refuse(runstore.ErrInvalid, "next seq", "%d is negative", int64(req.Next))
	}
	for _, text := range []struct{ field, value string }{{"operator", string(req.Operator)}, {"reason", req.Reason}} {
		switch {
		case text.value == "":
			refuse(runstore.ErrInvalid, text.field, "is empty")
		case len(text.value) > runstore.MaxOwner:
			refuse(runstore.ErrTooLarge, text.field, "%d bytes, the limit is %d", len(text.value), runstore.MaxOwner)
		case !utf8.ValidString(text.value):
			refuse(runstore.ErrInvalid, text.field, "is not valid UTF-8")
		}
	}
	return errors.Join(faults...)
}
