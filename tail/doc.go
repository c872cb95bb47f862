// Package tail follows the journals of many runs, and the feed of all runs, with few reads of
// their store.
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
// # The feed of all runs
//
// [Tail.Feed] is for subscribers of all events. One reader per process reads the feed from its
// present end on, for the hints and for all subscribers. It keeps the last events in a ring
// buffer. Subscribers that have reached the end wake together and take the same pages, slices of
// the ring. A subscriber behind the start of the ring reads pages by itself until it has caught
// up. The following holds, for every subscriber:
//
//  1. It receives each event once and in order of position, from the first one behind its position
//     on. The ring holds every event between its start and its end, pages that a subscriber reads
//     by itself end at the end of the ring, and a subscriber at a position that the ring does not
//     cover reads by itself: so nothing is skipped or repeated when it joins the ring, or when
//     the ring evicts pages that it has not taken. A raised epoch is a gap between positions.
//  2. A subscriber at the end receives an event at most 25 ms after the store can name it, and
//     the duration of a read: if this process wrote it through [Tail.Store], or the store wakes
//     the reader (SQLite and Postgres announce the writes of other processes at most every 20 ms).
//     Without a wake-up it takes 75 ms, and where a [runstore.Notifier] has lost one, 250 ms.
//     While pages are full, the next one is read at once.
//  3. It waits for no other subscriber, and no number of subscribers at the end costs more reads
//     than one: at most 40 per second beside writers, or those of full pages, 4 at rest, and 14
//     on a store that is no Notifier. Subscribers that read by themselves share the 16 reads
//     under way with the followers of runs.
//  4. Nothing is buffered for a subscriber. One that does not pull holds the page that it was
//     given: at most [runstore.MaxPage] events, [runstore.MaxPageBytes] and one event of data, and
//     their derived values. The ring holds at most Options.RingBytes and one page. A page that the
//     ring has evicted lives on while a subscriber holds it, so S subscribers that do not pull
//     hold at most S pages beside the ring; Options.Admit bounds them. Tail ends no slow
//     subscriber: [Tail.FeedEnd] shows how far the feed has come. There is no ring without
//     subscribers.
//  5. When reads of the reader fail, subscribers at the end wait, and go on where they were. When
//     they have failed for 10 s, each further failure ends the subscribers that wait, with its
//     error. A read of the reader takes at most 10 s. The failed read of a subscriber by itself
//     ends that one.
//  6. When the reader finds the store behind its position (a backup was restored), the ring is
//     emptied, and begins anew at the end of the feed. A subscriber whose position is above what
//     the store then knew ends with ErrStoreBehind, also if it comes back for its next page when
//     the store has passed that position; the others go on. [Tail.FeedHistory] changes, for callers that keep positions
//     which they do not present. A reader that begins presents the position that the one before it had reached. The restore of a store that has
//     passed the reader's position before the next read remains unknown, as everywhere: raise the
//     epoch after a restore.
//
// After an error the subscriber has received every event up to the last one of its last page. It
// may subscribe again behind that.
//
// Rejected: a queue per subscriber, which slow ones would fill; letting subscribers read past the
// end of the ring, because each would then find news by itself for as long as writers are busy, and
// never join.
//
// Rejected for followers: pushing the feed's events to them, because the feed may lag by seconds on
// Postgres while a transaction is open that may append; a buffer per follower, which slow clients would
// fill; one reader per run that reads ahead, which reads for followers that do not keep up.
//
// The part protocol of package bench measures what a thousand idle followers cost writers, what
// a thousand subscribers of the feed cost, and the delay from a commit to its delivery.
package tail
