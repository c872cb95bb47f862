package spanner

import (
	"math/rand/v2"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// A position is the commit timestamp of its transaction, in microseconds since 2025, and
// a slot of 13 bits. Commit timestamps follow the order in which transactions become
// visible (https://cloud.google.com/spanner/docs/true-time-external-consistency), so a
// strong read at time t sees everything that will ever be committed up to t: nothing can
// appear later before what a reader has seen, and no reader waits for a writer.
//
// Timestamps of transactions that write different rows may tie. Within a tie the slots
// differ, because they are a part of the feed's key: a transaction that would take a slot
// which is taken fails as a whole (ALREADY_EXISTS), and is made again with another.
const (
	slotBits = 13
	slots    = 1 << slotBits
	shards   = 8
)

// positionsBegin is time 0 of positions. They last until 2060.
var positionsBegin = time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro()

func position(committed time.Time, slot int64) runstore.Position {
	return runstore.Position((committed.UnixMicro()-positionsBegin)<<slotBits | slot)
}

// placeOf is the inverse of position.
func placeOf(p runstore.Position) (committed time.Time, slot int64) {
	return time.UnixMicro(int64(p)>>slotBits + positionsBegin).UTC(), int64(p) & (slots - 1)
}

// firstSlot chooses n neighbouring slots for a transaction's events.
func firstSlot(n int) int64 { return rand.Int64N(int64(slots - n + 1)) }

// feedShard is the shard of a slot: neighbours share one, mostly.
func feedShard(slot int64) int64 { return slot / (slots / shards) }
