// Package bigtable keeps runs in Bigtable. A run's head, its recent journal and its
// records are cells of one row, and every write of a run is one conditional mutation of
// that row, whose predicate is one exact match of one cell. See README.md.
//
// The order to read it in: head.go and rows.go (what is stored), change.go (the one write path),
// commit.go and lease.go (the operations), read.go. Then the mechanisms, each of which a comment
// at the top of its file explains:
//
//	index.go, candidates.go   scans of queues, verified against the runs
//	runnable.go               the entries of runnable runs, and how they move
//	feed.go                   the log of the feed, as readers see it
//	page.go                   the page that the log ends with, which many handles append to
//	sequencer.go, tell.go     the log of the feed, as a handle appends to it
//	fed.go                    what a run's row records of the feed
//	seal.go, pack.go          events and values that leave the run's row
//	cold.go, move.go          records that leave it, and how they are moved
//	waste.go                  deletions that nothing waits for
//	upkeep.go, sweep.go       the passes over the marks: what a crash has left
//	gc.go, compact.go         rows that no mark leads to, and the log of purged runs
//	stamp.go, epoch.go        restores and failovers
//	turns.go, clock.go        fairness among writers; Bigtable's clock
package bigtable
