// Package crossrun makes steps over two runs: a fenced write of one run, the lead,
// together with a write of another that versions or the seq guard. It is written once,
// over runstore.RunStore alone, and works on every engine.
//
// # Guarantee
//
// [Commit] applies both batches or none. A step is applied at most once, and one
// that was acknowledged exactly once. Once a later grant of the lead's lease has
// been returned by [Acquire], no step of an earlier grant changes either run,
// however long its driver was paused.
//
// Where the store is a runstore.MultiCommitter, a step is one atomic write: no
// reader sees one half.
//
// Elsewhere a step is all or nothing in the end, and atomic for the drivers of the
// lead: whoever holds the lease, by Acquire, finds the earlier holders' steps
// whole. In between, a reader of both runs sees, in this order,
//
//   - neither write, and the record [IntentKey] on the lead;
//   - the other run's write without the lead's, and IntentKey still there;
//   - both writes, and no IntentKey.
//
// It never sees the lead's write without the other run's, if it reads the lead
// first. When a driver dies in between, that state lasts until somebody acquires
// the lead. While the other run cannot be reached the step stays under way; it ends
// when the run can be reached or is found to be gone.
//
// The lead's guards are judged when the intent is written, and its writes are made
// at the end. Its fence rules out every other driver in between, and no step of
// another lead changes a run that leads a step under way. Who writes the lead by
// other means, without its lease, and changes what steps guard or write, has to
// guard with [Idle]; so has the holder itself after an unknown outcome, before it
// has repeated the step or called [Recover]. Where Idle does not hold, [Settle] ends the
// step and leaves the lease. A lead that is purged while a step is
// under way leaves the step as it is; guard the purge with Idle too.
//
// # Protocol
//
// Without runstore.MultiCommitter, [Commit] makes these writes:
//
//  0. On the other run: put a mark, a small record, if this lead has none there.
//     Either way the answer tells its version, m.
//  1. On the lead, under its fence, its guards, and if there is no intent: put the
//     intent, which holds m, the other run's batch and the lead's writes.
//  2. On the other run, at version m of the mark, under the batch's guards, and if
//     there is no intent of its own: the batch's writes, and the mark becomes
//     "applied". If a guard does not hold, the mark becomes "refused" instead, again
//     at version m.
//  3. On the lead, under its fence and at the intent's version: if it was applied,
//     the lead's writes; the intent is deleted either way. [Settle] does it at the
//     lead's token, without the fence.
//  4. On the other run: delete the mark, at the version of step 2.
//
// The decision is the one write that moves the mark from m. A version never comes
// again: not after a deletion, nor after a purge. So of all copies of step 2, those
// of a paused driver, of its successors and of a slow network, one is applied, at
// most, and none after a refusal, even when the refused guard holds again (an
// absent record is at version 0 again and again; m is never 0). That holds without
// the store's memory of batch ids, which is short.
//
// Everybody who looks at the mark while the intent is there learns the same
// verdict, for the mark is removed only after the intent. Who finds it gone (it was
// removed after the step's end, or purged with its run, or swept away before the
// step was decided) concludes that the step was not applied, and that is true only
// if its own step 3 then succeeds: the intent's version, with the fence or the token,
// proves that the step was still under way. If it does not succeed, the outcome is unknown to
// it.
//
// Where a store was set back to an older state and its epoch raised, versions may
// come again. Marks of the new epoch are other records, so the steps of the time
// that was lost find none at their version m.
//
// A purge of the other run takes the verdict with it: a step that was under way
// then counts as not applied, on both runs.
//
// # What is stored
//
// Keys that begin with [Reserved] belong to this package on all runs that take part
// in steps.
//
//   - crossrun/intent, on the lead, from step 1 to step 3: at most one.
//   - crossrun/mark/EPOCH/LEAD, on the other run, from step 0 to step 4: at most one
//     for each lead and epoch of its fence. A crash may leave it behind, and so may
//     a fenced driver that wakes up late. It is of some hundred bytes and in nobody's
//     way; the next step of the same two runs uses and removes it, and [Sweep]
//     removes those that no step depends on.
//
// A store may limit the records of a run (Bigtable). The intent keeps room for the lead's
// records, and a mark for the largest verdict (runstore.RecordWrite.Reserve), so a step
// that was begun can be ended: a run that is too full refuses it before either run is
// changed, or at step 2, and then it is not applied.
//
// Values begin with a format byte; one of a newer format is refused with
// runstore.ErrUnsupported.
package crossrun
