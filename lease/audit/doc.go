// Package audit proves from stored data alone that no write got past a fence. [Check] reads every
// run that a store shows, through the interface runstore.RunStore, and reports what contradicts the
// contract. It takes no lease, writes nothing, and runs while the store is in use. (Reading the
// clock of Bigtable writes to a row that no run shares, as it does for every program.)
//
// # What holds in a store that kept its contract
//
//  1. Tokens along a journal never fall. An event without a fence has token 0 and no owner, and is
//     left out of this order.
//  2. All events of one token name one owner: the holder's, if the token is that of the current
//     grant. So the terms of two holders do not overlap.
//  3. No token is above the run's last one, none belongs to an epoch that never began, and none is
//     the floor of an epoch. A current grant has the run's last token, of the current epoch.
//  4. The terms that a runstore.TermReader lists are in the order of their tokens and do not overlap:
//     each has ended but that of the current grant, and one that the next grant ended did so at the
//     time of that grant.
//  5. Seqs are dense, from 1 to the run's last seq. Positions rise with them.
//  6. A record's stamps name events of the journal. The token of a stamp is at least that of every
//     event up to the event that it names, and at most that of every later event. A record was
//     created no later than it was updated, and a record of version 1 was not updated since.
//  7. A listed run is in IndexRuns at the time of its creation, and an unlisted run is not. A run
//     with a runnable time is in IndexRunnable, within the bounds that runstore.IndexEntry states.
//     The record of an entry in an index of records is the record that the run has.
//  8. The feed has every event of every journal once, with the same content, in the order of the
//     seqs. Its positions rise.
//
// A finding of kind [KindClock] is a warning: times that contradict the order of the commits. A clock
// that was set back causes such times, and so does a forged event.
//
// # What it does not see
//
//   - A write under a former token, committed after a later grant whose holder has written nothing
//     yet, contradicts nothing but the time of the current grant: a warning.
//   - A write without a fence, and a change of a record's value by other means than the store.
//   - A missing entry in an index of records: a record does not show which entries it should have.
//   - An unlisted run without events that no index names.
//   - Where an engine keeps the journal and the feed in the same rows, as SQLite does, their
//     comparison proves little.
//
// # Concurrent changes
//
// Check orders its reads so that what a reader concludes stays true while others write: records are
// read before the journal that explains them, and a head before and after both. A run with a
// finding is read a second time, together with its feed and its index entries. Only what the second
// reading confirms is reported, and only if the run was not purged in between. An event that is
// missing in the feed is a finding once it is older than [Options.FeedLag], because a feed may lag
// behind the journals.
//
// # Cost and memory
//
// Check reads every journal, record and index entry once, with about seven reads for each run, and the
// feed once for each [Options.MaxRuns] runs. Findings cost a second reading of the feed and of the
// indexes. It keeps the state of MaxRuns runs (about 300 bytes and the id of each), the keys and
// stamps of up to 8,192 records of one run (at most 10 MiB), two pages of a read (at most 8 MiB
// each), up to 2,000 corruptions and 2,000 warnings, and up to 2^20 hashes of events (8 MiB): with the
// defaults less than 64 MiB, however large the store is.
package audit
