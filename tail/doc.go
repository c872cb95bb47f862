// Package tail follows the journals of many runs, and the feed of all runs, with few reads of their
// store.
//
// A watcher of a run waits for events that any process may append. If each watcher polled, or read
// whenever the store reports a commit, a thousand idle watchers would read a thousand journals for
// every commit to some other run. A Tail reads a journal only when it has probably changed, once
// for all of its followers that have room for the page (Options.TryAdmit).
//
// Guarantees for every follower:
//
//  1. It receives each event once and in order of seq, from its first seq on. Pages come from
//     journals only; a hint never carries an event.
//  2. It misses no event. A run is polled as long as it has followers, so a lost hint only costs
//     time: 20 ms for each followed run, but at least 250 ms.
//  3. It never waits for another follower. Pages are pulled, nothing is buffered for a slow
//     follower, and a follower that is more than a page behind reads by itself until it has caught
//     up.
//  4. While it is idle, commits to other runs cause no reads for it.
//
// A hint makes a read due. There are three sources of hints:
//
//   - Writes of this process go through [Tail.Store], which hints at the run and its last seq after
//     each write, and at the run alone if the outcome is unknown.
//   - Writes of other processes are found in the feed of all runs. One goroutine reads the feed
//     from its current end on: when the store wakes it (runstore.Notifier) or every 250 ms, but at
//     most every 50 ms. While the pages contain only writes of this process and runs without
//     followers, the interval grows from page to page, up to 250 ms. The feed may lag behind
//     journals.
//   - The poll hints at one followed run after the other, at most 50 per second.
//
// A hint with a seq causes a read only if a follower waits for that seq, so the feed does not
// repeat the hints for this process's own writes. A store that notifies about single runs across
// processes could replace the feed; nothing else would change.
//
// A topic is a run that has followers. Followers that have reached the end of the journal wait at
// its topic. A due read begins at the first seq that any of them waits for, and serves all of them.
// A follower whose last page was full reads by itself. Shared reads of one topic are 5 ms apart,
// and at most 16 reads of journals are in flight.
//
// # The feed of all runs
//
// [Tail.Feed] serves subscribers of all events. One reader per process reads the feed from its
// current end on, for the hints and for all subscribers. It keeps the latest events in a ring
// buffer. Subscribers that have reached the end wake together and take the same pages, which are
// slices of the ring. A subscriber behind the start of the ring reads pages by itself until it has
// caught up. Guarantees for every subscriber:
//
//  1. It receives each event once and in order of position, from the first one after its position
//     on. The ring holds every event between its start and its end; pages that a subscriber reads
//     by itself end at the end of the ring; a subscriber at a position that the ring does not cover
//     reads by itself. So nothing is skipped or repeated when a subscriber joins the ring, or when
//     the ring evicts pages that it has not taken. A raised epoch is a gap between positions.
//  2. A subscriber at the end receives an event at most 25 ms plus the duration of a read after the
//     store can return it, if this process wrote the event through [Tail.Store] or the store wakes
//     the reader (SQLite and Postgres announce the writes of other processes at most every 20 ms).
//     Without a wake-up the bound is 75 ms, and if a [runstore.Notifier] has lost one, 250 ms.
//     While pages are full, the next one is read at once.
//  3. It never waits for another subscriber, and any number of subscribers at the end cost as many
//     reads as one: at most 40 per second beside writers (plus reads after full pages), 4 at rest,
//     and 14 on a store that is not a Notifier. Subscribers that read by themselves share the 16
//     reads in flight with the followers of runs.
//  4. Nothing is buffered for a subscriber. A subscriber that does not pull holds the page that it
//     was given: at most [runstore.MaxPage] events, [runstore.MaxPageBytes] and one event of data,
//     and their derived values. The ring holds at most Options.RingBytes and one page. An evicted
//     page lives on while a subscriber holds it, so S subscribers that do not pull hold at most S
//     pages beside the ring; Options.Admit bounds them. Tail does not end slow subscribers:
//     [Tail.FeedEnd] returns the end of the feed for comparison. Without subscribers there is no
//     ring.
//  5. When reads of the reader fail, subscribers at the end wait, and continue where they were.
//     Once reads have failed for 10 s, each further failure ends the waiting subscribers with its
//     error. A read of the reader takes at most 10 s. If a subscriber's own read fails, only that
//     subscriber ends.
//  6. When the reader finds the store behind its position (a backup was restored), the ring is
//     emptied and restarts at the end of the feed. A subscriber whose position is above what the
//     store then had ends with ErrStoreBehind, even if it asks for its next page after the store
//     has passed that position; the others continue. [Tail.FeedHistory] changes, for callers that
//     keep positions without presenting them. A new reader presents the position that the previous
//     reader had reached. If a restored store passes the reader's position before the next read,
//     the restore stays unnoticed, as everywhere: raise the epoch after a restore.
//
// After an error the subscriber has received every event up to the last one of its last page. It
// may subscribe again after that position.
//
// Rejected: a queue per subscriber, which slow ones would fill; letting subscribers read past the
// end of the ring, because each would then find new events by itself as long as writers are busy,
// and never join the ring.
//
// Rejected for followers: pushing the feed's events to them, because on Postgres the feed may lag
// by seconds while a transaction is open that may append; a buffer per follower, which slow clients
// would fill; one reader per run that reads ahead, which reads for followers that do not keep up.
//
// The part protocol of package bench measures what a thousand idle followers cost writers, what a
// thousand subscribers of the feed cost, and the delay from a commit to its delivery.
package tail
