package tape

import "github.com/tapestore/tapestore/runstore"

// A store may limit the records of a run that stand in queues: on Bigtable they share the run's row.
// What a run has begun can be ended all the same. Each record with a later form in a queue keeps room for
// that form (runstore.RecordWrite.Reserve): an effect that is not CONFIRMED, an obligation and a task while
// their outcome is open, and the run's summary for the run's end. Such an effect keeps room for one
// obligation too, which an observer may register. So it is BeginEffect that is refused, with
// runstore.ErrTooLarge, when a run is full, and never CompleteEffect.

// largest stands for the largest value of a record. Its bytes are never read: a store that keeps
// room needs the length.
var largest = make([]byte, runstore.MaxRecordValue)

// roomFor returns what a record reserves to be replaced by the largest one that stands in places.
func roomFor(key runstore.RecordKey, places ...runstore.Place) []runstore.RecordWrite {
	return []runstore.RecordWrite{{Key: key, Value: largest, Index: places}}
}

// putSummary puts the summary of a run. Its first place is that of its session, which it keeps.
func putSummary(w *runstore.Writes, value []byte, places ...runstore.Place) {
	w.Put(runstore.SummaryKey, value, places...)
	w.Records[len(w.Records)-1].Reserve = roomFor(runstore.SummaryKey, places[0], runstore.Place{Index: IndexEnded, At: runstore.After(0)})
}
