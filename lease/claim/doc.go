// Package claim hands out work and capacity under claims that expire. A [Queue] delivers each message
// to one consumer at a time: a claimed message is invisible to others until the claim ends. A
// [Capacity] is an amount that callers reserve: a hold takes a part of it for a while, or for good
// once it is committed. Both need nothing but a runstore.RunStore, and any number of processes share
// them.
//
// Expiry is judged by the store clock, and is for progress only. What makes claims and holds safe is
// the version of their record: each change is a compare-and-swap. So the end of a claim that has
// expired still counts while no other caller has claimed the message, and the same is true of a
// hold. Afterwards it is refused with a [LostError], however late it arrives.
//
// # What a queue guarantees
//
//   - Put is idempotent by the message's id: while the message is in the queue, and for
//     QueueOptions.Remember after it was acknowledged, a put of the same id adds nothing.
//   - A message is not claimed twice while a claim lives, and is not lost: it stays in the queue
//     until it is acknowledged or discarded. Messages that are due longest come first; there is no
//     other order.
//   - An attempt is a claim. Attempts rise in the commit that claims, also if the former claim
//     expired, and by nothing else. [Queue.Nack] uses the attempt up; [Queue.Release] gives a message
//     back that was not worked on, and takes the attempt back.
//   - A message whose last attempt has failed becomes a dead letter: in the commit of the nack; or,
//     if its claim expired, in a later call of [Queue.Claim] that finds it due.
//   - Of all ends of one claim, one is applied.
//
// Work on a message may be done more than once: by a consumer that died, was paused or lost its
// connection, and by its successor. A consumer that needs each effect once makes the effect
// idempotent by the message's id.
//
// # What a capacity guarantees
//
//   - The sum of all holds and commitments never exceeds the capacity.
//   - The amount of an expired hold is free for the next caller that needs it. A hold that nobody
//     needed the amount of can still be committed, however late.
//   - Nothing leaks: a holder that dies before it commits loses its hold at the expiry. A committed
//     reservation is found by its id, and returned once.
//
// # Errors
//
// Every error has a kind of package runstore. After ErrUnknownOutcome the caller repeats the call.
// The repeat of an end of a claim returns the first result as long as the store remembers it, which
// is at least runstore.RememberedBatches commits of the message's shard; after that, the repeat of an
// ack succeeds while the message's id is remembered, and other repeats are refused with a LostError.
// The calls of a Capacity can be repeated at any time.
package claim
