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
// # Tape's deliveries
//
// The outbox, the obligations and the tasks of package tape follow the same rules, those of
// internal/delivery: when an entry can be claimed and by whom, which report a claim admits, what a
// report makes of the entry, and when it becomes a dead letter. Tasks and messages are also claimed
// by the same loop. The kinds differ where Tape's protocol fixes what it does:
//
//   - Proof of a claim. A message has a receipt, the version of its record. A report on a task names
//     the owner of its claim, so two workers with one name count as the same. A report on an effect
//     or an obligation may present the generation of its claim, or nothing: any caller may report.
//   - Outcome after the claim has ended, while no other claim followed. On a message or a task it is
//     refused. On an effect or an obligation it counts, because what happened outside has happened.
//     That includes an outcome that is reported after a failure.
//   - Attempts. Those of messages and tasks are claims, and an expired one counts. Those of effects
//     and obligations are failures that were reported; an expired claim is none.
//   - The last attempt. A message becomes a dead letter with the failure, or when Claim finds that
//     its last claim has expired. A task and an obligation do with the failure only: however often
//     its claims expire, it is delivered again. The attempts at an effect are not limited.
//   - Giving up. Bury, a permanent nack of a task, and a failure without a next time make a dead
//     letter at once: for a task DLQ, for an obligation STUCK, and for an effect UNKNOWN, which a
//     reconciler resolves.
//   - The time of the next attempt. The caller chooses it; for a task its reaction does, which doubles
//     the pause from attempt to attempt.
//   - Choice of the work. Messages and tasks are claimed by their due time. Effects and obligations
//     are listed, and claimed by their names.
//   - Extension and release. The protocol has neither, so only messages have them.
//
// Each kind keeps its own stored form. Three things look alike and are not deliveries: a hold of a
// capacity has no attempts, and its expiry frees an amount that another caller needs, and nothing
// else; a timer is fired once and never delivered again; the lease of a run has a fencing token.
//
// # Errors
//
// Every error has a kind of package runstore. After ErrUnknownOutcome the caller repeats the call.
// The repeat of an end of a claim returns the first result as long as the store remembers it, which
// is at least runstore.RememberedBatches commits of the message's shard; after that, the repeat of an
// ack succeeds while the message's id is remembered, and other repeats are refused with a LostError.
// The calls of a Capacity can be repeated at any time.
package claim
