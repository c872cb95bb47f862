package crossrun

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/tapestore/tapestore/runstore"
)

// The keys of this package's records. No other record's key may begin with Reserved, on any run
// that takes part in a step.
const (
	// Reserved is the prefix of the keys of this package's records.
	Reserved runstore.RecordKey = "crossrun/"
	// IntentKey is the key of the intent: the record on the lead that holds its step in progress.
	// It exists from the step's first write on the lead to its last. A run has at most one.
	IntentKey = Reserved + "intent"
	// markPrefix is the prefix of the keys of the marks on other runs; see markKey.
	markPrefix = Reserved + "mark/"
)

// Idle returns a guard that holds while the batch's run leads no step in progress. Commit adds it
// to its batches. Any other batch needs it if it changes what a step of that run guards or writes.
func Idle() runstore.Guard { return runstore.AtVersion(IntentKey, 0) }

// intent is the write-ahead record of a step: everything that is needed to complete it.
type intent struct {
	lead runstore.RunID // not stored: the record is on this run
	// token is that of the grant under which the step began. It is not stored: the record's stamp has it.
	token runstore.Token
	// name is unique to this attempt at the step.
	name string
	// id is the id of the step. The lead's last write has this batch id.
	id    runstore.BatchID
	other runstore.RunID
	// epoch is that of token. Marks of different epochs have different keys, because a restored store
	// may repeat versions.
	epoch runstore.Epoch
	// mark is the version of the mark from which the step is decided. It is never 0: a record can
	// be absent repeatedly, but a version is never reused.
	mark        runstore.Version
	otherGuards runstore.Guards // of the other run's batch
	otherWrites runstore.Writes // of the other run's batch
	leadWrites  runstore.Writes // of the lead
}

func (in intent) encode() []byte {
	w := &writer{}
	w.byte(format)
	w.string(in.name)
	w.string(string(in.id))
	w.string(string(in.other))
	w.fixed(int64(in.epoch))
	w.fixed(int64(in.mark))
	w.guards(in.otherGuards)
	w.writes(in.otherWrites)
	w.writes(in.leadWrites)
	return w.b
}

func decodeIntent(lead runstore.RunID, value []byte) (intent, error) {
	r, err := open(value)
	if err != nil {
		return intent{}, err
	}
	in := intent{lead: lead, name: r.string(), id: runstore.BatchID(r.string()), other: runstore.RunID(r.string())}
	in.epoch, in.mark = runstore.Epoch(r.fixed()), runstore.Version(r.fixed())
	in.otherGuards = r.guards()
	in.otherWrites, in.leadWrites = r.writes(), r.writes()
	return in, r.end()
}

// batchID returns the batch id of one write of the attempt. The lead's last write has the step's id
// instead.
func (in intent) batchID(role string) runstore.BatchID {
	return runstore.BatchID(in.name + "/" + role)
}

// markKey returns crossrun/mark/EPOCH/LEAD.
func (in intent) markKey() runstore.RecordKey {
	return markPrefix + runstore.RecordKey(fmt.Sprintf("%d/%s", in.epoch, in.lead))
}

// leadOf returns the lead that a mark's key names.
func leadOf(mark runstore.RecordKey) runstore.RunID {
	_, lead, _ := strings.Cut(string(mark[len(markPrefix):]), "/")
	return runstore.RunID(lead)
}

// putMark puts the mark and reserves the room of the largest mark, so that a run that has filled up
// meanwhile can still record the verdict.
func (in intent) putMark(b *runstore.Batch, m mark) {
	b.Records = append(b.Records, runstore.RecordWrite{
		Key: in.markKey(), Value: m.encode(), Reserve: []runstore.RecordWrite{{Key: in.markKey(), Value: make([]byte, maxMark)}},
	})
}

// createMark is write 0: it puts the mark if there is none.
func (in intent) createMark() runstore.Batch {
	b := runstore.NewBatch(in.other, runstore.AtVersion(in.markKey(), 0))
	b.ID = in.batchID("open")
	in.putMark(&b, mark{})
	return b
}

// propose is write 1: it puts the intent, under the lead's fence and guards. It reserves room for
// the lead's records: once the other run has changed, the lead must not be too full for them.
func (in intent) propose(lead runstore.Guards) runstore.Batch {
	b := runstore.NewBatch(in.lead, lead.Fence, Idle())
	b.Require(guardList(lead)...)
	b.ID = in.batchID("propose")
	b.Records = []runstore.RecordWrite{{Key: IntentKey, Value: in.encode(), Reserve: in.leadWrites.Records}}
	return b
}

// apply is write 2: the other run's batch. It moves the mark, so it is applied at most once and
// never after a refusal. Idle excludes a run that itself leads a step in progress, whose records
// must not change.
func (in intent) apply() runstore.Batch {
	b := runstore.NewBatch(in.other, in.undecided(), Idle())
	b.Require(guardList(in.otherGuards)...)
	b.ID = in.batchID("apply")
	b.Writes = in.otherWrites
	b.Records = slices.Clone(b.Records)
	in.putMark(&b, mark{verdict: verdictApplied, name: in.name})
	return b
}

// refuse is write 2 when a guard of the other run does not hold. It moves the mark too, so no copy
// of apply can succeed later, even if the guard holds again.
func (in intent) refuse(reason error) runstore.Batch {
	b := runstore.NewBatch(in.other, in.undecided())
	b.ID = in.batchID("refuse")
	m := mark{verdict: verdictRefused, name: in.name}
	errors.As(reason, &m.conflict)
	in.putMark(&b, m)
	return b
}

func (in intent) undecided() runstore.Guard { return runstore.AtVersion(in.markKey(), in.mark) }

// finish is write 3 of an applied step: it applies the lead's writes and deletes the intent. A release ends
// the grant under which the step began. If another grant followed, that one has ended, and the later one stays.
func (in intent) finish(under runstore.Guard, version runstore.Version) runstore.Batch {
	b := runstore.NewBatch(in.lead, under, runstore.AtVersion(IntentKey, version))
	b.ID = in.id
	b.Writes = in.leadWrites
	g := b.Guards()
	token := g.Fence.Token()
	if g.Token != nil {
		token = *g.Token
	}
	b.Release = b.Release && token == in.token
	b.Records = slices.Clone(b.Records)
	b.Delete(IntentKey)
	return b
}

// clear is write 3 of a refused step: it deletes the intent.
func (in intent) clear(under runstore.Guard, version runstore.Version) runstore.Batch {
	b := runstore.NewBatch(in.lead, under, runstore.AtVersion(IntentKey, version))
	b.ID = in.batchID("clear")
	b.Delete(IntentKey)
	return b
}

// deleteMark deletes a mark at its version.
func deleteMark(other runstore.RunID, key runstore.RecordKey, version runstore.Version) runstore.Batch {
	b := runstore.NewBatch(other, runstore.AtVersion(key, version))
	b.Delete(key)
	return b
}

// guardList returns the guards, except the fence, as arguments of Batch.Require. There is no guard of
// the token: check refuses it.
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

// verdict is the decision on a step. The numbers are stored.
type verdict byte

const (
	verdictUndecided verdict = iota
	verdictApplied
	verdictRefused
	// verdictVoid is never stored. The mark is gone or belongs to another step, so this step was
	// not applied and cannot be any more.
	verdictVoid
)

// mark is the record on the other run that decides one step of a lead. The write that moves the
// mark from the version in the intent is the decision.
type mark struct {
	verdict verdict
	name    string // the name of the intent that was decided
	// conflict is the guard that did not hold, if that was the reason of a refusal.
	conflict *runstore.ConflictError
}

// maxMark is an upper bound of a mark's size in bytes: two ids, a key and some numbers.
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

// reason returns the error of a refusal that was read from the mark.
func (m mark) reason(other runstore.RunID) error {
	if m.conflict != nil {
		return opError(other, m.conflict, nil)
	}
	return opError(other, runstore.ErrConflict, errors.New("the other run refused the step"))
}

func reserved(key runstore.RecordKey) bool { return strings.HasPrefix(string(key), string(Reserved)) }
