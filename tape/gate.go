package tape

import (
	"context"
	"fmt"

	"github.com/tapestore/tapestore/runstore"
)

// A gate is where a run waits for a signal. Its state is spread over three records, which the
// commits of AwaitSignal and SendSignal change together:
//
//   - gate/NAME has what was delivered at the gate, and whether the run has consumed it.
//   - gates has the gate at which the run is parked, and how many gates have a signal that the
//     run has not consumed.
//   - The summary shows the gate at which the run is parked, for RunState.
//
// Every change of a gate is guarded by the version of gates, and changes it. So of a look that
// parks the run and a signal that arrives at the same time one is committed first, and the other is
// decided again on what the first one wrote: no signal is lost between look and park.

const (
	gatePrefix                    = "gate/"
	gatesKey   runstore.RecordKey = "gates"
	// maxGate is the longest name of a gate.
	maxGate = runstore.MaxRecordKey - len(gatePrefix)
)

// The limits of a gate's texts, in bytes. They do not depend on each other, so a signal can always
// be delivered.
const (
	// MaxGateContext is the largest payload of AwaitSignal.
	MaxGateContext = 1_000_000
	// MaxSignal is the largest resolution of SendSignal.
	MaxSignal = 2_000_000
)

func gateKey(name string) runstore.RecordKey { return runstore.RecordKey(gatePrefix + name) }

func checkGate(name string) error {
	if err := checkText(field{"gate_name", name}); err != nil {
		return err
	}
	return checkLength("gate_name", name, maxGate)
}

// gate is the stored form of a gate/NAME record, with two bodies: the resolution, and the context
// in which the run waits.
type gate struct {
	Delivered bool `json:"delivered,omitempty"`
	Consumed  bool `json:"consumed,omitempty"`

	resolution, context string
}

func (g gate) encode() []byte { return encode(g, g.resolution, g.context) }

// gates is the stored form of the gates record.
type gates struct {
	// Waiting is the gate at which the run was parked last, and Parked says that no signal has
	// released it since. The run's status says whether it still is.
	Waiting string `json:"waiting,omitempty"`
	Parked  bool   `json:"parked,omitempty"`
	// Pending counts the gates with a signal that was delivered and not consumed.
	Pending int `json:"pending,omitempty"`
}

// gateRecords is what one operation on a gate reads.
type gateRecords struct {
	run     Run // without its status and lease
	gates   gates
	gate    gate
	version map[runstore.RecordKey]runstore.Version
}

// readGate reads a gate and its run. One round trip.
func (t *Tape) readGate(ctx context.Context, id runstore.RunID, name string) (*gateRecords, error) {
	keys := []runstore.RecordKey{runstore.SummaryKey, gatesKey, gateKey(name)}
	records, err := t.store.ReadRecords(ctx, id, runstore.RecordQuery{Keys: keys})
	if err != nil {
		return nil, noSuchRun(err)
	}
	r := &gateRecords{version: map[runstore.RecordKey]runstore.Version{}}
	head := runstore.Run{ID: id}
	for _, rec := range records {
		r.version[rec.Key] = rec.Version
		what := fmt.Sprintf("record %q of run %q", clip(string(rec.Key), 64), id)
		switch rec.Key {
		case runstore.SummaryKey:
			head.Summary, head.CreatedAt = rec, rec.Created.Time // it was created with the run
		case gatesKey:
			err = decode(what, rec.Value, &r.gates)
		default:
			err = decode(what, rec.Value, &r.gate, &r.gate.resolution, &r.gate.context)
		}
		if err != nil {
			return nil, err
		}
	}
	r.run, err = runOf(head)
	return r, err
}

// batch returns a commit that writes the gate as r now has it, guarded by what was read.
func (r *gateRecords) batch(name string, f runstore.Fence) runstore.Batch {
	b := guards(r.run.ID, f, runstore.AtVersion(gatesKey, r.version[gatesKey]))
	b.Require(runstore.AtVersion(gateKey(name), r.version[gateKey(name)]))
	b.Put(gateKey(name), r.gate.encode())
	b.Put(gatesKey, encode(r.gates))
	return b
}

// putSummary adds the run's summary to a commit.
func (r *gateRecords) putSummary(b *runstore.Batch) {
	b.Require(runstore.AtVersion(runstore.SummaryKey, r.version[runstore.SummaryKey]))
	putSummary(&b.Writes, r.run.encode(false), r.run.places()...)
}

// setWaiting gives a parked run its place among the runs to recover: it wants a driver while a
// signal waits to be consumed. It holds only while the run's status is WAITING.
func (r *gateRecords) setWaiting(w *runstore.Writes) {
	w.Runnable = runstore.Never()
	if r.gates.Pending > 0 {
		w.Runnable = runstore.After(0)
	}
}
