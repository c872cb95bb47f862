package tape

import (
	"context"
	"fmt"

	"github.com/tapestore/tapestore/runstore"
)

// A gate is a point at which a run waits for a signal. Its state is in three records, which the
// commits of AwaitSignal and SendSignal change together:
//
//   - gate/NAME: the signal that was delivered at the gate, and whether the run has consumed it.
//   - gates: the gate at which the run is parked, and the number of gates with a signal that the
//     run has not consumed.
//   - the summary: the gate at which the run is parked, for RunState.
//
// Every change of a gate is guarded by the version of gates and changes it. So if a run checks a
// gate and parks while a signal arrives, one of the two commits first, and the other is decided
// again on the new state: no signal is lost between check and park.

const (
	gatePrefix                    = "gate/"
	gatesKey   runstore.RecordKey = "gates"
	// maxGate is the maximal length of a gate's name, in bytes.
	maxGate = runstore.MaxRecordKey - len(gatePrefix)
)

// The limits of a gate's texts, in bytes. They are independent of each other, so a signal can
// always be delivered.
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
	// Waiting is the gate at which the run was parked last. Parked reports that no signal has
	// released the run since; the run's status shows whether it is still parked.
	Waiting string `json:"waiting,omitempty"`
	Parked  bool   `json:"parked,omitempty"`
	// Pending is the number of gates with a delivered signal that was not consumed.
	Pending int `json:"pending,omitempty"`
}

// gateRecords holds the records that one operation on a gate reads.
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
			head.Summary, head.CreatedAt = rec, rec.Created.Time // the summary was created with the run
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

// isParked reports whether a run that is WAITING has no signal to consume. One read.
func (t *Tape) isParked(ctx context.Context, id runstore.RunID) (bool, error) {
	rec, found, err := t.readRecord(ctx, id, gatesKey)
	if err != nil || !found {
		return false, err
	}
	var g gates
	err = decode("the gates of a run", rec.Value, &g)
	return g.Parked && g.Pending == 0, err
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

// setWaiting sets the runnable time of a parked run: it needs a driver while a delivered signal
// waits to be consumed. This is valid only while the run's status is WAITING.
func (r *gateRecords) setWaiting(w *runstore.Writes) {
	w.Runnable = runstore.Never()
	if r.gates.Pending > 0 {
		w.Runnable = runstore.After(0)
	}
}
