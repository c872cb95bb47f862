package crossrun

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/tapestore/tapestore/runstore"
)

// The records of this package. No other record's key may begin with Reserved, on
// any run that takes part in a step.
const (
	// Reserved is how the keys of this package's records begin.
	Reserved runstore.RecordKey = "crossrun/"
	// IntentKey is the key of the record on the leading run that holds its step
	// under way. It is there from the step's first write to its last, and there is
	// at most one.
	IntentKey = Reserved + "intent"
	// marks is how the keys of the marks on other runs begin; see markKey.
	marks = Reserved + "mark/"
)

// Idle holds while no step that the batch's run leads is under way. A batch that
// is not given to [Commit], which adds it, needs it if it changes what a step of
// that run guards or writes.
func Idle() runstore.Guard { return runstore.AtVersion(IntentKey, 0) }

// intent is a step written ahead: all that is needed to end it.
type intent struct {
	lead runstore.RunID // not stored: the record is on it
	// name is unique to this attempt at the step.
	name string
	// id is the step's: the lead's last write is made under it.
	id    runstore.BatchID
	other runstore.RunID
	// epoch is that of the fence under which the step was begun. Marks of another
	// epoch are other marks: a store that was set back may count versions again.
	epoch runstore.Epoch
	// mark is the version of the mark on the other run from which the step is
	// decided. It is never 0: absence can come again, a version cannot.
	mark   runstore.Version
	guards runstore.Guards // of the other run's batch
	writes runstore.Writes // of the other run's batch
	own    runstore.Writes // of the lead
}

func (in intent) encode() []byte {
	w := &writer{}
	w.byte(format)
	w.string(in.name)
	w.string(string(in.id))
	w.string(string(in.other))
	w.fixed(int64(in.epoch))
	w.fixed(int64(in.mark))
	w.guards(in.guards)
	w.writes(in.writes)
	w.writes(in.own)
	return w.b
}

func decodeIntent(lead runstore.RunID, value []byte) (intent, error) {
	r, err := open(value)
	if err != nil {
		return intent{}, err
	}
	in := intent{lead: lead, name: r.string(), id: runstore.BatchID(r.string()), other: runstore.RunID(r.string())}
	in.epoch, in.mark = runstore.Epoch(r.fixed()), runstore.Version(r.fixed())
	in.guards = r.guards()
	in.writes, in.own = r.writes(), r.writes()
	return in, r.end()
}

// batchID names one write of the attempt; the lead's last one has the step's id.
func (in intent) batchID(role string) runstore.BatchID {
	return runstore.BatchID(in.name + "/" + role)
}

// markKey is crossrun/mark/EPOCH/LEAD.
func (in intent) markKey() runstore.RecordKey {
	return marks + runstore.RecordKey(fmt.Sprintf("%d/%s", in.epoch, in.lead))
}

// leadOf is the run whose step a mark is of.
func leadOf(mark runstore.RecordKey) runstore.RunID {
	_, lead, _ := strings.Cut(string(mark[len(marks):]), "/")
	return runstore.RunID(lead)
}

// putMark puts the mark, and reserves the room of the largest mark, so that a run that has
// filled up meanwhile can still record the verdict.
func (in intent) putMark(b *runstore.Batch, m mark) {
	b.Records = append(b.Records, runstore.RecordWrite{
		Key: in.markKey(), Value: m.encode(), Reserve: []runstore.RecordWrite{{Key: in.markKey(), Value: make([]byte, maxMark)}},
	})
}

// open is the write that makes a mark where there is none.
func (in intent) open() runstore.Batch {
	b := runstore.NewBatch(in.other, runstore.AtVersion(in.markKey(), 0))
	b.ID = in.batchID("open")
	in.putMark(&b, mark{})
	return b
}

// propose is step 1: the intent, under the lead's fence and guards. It keeps room for the
// lead's records: once the other run is changed, the lead must not be too full for them.
func (in intent) propose(lead runstore.Guards) runstore.Batch {
	b := runstore.NewBatch(in.lead, lead.Fence, Idle())
	b.Require(guardList(lead)...)
	b.ID = in.batchID("propose")
	b.Records = []runstore.RecordWrite{{Key: IntentKey, Value: in.encode(), Reserve: in.own.Records}}
	return b
}

// apply is step 2: the other run's batch. It moves the mark, so it is applied once
// at most, and never after a refusal. If the other run leads a step that is under
// way, that step's records are spoken for.
func (in intent) apply() runstore.Batch {
	b := runstore.NewBatch(in.other, in.undecided(), Idle())
	b.Require(guardList(in.guards)...)
	b.ID = in.batchID("apply")
	b.Writes = in.writes
	b.Records = slices.Clone(b.Records)
	in.putMark(&b, mark{verdict: applied, name: in.name})
	return b
}

// refuse is step 2 when a guard of the other run does not hold. It moves the mark
// too, so no copy of apply can follow when the guard holds again.
func (in intent) refuse(reason error) runstore.Batch {
	b := runstore.NewBatch(in.other, in.undecided())
	b.ID = in.batchID("refuse")
	m := mark{verdict: refused, name: in.name}
	errors.As(reason, &m.conflict)
	in.putMark(&b, m)
	return b
}

func (in intent) undecided() runstore.Guard { return runstore.AtVersion(in.markKey(), in.mark) }

// finish is step 3 of a step that was applied: the lead's writes; the intent goes.
func (in intent) finish(under runstore.Guard, version runstore.Version) runstore.Batch {
	b := runstore.NewBatch(in.lead, under, runstore.AtVersion(IntentKey, version))
	b.ID = in.id
	b.Writes = in.own
	b.Records = slices.Clone(b.Records)
	b.Delete(IntentKey)
	return b
}

// clear is step 3 of a step that was refused: the intent goes.
func (in intent) clear(under runstore.Guard, version runstore.Version) runstore.Batch {
	b := runstore.NewBatch(in.lead, under, runstore.AtVersion(IntentKey, version))
	b.ID = in.batchID("clear")
	b.Delete(IntentKey)
	return b
}

// unmark removes a mark that nobody needs any more, if it is still that one.
func unmark(other runstore.RunID, key runstore.RecordKey, version runstore.Version) runstore.Batch {
	b := runstore.NewBatch(other, runstore.AtVersion(key, version))
	b.Delete(key)
	return b
}

// guardList turns guards but the fence back into what a batch takes.
func guardList(g runstore.Guards) (all []runstore.Guard) {
	for _, v := range g.Versions {
		all = append(all, v)
	}
	if g.NextSeq != 0 {
		all = append(all, runstore.AtSeq(g.NextSeq))
	}
	if len(g.Statuses) > 0 {
		all = append(all, runstore.InStatus(g.Statuses[0], g.Statuses[1:]...))
	}
	return all
}

// verdict is what became of a step on the other run. The numbers are stored.
type verdict byte

const (
	undecided verdict = iota
	applied
	refused
	// void is never stored: the mark is gone or another step's, so this step was
	// not applied and cannot be any more.
	void
)

// mark is the record on the other run by which one step of a lead is decided. The
// write that moves it from the version in the intent is the decision.
type mark struct {
	verdict verdict
	name    string // of the intent that was decided
	// conflict is the guard that refused, if it was one.
	conflict *runstore.ConflictError
}

// maxMark is more than any mark takes: two ids, a key, and some numbers.
const maxMark = runstore.MaxRecordKey + 2*runstore.MaxRunID

func (m mark) encode() []byte {
	w := &writer{}
	w.byte(format)
	w.byte(byte(m.verdict))
	w.string(m.name)
	w.bool(m.conflict != nil)
	if c := m.conflict; c != nil {
		w.string(c.Guard)
		w.string(string(c.Key))
		w.int(int64(c.Want))
		w.int(int64(c.Current))
		w.int(int64(c.NextSeq))
		w.int(int64(c.Status))
	}
	return w.b
}

func decodeMark(value []byte) (mark, error) {
	r, err := open(value)
	if err != nil {
		return mark{}, err
	}
	m := mark{verdict: verdict(r.byte()), name: r.string()}
	if r.bool() {
		m.conflict = &runstore.ConflictError{
			Guard: r.string(), Key: runstore.RecordKey(r.string()), Want: runstore.Version(r.int()),
			Current: runstore.Version(r.int()), NextSeq: runstore.Seq(r.int()), Status: runstore.Status(r.int()),
		}
	}
	return m, r.end()
}

// reason is the error that a refusal found on the mark stands for.
func (m mark) reason(other runstore.RunID) error {
	if m.conflict != nil {
		return opError(other, m.conflict, nil)
	}
	return opError(other, runstore.ErrConflict, errors.New("the other run refused the step"))
}

func reserved(key runstore.RecordKey) bool { return strings.HasPrefix(string(key), string(Reserved)) }
