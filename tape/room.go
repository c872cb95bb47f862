package tape

import "github.com/tapestore/tapestore/runstore"

// A store may limit the records of a run that are in queues: on Bigtable they share the run's row.
// A full run can nevertheless end what it has begun, because each record that may have a later form
// in a queue reserves room for that form (runstore.RecordWrite.Reserve): an effect that is not
// CONFIRMED, an obligation and a task while they are open, and the run's summary for the run's end.
// Such an effect also reserves room for one obligation, which an observer may register. So if a run
// is full, BeginEffect is refused with runstore.ErrTooLarge, and CompleteEffect never is.

// largest stands for the largest value of a record. Only its length matters.
var largest = make([]byte, runstore.MaxRecordValue)

// roomFor returns the reservation for the largest value of a record with these index entries.
func roomFor(key runstore.RecordKey, places ...runstore.Place) []runstore.RecordWrite {
	return []runstore.RecordWrite{{Key: key, Value: largest, Index: places}}
}

// putSummary puts the summary of a run. The first of places is the entry in the session's index,
// which the summary always keeps.
func putSummary(w *runstore.Writes, value []byte, places ...runstore.Place) {
	w.Put(runstore.SummaryKey, value, places...)
	w.Records[len(w.Records)-1].Reserve = roomFor(runstore.SummaryKey, places[0], runstore.Place{Index: IndexEnded, At: runstore.After(0)})
}
