// Package runstore is the storage contract of Tapestore: one interface, [RunStore], that every
// engine implements with its own strongest primitive.
//
// # One idea
//
// A run is one journal, a set of versioned records and one lease. The run is the unit of
// atomicity, order and fencing. There is one write path, a [Batch] passed to Commit, and the
// engine checks the fence inside that write. Creating a run, acquiring its lease and releasing
// its lease can carry the same writes, applied in the same atomic step.
//
// Two processes may both believe that they hold a run, because a paused process cannot know that
// its lease is gone. Only the fencing token decides: expiry is for progress, the token is for
// safety.
//
// # Guarantees
//
// The conformance suite (package conformance) tests each guarantee by its number, on every engine.
//
//   - I1 Exclusive. On the store clock, a run has at most one live grant.
//   - I2 Tokens only grow. Every grant's token is higher than every token granted before on that
//     run: across release and re-acquire, delete and re-create, store restarts and, with the
//     store's epoch advanced, across a failover to an older replica or a restore from an older
//     backup. Within an epoch each grant adds exactly 1; the epoch is in the token's high bits.
//     Raising the epoch ends every grant of the epochs before it. A caller that presents a token
//     or position above every one that the store knows gets [ErrStoreBehind]; the store never
//     ignores it.
//   - I3 Fenced. A batch with fence F is applied only if F is the run's current grant at the
//     commit point. Once a later grant has been returned to any caller, no batch with F is ever
//     applied, whatever any clock says and however long the writer was paused. Expiry alone does
//     not end a grant: an expired grant that no later grant has replaced is still current, and its
//     holder may commit and renew late. A lease acquired as strict is over at its expiry for its
//     holder too: the store then refuses to renew it or to commit under it. A write that was sent
//     before the expiry and reaches the engine after it is refused by a [StrictCommitter]; other
//     stores may apply it until a later grant.
//   - I4 Atomic. A batch is applied completely or not at all: events, records, index entries,
//     status.
//   - I5 Journal. Dense seq without gaps or duplicates, immutable events, one total order per run.
//   - I6 Free readers. Reads need no lease, never wait for a writer, and see every batch
//     acknowledged before the read began.
//   - I7 Store clock. Expiry is judged by the engine's clock. A caller whose clock is an hour
//     wrong, either way, neither steals a live lease nor loses its own.
//   - I8 Exactly once under retry. The adapter resolves ambiguous outcomes itself; a caller that
//     repeats a batch with the same id gets the first result. Only when the engine stays
//     unreachable does the caller see [ErrUnknownOutcome].
//   - I9 No lost work. ScanIndex finds every index entry of an acknowledged batch, and never
//     returns an entry that is no longer true. A crash between two engine writes loses nothing.
//   - I10 Feed. A reader that resumes from its last position misses no event, under concurrent
//     writers and out-of-order commits; positions are int64, only grow and are at most
//     [MaxPosition], through all epochs up to [MaxEpoch].
//   - I11 Definite errors. After any error but [ErrUnknownOutcome] nothing of the batch is stored.
//     A cancelled context leaves the run usable.
//   - I12 Limits. Oversized or malformed input is refused before it reaches the engine, with
//     [ErrInvalid] or [ErrTooLarge] naming the field and the limit.
//   - I13 Progress. A holder that renews its lease, but has committed no event and no record under
//     its grant for longer than the grant's MaxStall, on the store clock, is refused with
//     ErrNoProgress: its lease ends at its expiry, and the run can be taken over. Heartbeats,
//     refused batches, batches of guards alone, and writes without a fence or under another fence
//     do not count as progress. A late commit under the grant counts while the grant is current.
//
// # Words
//
// A record's [Version] counts its changes: 0 means absent, then 1, 2, 3… A record that is deleted
// and created again continues above every version that a deleted record of the run had. So a
// claim on the old record never matches the new one.
//
// All times that a store returns are on the store clock, in UTC, truncated to microseconds. Times
// that a caller passes are truncated likewise. The commit time that a write returns is never later
// than the commit. On an engine that reveals its clock only in replies (Bigtable) it may be
// earlier, by at most one round trip of Now. The engine judges expiry in either case: a lease whose
// request took longer than a second may last longer there than the expiry that the request returned.
//
// # Opening a store
//
// [Open] takes a URL such as sqlite:./tape.db or memory: and requires that the engine's package is
// imported (package runstore/all imports every engine).
package runstore
