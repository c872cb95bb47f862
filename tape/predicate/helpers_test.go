package predicate

import (
	"time"

	"github.com/tapestore/tapestore/tape"
)

// entryOf returns an entry with a payload.
func entryOf(payload string) tape.Entry {
	return tape.Entry{
		Run: "r-1", Seq: 7, Kind: "effect", Payload: payload, Time: time.UnixMilli(1_700_000_000_123),
		Position: 42, Subject: "/tape/effect/confirmed/execute_sweep/r-1",
	}
}
