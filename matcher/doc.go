// Package matcher drives reactions: it matches the entries of the feed of all runs with the live reactions, and
// creates a task, or begins a run, for each match.
//
// Any number of replicas may work on one store. A reaction has shards, and each shard a run of its own, whose
// lease one replica holds (package lease) and whose records are the shard's cursor and tasks.
//
// # Guarantees
//
//  1. Each entry of the feed behind the reaction's start is handled once by each live reaction that it matches,
//     in the order of positions within a shard. One commit creates the tasks and moves the cursor past
//     their entries, under the fence of the shard's lease: whatever kills a replica, or keeps it waiting, comes before that
//     commit or after it, and a replica that was paused beyond its lease is refused.
//     For an AGENT reaction that commit is a write-ahead intent: it names the runs to begin, at
//     most 64. This replica, or the one that takes the shard over, begins them before its next
//     commit. The id of a run is derived from the entry, so a repeat finds the run. The definition
//     under which the commit was made decides how an entry is handled: a change of the handler or
//     of its app takes effect behind the cursor, and no entry has both a task and a run, or runs
//     of two apps.
//  2. A new definition of a reaction is followed within Options.ListInterval, and so is its end. While no reaction is live,
//     the first one is found within Options.TTL, and within 10 s if that is longer. Wake makes both sooner in this process:
//     a server wakes its matcher for the registrations that it serves.
//  3. The shards of a replica that was killed are taken over once their leases have expired, within Options.TTL
//     and about a quarter of it. Those of one that is shut down are released, and taken over within a quarter.
//  4. A shard that cannot go on stalls alone, with a warning in the log, and is tried again after 100 ms at first and
//     30 s at last: because its run is full (runstore.ErrTooLarge), say, or its data are damaged. Its position stands.
//     Events of the feed that are damaged are logged and passed over.
//  5. A position in memory is never ahead of the store for longer than one read of the feed. When
//     the reader finds the store behind its position (a backup was restored, and no epoch was
//     raised), each shard reads its cursor again, as it does under each new lease. The reader does
//     not notice a restored store that has passed its position before the next read, within
//     250 ms: raise the epoch after a restore.
//  6. Shards that match nothing cost no commits while the feed is at rest, and else one every 30 s at most, and then only
//     after 4,096 events. So many a successor matches again after a crash.
//
// A reaction whose pattern or predicate is malformed matches nothing, and its cursors move on.
//
// # How it works
//
// Run lists the live reactions. Each shard has a goroutine that asks for the shard's lease, or waits; package
// lease renews it. The shards of a reaction that this replica holds share readers of the feed, called lanes: one that
// follows the end of the feed, and, while some shards are behind that one, a second for these. A lane matches each page once
// for all of its shards, hands each shard its matches, and waits for their commits before the next page. So a page per lane is in
// memory, and the feed is read no faster than matches are committed. A shard that fails, or whose commit takes more than 10 s,
// leaves its lane, reads its cursor again after a pause, and joins again. A shard whose work on a
// page takes more than 1 s also leaves its lane, begins the runs that its cursor names, and joins
// again at its cursor. So a shard delays the other shards of its lane by 1 s and one request at most.
//
// Rejected: a reader for each shard, which matches each entry as often as there are shards; one reader for all reactions,
// which the slowest shard of all would hold up; queues between a reader and its shards, which a backlog would fill.
//
// # Cost
//
// For each replica: one list of reactions per interval, which is a request every 5 to 10 s by default while there are none; for each shard that it holds, a renewal every third of a TTL, and a
// commit for each page of the feed with matches (more if they do not fit into one; for an AGENT reaction one more, and one for each 64
// runs); for each shard that another replica holds, a
// request for the lease every quarter of a TTL. A shard takes one goroutine, and another one while its lease is
// held: the number of registered shards bounds the memory.
//
// All times are durations on the monotonic clock of the process; leases expire on the store clock.
package matcher
