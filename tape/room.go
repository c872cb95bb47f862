package tape

import "github.com/tapestore/tapestore/runstore"

// A store may limit the records of a run: on Bigtable they share a row. What a run has begun can be
// ended all the same. Each record whose later form records an outcome keeps room for that form
// (runstore.RecordWrite.Reserve): an effect for its outcome, for what is observed of it and for its
// blank form, a decision for its blank form, an obligation while its outcome is open, a gate for its
// signal, a budget for charges, the run's summary for the run's end, and the grant for the next
// takeover and for the record of a compaction. An effect that is not CONFIRMED keeps room for one
// obligation too, which an observer may register. So it is BeginEffect that is refused, with
// runstore.ErrTooLarge, when a run is full, and never CompleteEffect.

// largest stands for the largest value of a record. Its bytes are never read: a store that keeps
// room needs the length.
var largest = make([]byte, runstore.MaxRecordValue)

// roomFor returns what a record reserves to be replaced by the largest one that stands in places.
func roomFor(key runstore.RecordKey, places ...runstore.Place) []runstore.RecordWrite {
	return []runstore.RecordWrite{{Key: key, Value: largest, Index: places}}
}

// putLasting puts a record that keeps room for each later form of it, which may have the places later.
func putLasting(w *runstore.Writes, key runstore.RecordKey, value []byte, later []runstore.Place, places ...runstore.Place) {
	w.Put(key, value, places...)
	w.Records[len(w.Records)-1].Reserve = roomFor(key, later...)
}

// putGrant puts the grant's record. While the run has no record of a compaction, which is a guard of
// the batch, it keeps room for that one too: the batch that puts the first one puts the grant again.
func putGrant(w *runstore.Writes, value []byte, compacted bool) {
	putLasting(w, grantKey, value, nil)
	if !compacted {
		grant := &w.Records[len(w.Records)-1]
		grant.Reserve = append(grant.Reserve, roomFor(compactionKey)...)
	}
}

// putSummary puts the summary of a run. Its first place is that of its session, which it keeps.
func putSummary(w *runstore.Writes, value []byte, places ...runstore.Place) {
	putLasting(w, runstore.SummaryKey, value, []runstore.Place{places[0], {Index: IndexEnded, At: runstore.After(0)}}, places...)
}
