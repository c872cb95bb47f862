package tape

import (
	"fmt"
	"strings"

	"github.com/tapestore/tapestore/runstore"
)

// RunOf returns the run of a head, for programs that list runs from the store's indexes. It returns
// ErrNoSuchRun for a run that is not one of Tape's.
func RunOf(head runstore.Run) (Run, error) { return runOf(head) }

// Gate is a gate of a run as stored.
type Gate struct {
	Name string
	// Delivered reports that a signal was sent, Consumed that the run has taken it.
	Delivered, Consumed bool
	// Context is the payload with which the run waited, Resolution the payload of the signal.
	Context, Resolution string
}

// Compaction is the progress of a run's compaction.
type Compaction struct {
	// UpTo is the last seq of the run when the compaction began.
	UpTo runstore.Seq
	Done bool
	// Compacted holds the counts so far.
	Compacted
}

// RowOf returns the row in a record of a run: a Decision, Effect, Obligation, Budget, Gate, Timer,
// Compaction or Session (without events). It returns nil for any other record.
//
// Errors: ErrFormat for a record that cannot be read.
func RowOf(run runstore.RunID, rec runstore.Record) (any, error) {
	key := string(rec.Key)
	prefix, name, _ := strings.Cut(key, "/")
	switch prefix + "/" {
	case decisionPrefix:
		return asRow(decisionOf(run, rec))
	case effectPrefix:
		e, err := effectOf(run, rec)
		return asRow(e.Effect, err)
	case obligationPrefix:
		o, err := obligationOf(run, rec)
		return asRow(o.Obligation, err)
	case timerPrefix:
		return asRow(timerOf(run, rec))
	case gatePrefix:
		var g gate
		err := decode(fmt.Sprintf("gate %q of run %q", name, run), rec.Value, &g, &g.resolution, &g.context)
		return asRow(Gate{name, g.Delivered, g.Consumed, g.context, g.resolution}, err)
	}
	switch rec.Key {
	case budgetKey:
		return asRow(budgetOf(run, rec))
	case compactionKey:
		c, err := compactionOf(run, rec)
		return asRow(Compaction{c.UpTo, c.Done, Compacted{Decisions: c.Decisions, Effects: c.Effects, Bytes: c.Bytes}}, err)
	case sessionKey:
		s, err := sessionOf(run, rec)
		if s.deleted {
			return nil, err
		}
		return asRow(s.Session, err)
	}
	return nil, nil
}

// HoldsGrant reports whether the record of that key has the id of a run's grant. With that id a writer
// can make the fence of the holder, so programs that show records to people must not show its value.
func HoldsGrant(key runstore.RecordKey) bool { return key == grantKey }

// asRow returns row as an any, or nil if err is not nil.
func asRow[R any](row R, err error) (any, error) {
	if err != nil {
		return nil, err
	}
	return row, nil
}
