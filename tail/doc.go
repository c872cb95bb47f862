// Package tail follows the journals of many runs with few reads of their store.
//
// Whoever watches a run waits for events that any process may append. If each watcher
// polled, or read whenever the store reports a commit, a thousand idle watchers would read
// a thousand journals for every commit to some other run. A Tail reads a journal only when
// it is likely to have changed, once for all of its followers.
//
// The following holds, for every follower:
//
//  1. It receives each event once and in order of seq, from its first seq on. Pages come
//     from journals only; no hint carries an event.
//  2. It misses no event. A run is polled for as long as it has followers, so that a lost
//     hint costs time: 20 ms for each followed run, but at least a quarter of a second.
//  3. It waits for no other follower. Pages are pulled, nothing is buffered for a slow
//     follower, and one that is more than a page behind reads by itself until it has caught
//     up.
//  4. Idle, it costs no read for commits to other runs.
//
// A hint is what makes a read due. There are three sources of hints:
//
//   - Writes of this process go through [Tail.Store], which names the run and its last seq
//     after each write, and the run alone if the outcome is unknown.
//   - Writes of other processes are named by the feed of all runs, which one goroutine
//     reads from its present end on: when the store wakes it (runstore.Notifier), or every
//     quarter of a second, and at most every 50 ms. While the pages name nothing but writes
//     of this process and runs without followers, it waits longer from page to page, up to a
//     quarter of a second. The feed may lag behind journals.
//   - The poll names one followed run after the other, at most 50 a second.
//
// A hint that names a seq costs a read only if a follower waits for that seq, so the feed
// does not repeat the hints on this process's own writes. A store that hints at single runs
// across processes would replace the feed; nothing else would change.
//
// A topic is a followed run. Followers that have reached the end of the journal wait at its
// topic, and a due read begins at the first seq that any of them waits for, and serves all.
// A follower whose last page was full reads by itself. Shared reads of one topic are 5 ms
// apart, and at most 16 reads of journals are under way.
//
// Rejected: pushing the feed's events to followers, because the feed may lag by seconds on
// Postgres while a transaction is open that may append; a buffer per follower, which slow clients would
// fill; one reader per run that reads ahead, which reads for followers that do not keep up.
//
// The part protocol of package bench measures what a thousand idle followers cost writers.
package tail
