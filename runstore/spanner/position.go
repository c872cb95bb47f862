package spanner

import (
	"math/rand/v2"
	"time"

	"cloud.google.com/go/spanner"

	"github.com/tapestore/tapestore/runstore"
)

// The feed is read in the order of commit timestamps, and of slots where these tie. Commit
// timestamps follow the order in which transactions become visible
// (https://cloud.google.com/spanner/docs/true-time-external-consistency), so a strong read at
// time t sees everything that will ever be committed up to t: nothing can appear later before
// what a reader has seen, and no reader waits for a writer.
//
// A position has 53 bits, which a timestamp in microseconds and a slot do not fit into. So it is
// the number of a window of 16.384 ms, and the event's rank in it: the first has 1. A rank never
// changes: what is committed later has a later timestamp, and a purge leaves the places of its
// events. Windows last until 2060.
//
// A window has 131,071 ranks, at a rate of eight million events a second. Events beyond share the
// last one. They are read once their window is over, and a page that has one of them has all.
const (
	windowBits = 14 // of the microseconds in a window
	rankBits   = 17
	maxRank    = 1<<rankBits - 1
)

// windows are the length of a store's windows and their last rank. Tests set others.
type windows struct {
	bits    int // of the microseconds in a window
	maxRank int64
}

// Slots keep the keys of events apart whose transactions have one timestamp: a transaction that
// would take a slot which is taken fails as a whole (ALREADY_EXISTS), and is made again with
// another.
const (
	slotBits = 13
	slots    = 1 << slotBits
	shards   = 8
	// maxFeedShards bounds what a page of the feed reads: up to its limit from each shard.
	maxFeedShards = 256
)

// positionsBegin is time 0 of positions.
var positionsBegin = time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro()

// of returns the window of a commit timestamp.
func (w windows) of(committed time.Time) int64 {
	return (committed.UnixMicro() - positionsBegin) >> w.bits
}

// begin returns when a window begins.
func (w windows) begin(window int64) time.Time {
	return time.UnixMicro(window<<w.bits + positionsBegin).UTC()
}

func position(window, rank int64) runstore.Position {
	return runstore.Position(window<<rankBits | rank)
}

// place is the inverse of position.
func splitPosition(p runstore.Position) (window, rank int64) {
	return int64(p) >> rankBits, int64(p) & maxRank
}

// ranks counts the places of the feed, which it is given in their order from the beginning of a
// window on.
type ranks struct {
	windows
	window, rank int64
}

func (r *ranks) next(committed spanner.NullTime) runstore.Position {
	if window := r.of(committed.Time); window != r.window {
		r.window, r.rank = window, 0
	}
	r.rank = min(r.rank+1, r.maxRank)
	return position(r.window, r.rank)
}

// last reports whether events may share the rank of the place that was counted last.
func (r *ranks) atLastRank() bool { return r.rank == r.maxRank }

// firstSlot chooses n neighbouring slots for a transaction's events.
func firstSlot(n int) int64 { return rand.Int64N(int64(slots - n + 1)) }

// feedShard is the shard of a slot, where the feed has n: neighbours share one, mostly.
//
// A feed that grows leaves its rows where they are. While handles write to different numbers of
// shards, events that tie may have one slot too; then the shard orders them.
func feedShard(slot, n int64) int64 { return slot / (slots / n) }
