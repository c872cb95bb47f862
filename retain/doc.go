// Package retain archives finished runs and purges them from a store. It works on every engine, through
// runstore.RunStore and the capability runstore.Mover, and on the runs of any layer above the store:
// a [Policy] says which runs have ended.
//
// # Which runs qualify
//
// [Pass] scans the listed runs in the order of their creation. It archives and purges a run if all of
// these hold, judged on the store clock:
//
//   - Policy.Ended returns an end that is at least Policy.Journals ago.
//   - The newest event and the newest change of a record are as old. So is the expiry of the run's last
//     lease, whether it was released or not: a run that was imported or restored lately stays.
//   - No lease is live, and the run wants no driver (runstore.IndexRunnable).
//   - No record has an entry in a queue, except in those that Policy.Settled accepts: a due timer, an
//     effect that is not complete, a task.
//   - No step over two runs is in progress (package crossrun). Marks that crashed steps have left are
//     swept, so the next pass finds the run without them.
//
// A run that does not qualify is kept and counted by its reason.
//
// # Order, and what a crash leaves
//
//  1. The run is read, and the digest of its state computed.
//  2. The archive is written under a name that contains the run's id, its token, its last seq and that
//     digest. A target shows an object only when it is complete.
//  3. The object is read back, and every sum and the digest are checked.
//  4. The records are read once more, and the run is purged by one batch. Its guards are the token, the
//     next seq, the status and the versions of up to 250 records, as they were in step 1.
//
// A crash between two steps leaves the run as it was, and at most an object that the next pass finds,
// checks and uses. No step takes the run's lease, so nothing has to be undone.
//
// The guards hold only if no grant was made and no event was committed since step 1. What they cannot
// notice is a record that a writer without a lease adds or changes between step 4's two requests, without
// an event: the purge deletes it, and the archive does not have it.
//
// Two passes at once do no harm: the names of their objects are the same for the same state, and one of
// the purges finds no run.
//
// # The feed
//
// The contract has no operation that trims the feed. The feed loses the events of a run when the run is
// purged. [Policy].Journals must be at least Policy.Feed, and a run is purged only when all its events
// are older than Journals, so a reader that is at most Feed behind never loses an event.
package retain
