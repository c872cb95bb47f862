// Package matcher drives reactions: it matches the entries of the feed of all runs with the live
// reactions, and creates a task or begins a run for each match.
//
// Any number of replicas may work on one store. A reaction has shards. Each shard has a run of its
// own, whose lease one replica holds (package lease) and whose records are the shard's cursor and
// tasks.
//
// # Guarantees
//
//  1. Each entry of the feed after the reaction's start is handled once by each live reaction that
//     it matches, in the order of positions within a shard. One commit creates the tasks and moves
//     the cursor past their entries, under the fence of the shard's lease. A replica that is killed
//     or paused has either made that commit or not, and a replica that was paused beyond its lease
//     is refused. For an AGENT reaction that commit is a write-ahead intent: it names the runs to
//     begin, at most 64. This replica, or the one that takes the shard over, begins them before its
//     next commit. The id of a run is derived from the entry, so a repeat finds the run. The
//     definition under which the commit was made decides how an entry is handled: a change of the
//     handler or of its app takes effect after the cursor, and no entry has both a task and a run,
//     or runs of two apps.
//  2. A replica follows a new definition of a reaction, and its end, within Options.ListInterval.
//     While no reaction is live, it finds the first one within Options.TTL or ListInterval,
//     whichever is longer (the TTL counts up to 10 s). Wake makes both immediate in this process: a
//     server wakes its matcher for the registrations that it serves.
//  3. The shards of a replica that was killed are taken over once their leases have expired: within
//     Options.TTL and about a quarter of it. A replica that shuts down releases its shards, and
//     they are taken over within a quarter of the TTL.
//  4. A shard that cannot continue stalls alone, with a warning in the log, and is retried after
//     100 ms at first and at most 30 s: for example because its run is full (runstore.ErrTooLarge)
//     or its data are damaged. It keeps its position. Damaged events of the feed are logged and
//     skipped.
//  5. A position in memory is never ahead of the store for longer than one read of the feed. When
//     the reader finds the store behind its position (a backup was restored, and no epoch was
//     raised), each shard reads its cursor again, as it does under each new lease. If the restored
//     store passes the reader's position before the next read, within 250 ms, the restore stays
//     unnoticed: raise the epoch after a restore.
//  6. Shards that match nothing cost no commits while the feed is idle, and otherwise at most one
//     every 30 s, and only after 4,096 events. That is the number of events that a successor
//     matches again after a crash.
//
// A reaction whose pattern or predicate is malformed matches nothing, and its cursors move on; a warning is
// logged. An entry on which the predicate fails (package predicate) does not match. Each replica logs a
// warning for the first such entry under each definition of a reaction.
//
// # How it works
//
// Run lists the live reactions. Each shard has a goroutine that requests the shard's lease, or
// waits; package lease renews it. The shards of a reaction that this replica holds share readers of
// the feed, called lanes: one follows the end of the feed, and a second serves the shards that are
// behind the first, if any. The second reads a page for its foremost shards and one for its last, in turn, so
// a shard with a small backlog waits for no large one. A lane matches each page once for all of its
// shards that it may concern, gives each shard its matches, and waits for their commits before the
// next page. So each lane has one page in memory, and the feed is read no faster than matches are
// committed. A shard that fails, or whose commit takes more than 10 s, leaves its lane, reads its
// cursor again after a pause, and joins again. A shard whose work on a page takes more than 1 s also
// leaves its lane, begins the runs that its cursor names, and joins again at its cursor. So a shard
// delays the other shards of its lane by at most 1 s and one request.
//
// Rejected: a reader for each shard, which would match each entry once per shard; one reader for
// all reactions, which the slowest shard would delay; queues between a reader and its shards, which
// a backlog would fill.
//
// # Cost
//
// Each replica costs:
//
//   - one list of reactions per interval: by default a request every 5 to 10 s while there are
//     none;
//   - for each shard that it holds: a renewal every third of a TTL, and a commit for each page of
//     the feed with matches (more if they do not fit into one; for an AGENT reaction one more, and
//     one for each 64 runs);
//   - for each shard that another replica holds: a request for the lease every quarter of a TTL.
//
// A shard takes one goroutine, and another one while its lease is held: the number of registered
// shards bounds the memory.
//
// All times are durations on the monotonic clock of the process; leases expire on the store clock.
package matcher
