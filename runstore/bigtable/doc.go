// Package bigtable keeps runs in Bigtable. A run is one row: its head, its recent journal and its
// records are cells of that row. Every write of a run is one conditional mutation of the row, whose
// predicate is one exact match of one cell, the revision. README.md describes what the adapter
// guarantees, what it costs, and what to set up.
//
// # Reading order
//
// The stored data, the write path and the operations:
//
//	keys.go, table.go         the rows and the column families
//	head.go, rows.go          a run's row: its cells, how they are read and written
//	change.go                 write, the one write path: decide, write ahead, compare-and-swap, resolve
//	run.go                    what a handle remembers of a run, and its lock
//	commit.go, lease.go       Commit; CreateRun, AcquireLease, RenewLease, ReleaseLease
//	read.go                   GetRun, ReadRecords, ReadJournal
//	store.go, options.go,     opening and closing a handle
//	url.go, errors.go
//
// What keeps a run's row small:
//
//	events.go, seal.go        recent events share cells; older ones leave for segments of the journal
//	pack.go                   large values leave for packs
//	cold.go, move.go          records changed long ago leave for rows of their own, and are compacted
//	fingerprints.go           a filter of their keys, and what commits have to know of them
//
// Indexes:
//
//	index.go, candidates.go   scans, whose entries are verified by the runs
//	runnable.go               the entries of runnable runs, and how they move
//
// The feed, a log of pages:
//
//	feed.go, feedevents.go,   how readers see it
//	feednewest.go,
//	feedbudget.go
//	feedpage.go               the open page that ends the log: group commit of many handles
//	sequencer.go              how a handle appends the events that it commits
//	highwater.go,             up to where the feed has a run's journal, recorded in the run's row
//	writeback.go
//	compact.go                removal of pages whose runs were all purged
//
// What a crash leaves, and deletions:
//
//	garbage.go                deferred deletions of rows that nothing names any more
//	orphanscan.go, upkeep.go  the orphan scan of marks, which handles share by claims; sealing
//	pending.go                the runs that a background goroutine has to work on
//	gc.go                     the orphan scan of the whole table, on demand
//
// Clocks, fairness, epochs, formats:
//
//	clock.go                  Bigtable's clock, and a handle's estimate of it
//	tickets.go                a ticket lock among the writers of a run
//	epoch.go                  epochs: restores and failovers
//	failover.go               stamps, which keep late writes of a lost history out
//	format.go                 versions of the stored data; damaged runs
package bigtable
