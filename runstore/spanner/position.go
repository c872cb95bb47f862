package spanner

import (
	"math/rand/v2"
	"time"

	"cloud.google.com/go/spanner"

	"github.com/tapestore/tapestore/runstore"
)

// The feed is ordered by commit timestamp and, where timestamps tie, by slot. Commit
// timestamps follow the order in which transactions become visible
// (https://cloud.google.com/spanner/docs/true-time-external-consistency), so a strong read at
// time t sees everything that will ever be committed up to t. Nothing can appear later before
// a position that a reader has passed, and no reader waits for a writer.
//
// A position has 53 bits; a timestamp in microseconds and a slot need more. So a position is
// the number of a window of 16.384 ms and the event's rank in it, from 1. A rank never
// changes: a later commit has a later timestamp, and a purge keeps the rows of Feed of its
// events. Windows last until 2060.
//
// A window has 131,071 ranks, enough for eight million events a second. Further events share the
// last rank. They are readable once their window is over, and one page holds all of them.
const (
	windowBits = 14 // of the microseconds in a window
	rankBits   = 17
	maxRank    = 1<<rankBits - 1
)

// windows is the length of a store's windows and their last rank. Tests set other values.
type windows struct {
	bits    int // of the microseconds in a window
	maxRank int64
}

// Slots make the keys of Feed unique if two transactions get the same commit timestamp. A
// transaction that would insert an existing key fails as a whole (ALREADY_EXISTS) and is retried
// with another slot.
const (
	slotBits = 13
	slots    = 1 << slotBits
	shards   = 8
	// maxFeedShards (256) bounds the cost of a page of the feed, which reads up to its limit from
	// each shard.
	maxFeedShards = 256
)

// positionsBegin is the time, in microseconds since 1970, of position 0.
var positionsBegin = time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro()

// of returns the window of a commit timestamp.
func (w windows) of(committed time.Time) int64 {
	return (committed.UnixMicro() - positionsBegin) >> w.bits
}

// begin returns the start of a window.
func (w windows) begin(window int64) time.Time {
	return time.UnixMicro(window<<w.bits + positionsBegin).UTC()
}

func position(window, rank int64) runstore.Position {
	return runstore.Position(window<<rankBits | rank)
}

// split returns the window and the rank of a position; it is the inverse of position.
func split(p runstore.Position) (window, rank int64) { return int64(p) >> rankBits, int64(p) & maxRank }

// ranks assigns positions to the rows of the feed. The caller passes all rows in feed order, from
// the beginning of a window.
type ranks struct {
	windows
	window, rank int64
}

// next returns the position of the next row.
func (r *ranks) next(committed spanner.NullTime) runstore.Position {
	if window := r.of(committed.Time); window != r.window {
		r.window, r.rank = window, 0
	}
	r.rank = min(r.rank+1, r.maxRank)
	return position(r.window, r.rank)
}

// atLastRank reports whether the row counted last has the window's last rank, which other events
// may share.
func (r *ranks) atLastRank() bool { return r.rank == r.maxRank }

// firstSlot returns the first of n consecutive slots for a transaction's events, chosen at random.
func firstSlot(n int) int64 { return rand.Int64N(int64(slots - n + 1)) }

// feedKey returns the key columns of a row of Feed, for a feed of n shards.
func feedKey(slot, n int64) []column {
	return []column{{"Shard", feedShard(slot, n)}, {"Committed", spanner.CommitTimestamp}, {"Slot", slot}}
}

// feedShard returns the shard of a slot in a feed of n shards. Neighbouring slots mostly share one.
//
// When the number of shards grows, existing rows stay where they are. While handles write with
// different numbers, events with the same timestamp may have the same slot too, in different
// shards; then the shard orders them.
func feedShard(slot, n int64) int64 { return slot / (slots / n) }
