package crossrun

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"

	"github.com/tapestore/tapestore/runstore"
)

// Result is what a step did.
type Result struct {
	// Lead is the result of the lead's batch. Replayed says that the step was
	// made by an earlier call with the same id.
	Lead runstore.Committed
	// Other is the result of the other run's batch. Of a repeat it may tell nothing,
	// and it has no versions where another caller applied it: read the run.
	Other runstore.Committed
}

// maxAttempts bounds how often a step starts over because others of the same lead
// came in between.
const maxAttempts = 16

// Commit applies two batches as one step: lead, under the fence of the lease that
// the caller holds, and other, guarded by a version or by its seq. Both are applied
// or none is; see the package's documentation for when, and for what readers see.
//
// lead.ID is the step's id, and no other write's; other has none. A repeat, of the
// same two runs with the same id, gets the lead's first result and applies nothing,
// as long as the lead remembers the id (runstore.RememberedBatches), whatever the
// other run remembers, even if it is gone. With runstore.MultiCommitter the other
// run's memory does as well: when the lead has forgotten the step, its result is
// zero but for Replayed. Commit makes an id where there is none; give one if you
// mean to repeat the step after an unknown outcome. A step that was refused is not
// remembered.
//
// A step of the lead that is under way, an earlier holder's or one whose outcome
// was unknown, is completed first.
//
// With runstore.MultiCommitter a step is one write. Without, it is five: two on
// the lead, three on the other run; and one more if lead.ID is set. Without an id,
// a refusal by the lead is three writes, and one by the other run is six and a
// read; a refused guard of the lead costs a read in either mode.
//
// Errors, after which nothing of the step is stored, or ever will be:
//   - runstore.ErrFenced, ErrLeaseExpired, ErrStoreBehind: the lead's fence.
//   - runstore.ErrConflict: a guard of either run; as *runstore.ConflictError,
//     with what the guard found. Its key is [IntentKey] when the other run leads a
//     step itself that is under way: its holder, or its next one, completes it.
//   - runstore.ErrNotFound: there is no such run, or the other was purged.
//   - runstore.ErrInvalid, ErrTooLarge: as *runstore.InputError. Purge is no part
//     of a step, keys that begin with [Reserved] are not the caller's, each run
//     has room for two guards and one record less than the contract allows, and
//     both runs' writes together have to fit into one record.
//   - runstore.ErrUnavailable, ErrClosed: before this call began the step. Of the
//     calls before it, a repeat that ends so says nothing.
//
// runstore.ErrUnknownOutcome: the step may have been applied, be refused, or be
// under way. It may match what stood in the way too, such as ErrFenced. Repeat it
// with the same id, or [Recover]; else the next [Acquire] of the lead completes it.
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
	// repeat says that the caller chose the id: the step may have been begun before.
	repeat bool
}

func (c call) fence() runstore.Fence { return c.lead.Guards().Fence }

// attempt makes the step once. again is true when it was not applied for a reason
// that concerns neither of its runs' guards.
func (c call) attempt(ctx context.Context) (result Result, again bool, err error) {
	if multi, ok := c.store.(runstore.MultiCommitter); ok {
		result, again, err = c.atOnce(ctx, multi)
		if again || !errors.Is(err, runstore.ErrUnsupported) {
			return result, again, err
		}
	}
	return c.writtenAhead(ctx)
}

// atOnce leaves the step to the engine.
func (c call) atOnce(ctx context.Context, s runstore.MultiCommitter) (Result, bool, error) {
	lead := runstore.NewBatch(c.lead.Run(), c.fence(), Idle())
	lead.Require(guardList(c.lead.Guards())...)
	lead.ID, lead.Writes = c.lead.ID, c.lead.Writes
	other := runstore.NewBatch(c.other.Run(), Idle(), guardList(c.other.Guards())...)
	other.ID, other.Writes = otherID(lead), c.other.Writes
	done, err := s.CommitMulti(ctx, []runstore.Batch{lead, other})
	if err != nil {
		return c.refused(ctx, err)
	}
	return Result{Lead: done[0], Other: done[1]}, false, nil
}

// otherID is the id of the other run's batch in a step that the engine makes at
// once: the same for each repeat, and no other lead's.
func otherID(lead runstore.Batch) runstore.BatchID {
	w := &writer{}
	w.string(string(lead.Run()))
	w.string(string(lead.ID))
	sum := sha256.Sum256(w.b)
	return runstore.BatchID("crossrun/" + hex.EncodeToString(sum[:20]))
}

// writtenAhead makes the step by an intent.
func (c call) writtenAhead(ctx context.Context) (Result, bool, error) {
	run := c.lead.Run()
	if c.repeat {
		switch done, known, err := recall(ctx, c.store, run, c.lead.ID); {
		case err != nil:
			return Result{}, false, notApplied(run, err)
		case known:
			return Result{Lead: without(done, len(c.lead.Records))}, false, nil
		}
	}
	in := intentOf(c.lead, c.other, c.lead.ID)
	made, err := c.openMark(ctx, &in)
	if err != nil {
		return c.unmarked(ctx, err)
	}
	done, err := c.store.Commit(ctx, in.propose(c.lead.Guards()))
	if err != nil {
		if made && !unjudged(err) {
			removeMark(ctx, c.store, in, in.mark)
		}
		result, again, refusal := c.refused(ctx, err)
		// A step that was under way at the write may have been completed by its own caller before
		// refused looked for it.
		return result, again || refusal == err && meetsIntent(err), refusal
	}
	end, err := complete(ctx, c.store, c.fence(), in, versionAt(done, 0))
	return end.toCaller(err)
}

// meetsIntent reports whether a write of the lead was refused because a step was under way.
func meetsIntent(err error) bool {
	var conflict *runstore.ConflictError
	return errors.As(err, &conflict) && conflict.Key == IntentKey
}

// intentOf makes an intent of an attempt of its own.
func intentOf(lead, other runstore.Batch, id runstore.BatchID) intent {
	return intent{
		lead: lead.Run(), name: string(runstore.NewBatchID()), id: id,
		epoch: lead.Guards().Fence.Token().Epoch(),
		other: other.Run(), guards: other.Guards(), writes: other.Writes, own: lead.Writes,
	}
}

// openMark sees to a mark on the other run and learns its version. made tells
// whether there was none.
func (c call) openMark(ctx context.Context, in *intent) (made bool, err error) {
	done, err := c.store.Commit(ctx, in.open())
	var conflict *runstore.ConflictError
	switch {
	case err == nil:
		in.mark = versionAt(done, 0)
		return true, nil
	case errors.As(err, &conflict):
		in.mark = conflict.Current
		return false, nil
	default:
		return false, err
	}
}

// unmarked answers a step whose other run could not be marked. The lead's refusal
// comes first, as it does where the engine makes the step at once.
func (c call) unmarked(ctx context.Context, err error) (Result, bool, error) {
	if unjudged(err) {
		return Result{}, false, notApplied(c.lead.Run(), err)
	}
	asked := runstore.NewBatch(c.lead.Run(), c.fence(), Idle())
	asked.Require(guardList(c.lead.Guards())...)
	if _, first := c.store.Commit(ctx, asked); first != nil {
		err = notApplied(c.lead.Run(), first)
	}
	return c.refused(ctx, err)
}

// refused answers a step whose first write met err. A definite refusal is the
// step's own only if no step is under way that has to be completed first, and if
// it is not the refusal of a repeat whose first call went through.
func (c call) refused(ctx context.Context, err error) (Result, bool, error) {
	conflict := errors.Is(err, runstore.ErrConflict)
	if unjudged(err) || errors.Is(err, runstore.ErrUnsupported) || !conflict && !c.repeat {
		return Result{}, false, err
	}
	run := c.lead.Run()
	in, version, unread := pending(ctx, c.store, run)
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
		failed = errors.Join(failed, end.left)
		if failed == nil || errors.Is(failed, runstore.ErrConflict) { // or another caller ended it
			return Result{}, true, nil
		}
		err = notApplied(run, failed)
	case version != 0 && in.id == c.lead.ID:
		return Result{}, false, pendingError(run, err)
	}
	if c.repeat {
		switch done, known, unasked := recall(ctx, c.store, run, c.lead.ID); {
		case known:
			return Result{Lead: without(done, len(c.lead.Records))}, false, nil
		case unasked != nil && unjudged(unasked):
			return Result{}, false, pendingError(run, unasked)
		}
	}
	return Result{}, false, err
}

// toCaller is the answer to the caller whose step ended so.
func (end ending) toCaller(err error) (Result, bool, error) {
	switch {
	case err != nil:
		return Result{}, false, err
	case end.verdict == applied:
		return end.result, false, nil
	case end.verdict == void && !errors.Is(end.reason, runstore.ErrNotFound):
		return Result{}, true, nil
	case disowned(end.left):
		return Result{}, false, end.left
	default:
		return Result{}, false, end.reason
	}
}
