package crossrun

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"

	"github.com/tapestore/tapestore/runstore"
)

// Result is the result of a step that was applied.
type Result struct {
	// Lead is the result of the lead's batch. Replayed reports that an earlier call with the same
	// id applied the step.
	Lead runstore.Committed
	// Other is the result of the other run's batch. For a repeated step it may be empty, and it has
	// no versions if another caller completed the step: read the run instead.
	Other runstore.Committed
}

// maxAttempts is how often Commit starts over when other steps of the same lead come in between.
const maxAttempts = 16

// Commit applies two batches as one step: lead, under the fence of the lease that the caller holds,
// and other, guarded by a record version or by its seq. Either both are applied or neither is. The
// package documentation describes when, and what readers see meanwhile.
//
// lead.ID is the id of the step; no other write may use it, and other.ID must be empty. A repeat
// with the same id and the same two runs returns the lead's first result and applies nothing, as
// long as the lead remembers the id (runstore.RememberedBatches), even if the other run is gone. A
// repeat after that applies the step again if the guards hold: a caller gives up repeating before.
// With runstore.MultiCommitter the other run's memory of the id also suffices; if the lead has
// forgotten the step, its result is zero except for Replayed. If lead.ID is empty, Commit generates
// an id; set one if you intend to repeat the step after an unknown outcome. A refused step is not
// remembered.
//
// All processes must reach the store in one mode, with or without runstore.MultiCommitter: a repeat in the
// other mode may apply the other run's batch again.
//
// A purge of the lead deletes its memory of ids. A repeat after a purge is refused, with ErrNotFound or
// ErrFenced, even if the step was applied: that refusal says nothing about the first call.
//
// Commit first completes a step of the lead that is still in progress: an earlier holder's, or one
// with an unknown outcome.
//
// With runstore.MultiCommitter a step is one write. Without it, a step is five writes: two on the
// lead and three on the other run. With lead.ID it is seven, and a repeat whose result the lead
// remembers is one. If no id is set, a refusal by the lead costs three writes, and a refusal by the
// other run costs six writes and a read. In either mode a refused guard of the lead costs one more
// read.
//
// After these errors nothing of the step is stored or ever will be, except by an earlier call whose id
// the lead no longer remembers:
//   - runstore.ErrFenced, ErrLeaseExpired, ErrStoreBehind: the lead's fence is not current.
//   - runstore.ErrConflict: a guard of either run does not hold; as *runstore.ConflictError, with
//     the state that the guard found. Its key is [IntentKey] if the other run itself leads a step
//     in progress; the holder of that run, or its next one, completes that step.
//   - runstore.ErrNotFound: one of the runs does not exist, or the other run was purged.
//   - runstore.ErrInvalid, ErrTooLarge: as *runstore.InputError. A step cannot purge; neither batch
//     may have the guard runstore.AtToken; keys that begin with [Reserved] are not available to the
//     caller; each batch may have two guards and one record less than the contract allows; both runs'
//     writes together must fit into one record.
//   - runstore.ErrUnavailable, ErrClosed: the store failed before this call began the step. For a
//     repeat, this says nothing about the earlier calls.
//
// After runstore.ErrUnknownOutcome the step may have been applied, been refused, or be in progress.
// The error may also match its cause, such as ErrFenced. Repeat the step with the same id or call
// [Recover]; otherwise the next [Acquire] of the lead completes it.
func Commit(ctx context.Context, s runstore.RunStore, lead, other runstore.Batch) (Result, error) {
	if err := check(lead, other); err != nil {
		return Result{}, err
	}
	c := call{store: s, lead: lead, other: other, repeat: lead.ID != ""}
	if !c.repeat {
		c.lead.ID = runstore.NewBatchID()
	}
	for range maxAttempts {
		result, again, err := c.attempt(ctx)
		if !again {
			return result, err
		}
	}
	return Result{}, opError(lead.Run(), runstore.ErrUnavailable, errors.New("other steps of the run came in between every time"))
}

// call is one call of Commit.
type call struct {
	store       runstore.RunStore
	lead, other runstore.Batch
	// repeat reports that the caller chose the id, so an earlier call may have begun the step.
	repeat bool
}

func (c call) fence() runstore.Fence { return c.lead.Guards().Fence }

// attempt tries the step once. again reports that the step was not applied for a reason other than
// its own guards, so that Commit starts over.
func (c call) attempt(ctx context.Context) (result Result, again bool, err error) {
	if multi, ok := runstore.As[runstore.MultiCommitter](c.store); ok {
		result, again, err = c.commitMulti(ctx, multi)
		if again || runstore.KindOf(err) != runstore.ErrUnsupported { // an unknown outcome may match ErrUnsupported, too
			return result, again, err
		}
	}
	return c.commitByIntent(ctx)
}

// commitMulti makes the step as one write of the engine.
func (c call) commitMulti(ctx context.Context, s runstore.MultiCommitter) (Result, bool, error) {
	lead := runstore.NewBatch(c.lead.Run(), c.fence(), Idle())
	lead.Require(guardList(c.lead.Guards())...)
	lead.ID, lead.Writes = c.lead.ID, c.lead.Writes
	other := runstore.NewBatch(c.other.Run(), Idle(), guardList(c.other.Guards())...)
	other.ID, other.Writes = otherID(lead), c.other.Writes
	done, err := s.CommitMulti(ctx, []runstore.Batch{lead, other})
	if err != nil {
		return c.resolveRefusal(ctx, err)
	}
	return Result{Lead: done[0], Other: done[1]}, false, nil
}

// otherID returns the id of the other run's batch in a step that the engine commits as one write.
// It is the same for each repeat and differs between leads.
func otherID(lead runstore.Batch) runstore.BatchID {
	w := &writer{}
	w.string(string(lead.Run()))
	w.string(string(lead.ID))
	sum := sha256.Sum256(w.b)
	return runstore.BatchID("crossrun/" + hex.EncodeToString(sum[:20]))
}

// commitByIntent makes the step with a write-ahead intent; see the package documentation.
func (c call) commitByIntent(ctx context.Context) (Result, bool, error) {
	in := intentOf(c.lead, c.other, c.lead.ID)
	if result, known, err := c.lookUp(ctx); err != nil || known { // an answer here costs no other write
		return result, false, err
	}
	made, unusable, err := c.openMark(ctx, &in)
	switch {
	case err != nil:
		return c.resolveUnmarked(ctx, err)
	case unusable:
		return c.replaceMark(ctx, in)
	}
	// The order matters: a step that is applied after the mark was read moves the mark, and one that was
	// applied before is known by now, or in progress, which refuses the intent.
	if result, known, err := c.lookUp(ctx); err != nil || known {
		if made {
			removeMark(ctx, c.store, in, in.mark)
		}
		return result, false, err
	}
	done, err := c.store.Commit(ctx, in.propose(c.lead.Guards()))
	if err != nil {
		// An earlier call whose intent is still on its way may rely on this mark, too. Without the mark it
		// can no longer be applied, so that the refusal is final.
		if !undecidable(err) && (made || c.repeat && !meetsIntent(err)) {
			_, kept := c.store.Commit(ctx, deleteMark(in.other, in.markKey(), in.mark))
			if c.repeat && undecidable(kept) {
				return Result{}, false, pendingError(in.lead, kept)
			}
		}
		return c.resolveLeadRefusal(ctx, err)
	}
	end, err := conclude(ctx, c.store, c.fence(), in, versionAt(done, 0))
	return end.toCaller(err)
}

// lookUp asks the lead for the result of an earlier call, if there can have been one.
func (c call) lookUp(ctx context.Context) (result Result, known bool, err error) {
	if !c.repeat {
		return Result{}, false, nil
	}
	done, known, err := lookUpResult(ctx, c.store, c.lead.Run(), c.lead.ID)
	switch {
	case runstore.KindOf(err) == runstore.ErrInvalid: // the store has not evaluated it
		return Result{}, false, pendingError(c.lead.Run(), err)
	case err != nil || !known:
		return Result{}, false, notApplied(c.lead.Run(), err)
	}
	return Result{Lead: trimVersions(done, len(c.lead.Records))}, true, nil
}

// meetsIntent reports whether a write of the lead was refused because a step was under way.
func meetsIntent(err error) bool {
	var conflict *runstore.ConflictError
	return errors.As(err, &conflict) && conflict.Key == IntentKey
}

// intentOf returns the intent of a new attempt at the step, under a fresh name.
func intentOf(lead, other runstore.Batch, id runstore.BatchID) intent {
	return intent{
		lead: lead.Run(), name: string(runstore.NewBatchID()), id: id,
		token: lead.Guards().Fence.Token(), epoch: lead.Guards().Fence.Token().Epoch(),
		other: other.Run(), otherGuards: other.Guards(), otherWrites: other.Writes, leadWrites: lead.Writes,
	}
}

// openMark makes sure that the mark exists on the other run and stores its version in in.mark. made
// reports whether this call created the mark. unusable reports that the mark may be the verdict on an earlier
// call, namely that a step was applied, or that it has just been deleted. A step that no earlier call can have
// begun takes any mark.
func (c call) openMark(ctx context.Context, in *intent) (made, unusable bool, err error) {
	done, err := c.store.Commit(ctx, in.createMark())
	var conflict *runstore.ConflictError
	switch {
	case err == nil:
		in.mark = versionAt(done, 0)
		return true, false, nil
	case !errors.As(err, &conflict):
		return false, false, err
	}
	in.mark = conflict.Current
	if !c.repeat {
		return false, false, nil
	}
	rec, found, err := read(ctx, c.store, in.other, in.markKey())
	if err != nil || !found {
		return false, !found, err
	}
	in.mark = rec.Version
	m, err := decodeMark(rec.Value)
	return false, err != nil || m.verdict == verdictApplied, nil // what a newer version wrote may be any verdict
}

// replaceMark deletes an unusable mark, so that Commit starts over without it. If a step of the lead is in
// progress, which may depend on the mark, replaceMark completes that step instead.
func (c call) replaceMark(ctx context.Context, in intent) (Result, bool, error) {
	if refusal := c.askLead(ctx); refusal != nil {
		return c.resolveLeadRefusal(ctx, refusal)
	}
	_, err := c.store.Commit(ctx, deleteMark(in.other, in.markKey(), in.mark))
	if err != nil && !errors.Is(err, runstore.ErrConflict) && !errors.Is(err, runstore.ErrNotFound) {
		return Result{}, false, notApplied(in.lead, err)
	}
	return Result{}, true, nil
}

// askLead returns an error if the lead would refuse the step, or leads a step in progress. It changes nothing.
func (c call) askLead(ctx context.Context) error {
	asked := runstore.NewBatch(c.lead.Run(), c.fence(), Idle())
	asked.Require(guardList(c.lead.Guards())...)
	_, err := c.store.Commit(ctx, asked)
	return notApplied(c.lead.Run(), err)
}

// resolveUnmarked returns the result of a step whose mark could not be put on the other run. A
// refusal by the lead takes precedence, as it does where the engine commits the step as one write.
func (c call) resolveUnmarked(ctx context.Context, err error) (Result, bool, error) {
	if undecidable(err) {
		return Result{}, false, notApplied(c.lead.Run(), err)
	}
	if first := c.askLead(ctx); first != nil {
		return c.resolveLeadRefusal(ctx, first)
	}
	return c.resolveRefusal(ctx, err)
}

// resolveLeadRefusal is resolveRefusal for a write of the lead. A write that met another step is tried
// again even if that step has ended since.
func (c call) resolveLeadRefusal(ctx context.Context, err error) (Result, bool, error) {
	result, again, refusal := c.resolveRefusal(ctx, err)
	return result, again || refusal == err && meetsIntent(err), refusal
}

// resolveRefusal returns the result of a step whose first write failed with err. A definite refusal
// is returned as the step's own only if no other step is in progress that must be completed first,
// and if this is not a repeat whose first call succeeded.
func (c call) resolveRefusal(ctx context.Context, err error) (Result, bool, error) {
	conflict := errors.Is(err, runstore.ErrConflict)
	if undecidable(err) || errors.Is(err, runstore.ErrUnsupported) || !conflict && !c.repeat {
		return Result{}, false, err
	}
	run := c.lead.Run()
	in, version, unread := readIntent(ctx, c.store, run)
	switch {
	case c.repeat && unread != nil && !errors.Is(unread, runstore.ErrNotFound):
		return Result{}, false, pendingError(run, unread)
	case errors.Is(unread, runstore.ErrUnsupported):
		return Result{}, false, unread
	case version != 0 && conflict:
		end, failed := complete(ctx, c.store, c.fence(), in, version)
		if in.id == c.lead.ID {
			return end.toCaller(failed)
		}
		failed = errors.Join(failed, end.intentErr)
		if failed == nil || errors.Is(failed, runstore.ErrConflict) { // in the latter case another caller completed it
			return Result{}, true, nil
		}
		err = notApplied(run, failed)
	case version != 0 && in.id == c.lead.ID:
		return Result{}, false, pendingError(run, err)
	}
	if c.repeat {
		switch done, known, unasked := lookUpResult(ctx, c.store, run, c.lead.ID); {
		case known:
			return Result{Lead: trimVersions(done, len(c.lead.Records))}, false, nil
		case unasked != nil && !errors.Is(unasked, runstore.ErrNotFound): // also ErrInvalid: the store has not evaluated it
			return Result{}, false, pendingError(run, unasked)
		}
	}
	return Result{}, false, err
}

// toCaller returns what attempt returns for a step that ended so.
func (end ending) toCaller(err error) (Result, bool, error) {
	switch {
	case err != nil:
		return Result{}, false, err
	case end.verdict == verdictApplied:
		return end.result, false, nil
	case end.verdict == verdictVoid && !errors.Is(end.reason, runstore.ErrNotFound):
		return Result{}, true, nil
	case fenceLost(end.intentErr):
		return Result{}, false, end.intentErr
	default:
		return Result{}, false, end.reason
	}
}
