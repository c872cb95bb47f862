package tape

import (
	"context"
	"errors"
	"slices"

	"github.com/tapestore/tapestore/runstore"
)

// This file registers a business key on a store that commits to one run at a time, with a
// write-ahead intent. The attempt is decided by one commit to the effect's own run, under the fence
// of its driver if one was presented. No lease of the registry is needed, and no driver has to
// complete what another left.
//
//  1. On the run, under the guards of the effect: put a mark, under a key that no other attempt
//     has.
//  2. On the registry, at the version of the registration that was read: put the registration, with
//     the mark's key and version.
//  3. On the run, under the guards of the effect and at the version of the mark: begin the effect
//     and delete the mark. Either this commit or the one that voids the attempt moves the mark.
//
// Another caller that finds the registration returns its effect, or waits for it, or deletes the
// mark at its version and then replaces the registration at its version. Invariants:
//
//  1. A registration is replaced only if its effect is absent and its mark is gone. Step 3 of its
//     attempt can then not be applied, however long the creator or its request was delayed: a
//     version is never reused, not even after a deletion or a purge, and no other attempt has the
//     mark's key, not even in a store that was restored to an older state.
//  2. So at most one registration of a pair has an effect, and that registration is not replaced
//     before the effect is purged with its run.
//  3. A creator that dies leaves a mark, a record of about 150 bytes, which is harmless. The next
//     caller that finds its registration deletes it. If the creator died before step 2, the mark
//     stays.
//
// Rejected: a crossrun step with the run as its lead. It needs a lease even if no fence is
// presented, each takeover would have to complete steps first, each write without a fence would
// have to be guarded against them, and it takes twice the calls.

// storedMark is the stored form of a mark.
type storedMark struct {
	Registry runstore.RunID `json:"registry"`
}

const markPrefix = "business/"

// commitAhead begins and registers the effect if the registration is still at version known. Three
// round trips, and one more for a new registry.
func (r registrar) commitAhead(ctx context.Context, known runstore.Version) (runstore.Committed, error) {
	reg := registration{Run: r.effect.Run, Key: r.effect.Key, Mark: markPrefix + runstore.RecordKey(runstore.NewBatchID())}
	mark := r.guarded()
	mark.Require(runstore.AtVersion(reg.Mark, 0))
	mark.Put(reg.Mark, encode(storedMark{Registry: r.registry}))
	done, err := r.t.commit(ctx, mark)
	if err != nil {
		return runstore.Committed{}, notBegun(err)
	}
	reg.At = done.Versions[0]
	if err = r.registerAhead(ctx, known, reg); err == nil {
		begin := r.guarded()
		begin.Require(runstore.AtVersion(reg.Mark, reg.At))
		begin.Writes = r.begin.Writes
		begin.Records = slices.Clone(begin.Records)
		begin.Delete(reg.Mark)
		done, err = r.t.commit(ctx, begin)
		switch {
		case err == nil, runstore.OutcomeOf(err) == runstore.Unknown:
			return done, err
		case conflictOn(err, reg.Mark):
			return runstore.Committed{}, errLost
		}
	}
	if !errors.Is(err, runstore.ErrFenced) { // a zombie writes nothing
		_ = r.unmark(ctx, reg) // saves the next caller the wait
	}
	return runstore.Committed{}, err
}

func (r registrar) registerAhead(ctx context.Context, known runstore.Version, reg registration) error {
	if err := r.createRegistry(ctx, known); err != nil {
		return err
	}
	_, err := r.t.commit(ctx, r.register(known, reg))
	if errors.Is(err, runstore.ErrConflict) || errors.Is(err, ErrNoSuchRun) { // or the registry was purged
		return errLost
	}
	return notBegun(err)
}

// unmark deletes the mark of an attempt, if it exists. The attempt then cannot begin the effect any
// more.
func (r registrar) unmark(ctx context.Context, reg registration) error {
	b := runstore.NewBatch(reg.Run, runstore.AtVersion(reg.Mark, reg.At))
	b.Delete(reg.Mark)
	_, err := r.t.commit(ctx, b)
	return err
}
