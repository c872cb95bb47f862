package kit

import (
	"time"

	"github.com/tapestore/tapestore/conformance/harness"
	"github.com/tapestore/tapestore/runstore"
)

// AllIndexes are the indexes in which WriteEverything places records, and those that the store
// keeps.
var AllIndexes = []runstore.IndexName{"queue-a", "queue-b", runstore.IndexRuns, runstore.IndexRunnable}

// WriteEverything adds one write of each kind to w, marked by tag. The record "gone", which it
// deletes, must exist.
func WriteEverything(w *runstore.Writes, tag string, status runstore.Status) {
	w.Append("first", []byte(tag+"/first"))
	w.Append("second", []byte(tag+"/second"))
	w.Put("a", []byte(tag), runstore.Place{Index: "queue-a", At: runstore.After(0)},
		runstore.Place{Index: "queue-b", At: runstore.After(time.Hour)})
	w.Put("b", []byte(tag))
	w.Put(runstore.SummaryKey, []byte(tag))
	w.Delete("gone")
	w.Status = &status
	w.Runnable = runstore.After(0)
}

// SeedFixture creates a run with state that a faulty write could damage: a record in an index, a
// record under every key that WriteEverything writes, an event, a status and a holder.
func SeedFixture(t harness.T, e *harness.Env, id runstore.RunID) runstore.Lease {
	t.Helper()
	spec := runstore.RunSpec{ID: id, Status: 1, Lease: &runstore.LeaseSpec{Owner: "owner", TTL: harness.TTL, Grant: runstore.NewGrantID()}}
	spec.Writes.Append("begin", []byte("begin"))
	for _, key := range []runstore.RecordKey{"a", "b", "gone", runstore.SummaryKey} {
		spec.Writes.Put(key, []byte("old"), runstore.Place{Index: "queue-a", At: runstore.After(0)})
	}
	created, err := e.Store.CreateRun(t.Context(), spec)
	if err != nil || !created.New {
		t.Fatalf("create %q: new %t, %v", id, created.New, err)
	}
	return created.Lease
}

// EvictBatchIDs commits so many batches with ids to a run that the run need not remember any
// earlier one: more than every engine here that evicts ids keeps (Postgres keeps up to 384). An
// engine that keeps more is correct too.
func EvictBatchIDs(t harness.T, e *harness.Env, run runstore.RunID) {
	t.Helper()
	for range e.Scaled(t, "batches that pass over a run before it forgets", 2*runstore.RememberedBatches+1, 3*runstore.RememberedBatches) {
		b := runstore.NewBatch(run, runstore.Unguarded("test"))
		b.ID = runstore.NewBatchID()
		b.Put("traffic", nil)
		MustCommit(t, e.Store, b)
	}
}

// Put commits one record at an expected version and returns its new version.
func Put(t harness.T, s runstore.RunStore, id runstore.RunID, key runstore.RecordKey, at runstore.Version, value string) runstore.Version {
	t.Helper()
	b := runstore.NewBatch(id, runstore.AtVersion(key, at))
	b.Put(key, []byte(value))
	return MustCommit(t, s, b).Versions[0]
}

// Remove deletes one record at an expected version.
func Remove(t harness.T, s runstore.RunStore, id runstore.RunID, key runstore.RecordKey, at runstore.Version) {
	t.Helper()
	b := runstore.NewBatch(id, runstore.AtVersion(key, at))
	b.Delete(key)
	Equal(t, "versions of a deletion", MustCommit(t, s, b).Versions, []runstore.Version{0})
}
