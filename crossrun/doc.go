// Package crossrun commits one atomic step over two runs: a fenced batch on one run, the lead, and a
// batch on another run that is guarded by record versions or the seq. It is built on
// runstore.RunStore alone and works on every engine.
//
// # Guarantee
//
// [Commit] applies both batches or neither. A step is applied at most once; an acknowledged step is
// applied exactly once. Once [Acquire] has returned a later grant of the lead's lease, no step of an
// earlier grant changes either run, however long its driver was paused.
//
// If the caller chose the step's id, this holds for all calls with that id together, on one condition:
// the write of each call that asks the lead for an earlier result is made while the lead still
// remembers the id (runstore.RememberedBatches). A call that is made, or delayed, beyond that applies
// the step again if the guards hold. With a write-ahead intent that write precedes the intent, so an
// intent that a repeat has left behind, and a later write of the repeat that arrives late, never apply
// the step again. The guarantee does not include repeats after a purge of either run, repeats in the
// other mode (see [Commit]), repeats under a grant of a later epoch for which [Recover] was not
// called, and a second copy of write 1 that reaches the store after the step has ended and the lead,
// under the same grant, no longer remembers that write: the lead's batch may then be applied again.
//
// If the store is a runstore.MultiCommitter, a step is one atomic write: no reader sees half of it.
//
// On other stores a step uses a write-ahead intent. It ends with both batches applied or neither, and
// it is atomic for the drivers of the lead: a driver that acquires the lease with Acquire finds the
// steps of earlier holders complete. While a step is in progress, a reader of both runs sees, in this
// order,
//
//   - neither batch, and the record [IntentKey] on the lead;
//   - the other run's batch without the lead's, and IntentKey still present;
//   - both batches, and no IntentKey.
//
// A reader that reads the lead first never sees the lead's batch without the other run's. If a driver
// dies in between, the intermediate state lasts until another driver acquires the lead. If the other
// run cannot be reached, the step stays in progress; it ends when the run is reachable again or is
// found to be gone.
//
// The lead's guards are checked when the intent is written; its writes are applied at the end. In
// between, its fence excludes every other driver, and no step of another lead changes a run that
// itself leads a step in progress. The following writers must guard their batches with [Idle]:
//
//   - a writer that changes what steps guard or write on the lead without holding the lead's lease;
//   - the lease holder itself after an unknown outcome, until it has repeated the step or called
//     [Recover];
//   - a purge of the lead: otherwise it deletes the intent, and a driver that was paused can still
//     change the other run after a later grant.
//
// If Idle does not hold, [Settle] completes the step without taking the lease.
//
// # Protocol
//
// Without runstore.MultiCommitter, [Commit] makes these writes:
//
//  0. On the other run: put the mark of this lead, a small record, unless it exists. Either way the
//     reply contains the mark's version, m.
//  1. On the lead, under its fence and guards, and only if there is no intent: put the intent, which
//     holds m, the other run's batch and the lead's writes.
//  2. On the other run, at version m of the mark, under the batch's guards, and only if the run has
//     no intent of its own: apply the batch's writes and set the mark to "applied". If a guard does
//     not hold, set the mark to "refused" instead, again at version m.
//  3. On the lead, under its fence and at the intent's version: apply the lead's writes if the mark
//     says "applied"; delete the intent in either case. [Settle] does this guarded by the lead's
//     token instead of the fence. A release ends the grant under which the step began. A later grant
//     stays.
//  4. On the other run: delete the mark, at the version that step 2 gave it.
//
// The step is decided by the one write that moves the mark from version m. Versions are never reused,
// not even after a deletion or a purge. So among all copies of write 2 (sent by a paused driver, by
// its successors or by a slow network) at most one is applied, and none after a refusal, even if the
// refused guard holds again. (The mark's absence cannot serve as the guard: an absent record is at
// version 0 every time. m is never 0.) This does not depend on the store's memory of batch ids,
// which is short.
//
// If the caller chose the step's id, an earlier call may have begun the step. Then the lead is asked
// for the result before write 0 and again between writes 0 and 1, and a known result ends the call. A
// mark that exists is read, and m is never the version of one that says "applied": that mark is
// deleted first, as by [Sweep], or the step in progress that depends on it is completed. So no intent
// of a repeat can be decided if an earlier call's step is applied. Had that step moved the mark
// after write 0, the mark would have left version m. Had it moved the mark before, the mark would
// still say "applied", or it would have been deleted after the earlier call's write 3, and the lead
// would have known the result after write 0.
//
// A caller that completes an intent that it has found asks the lead for the result first, because
// earlier versions of this package wrote the intent of a repeat without this order. If it is known,
// the mark is deleted at version m, and then the intent. For repeats by such a version the guarantee
// holds only while the lead remembers the id.
//
// The mark is deleted only after the intent, so every reader of the mark finds the same verdict while
// the intent exists. A caller that finds the mark gone (deleted after the step ended, purged with its
// run, or swept before the step was decided) concludes that the step was not applied. That
// conclusion holds only if the caller's own write 3 succeeds: the intent's version, with the fence or
// the token, proves that the step was still in progress. If write 3 fails, the outcome is unknown to
// the caller.
//
// If a store was restored to an older state and its epoch raised, versions may repeat. Marks of the
// new epoch have other keys, so steps that began before the restore find no mark at their version m.
//
// A purge of the other run deletes the verdict: a step in progress then counts as not applied, on
// both runs.
//
// # Stored records
//
// Keys that begin with [Reserved] belong to this package, on every run that takes part in steps.
//
//   - crossrun/intent, on the lead, from write 1 to write 3: at most one.
//   - crossrun/mark/EPOCH/LEAD, on the other run, from write 0 to write 4: at most one for each lead
//     and epoch of its fence. A crash may leave a mark behind, and so may a fenced driver that
//     resumes late. A leftover mark takes a few hundred bytes and blocks nothing; the next step of
//     the same two runs reuses and deletes it, and [Sweep] deletes marks that no step depends on.
//
// A store may limit the records of a run (Bigtable does). The intent reserves room for the lead's
// records, and the mark reserves room for the largest verdict (runstore.RecordWrite.Reserve), so a
// step that has begun can always end. A run that is too full refuses the step before either run is
// changed, or at write 2; in both cases the step is not applied.
//
// Values begin with a format byte. A value of a newer format is refused with
// runstore.ErrUnsupported.
package crossrun
