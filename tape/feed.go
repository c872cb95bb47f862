package tape

import (
	"slices"

	"github.com/tapestore/tapestore/runstore"
)

// feedKinds lists the kinds of journal entries that the feed of all runs shows. Events of sessions have
// another stored form and are left out.
var feedKinds = []string{kindRun, kindDecision, kindEffect, kindObligation, kindGate, kindValue, kindPolicy}

// FeedEntryOf returns the journal entry of an event of the feed. It returns false for an event that
// the feed leaves out: an event of a session, of another program's run, or one that the store could
// not read. The entry of a value has no run, and its position as its seq, so that (Run, Seq) is
// unique.
func FeedEntryOf(e runstore.FeedEvent) (Entry, bool) {
	if e.Err != nil || !slices.Contains(feedKinds, e.Kind) {
		return Entry{}, false
	}
	entry := EntryOf(e.Run, e.Event)
	if e.Kind == kindValue {
		entry.Run, entry.Seq = "", runstore.Seq(e.Position)
	}
	return entry, true
}
