// Package group keeps the membership of a group of processes, and shares shards among the members: for
// workers that divide partitions, for service discovery, for routing.
//
// A member holds the lease of a run, and a record of that run has its attributes. A read of the group
// is a scan of one index, and counts the records whose leases are live. There is no server, and no
// process on which the others depend.
//
// # What it guarantees
//
//   - A member counts only while its lease is live, judged on the store clock. Its record is one of the
//     present grant, never of a former one.
//   - Each membership that ends has exactly one event, [EventEnded], in the journal of its run, with the
//     reason: [Released], [Expired] or [Preempted]. The event and the removal of the record are one
//     atomic step: of a release, of the next grant of the name, or of the grant to the member that
//     removes a dead one. The store makes such a grant only if the lease is not live, so a member that
//     renews late is not removed.
//   - A name has one member at a time. A second process under the name waits for the end of the first
//     one's membership, or ends it (MemberSpec.TakeOver). The store refuses the former member's later
//     writes under [Membership.Fence] (I3).
//   - A shard is a run, and its owner holds the lease of that run. The store accepts the writes of one
//     owner at a time, those of an earlier one only before those of a later one (I3).
//   - Of n shards each of k members owns n/k, rounded up or down. After the loss of a member only its
//     shards move: at most n/k, rounded up. After a join only those move that the new member gets.
//   - After the death of an owner, every shard has an owner again within the TTL, the hysteresis and
//     1 s: within TTL + 2 s by default, if the store answers in milliseconds and a live member remains.
//
// # How shards move
//
// The assignment of shards is a record of the group's run. A member that finds the assignment to differ
// from the live members for Options.Hysteresis computes a new one, by rendezvous hashing with bounded
// loads, and commits it with the version that it has read as the guard: of several members one
// succeeds, and all follow the same assignment. The former owner's work ends, its lease is released,
// and the next owner, which waits for the lease, begins. A process that restarts under its name within
// the hysteresis keeps its shards.
//
// # What it does not guarantee
//
//   - A snapshot is as old as its Snapshot.At. A member that is paused counts until its lease expires,
//     and may act on a snapshot or an assignment that is over. The leases of the shards decide, not the
//     assignment.
//   - Work may run twice, as for every lease: a successor continues where the shard's journal ends.
//   - A dead member's record is removed by another member. If none is left, the next member that joins
//     removes it; readers skip it until then.
//   - A process that takes a name over waits for the leases of the shards that the former process holds:
//     until the former process notices its end, at the next heartbeat, or until they expire.
//   - The reason Preempted is that of a takeover which found the lease live when it read it; the lease
//     may have expired in the milliseconds until the grant.
//   - After an outage of the store for longer than the TTL, memberships are lost, and their processes
//     join again.
//
// Each member name that was ever used leaves one unlisted run with a journal of two events for each
// membership, and each change of the assignment one event. Prefer stable names, such as those of a
// StatefulSet, to random ones: they also keep their shards across restarts.
package group
