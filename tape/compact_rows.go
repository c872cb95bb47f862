package tape

import (
	"context"
	"strings"

	"github.com/tapestore/tapestore/runstore"
)

// The limits of the rows that one commit blanks.
const (
	// compactRows is the number of rows. A batch takes 256 records and 256 guards; the run's
	// summary, the compaction and the status are among them.
	compactRows = 250
	// compactBytes is the total size of their blank forms: half of what a batch takes.
	compactBytes = runstore.MaxBatchBytes / 2
)

const decisionPrefix = "decision/"

// blankRow is a decision or an effect without its bodies, with the version at which it was read.
type blankRow struct {
	key     runstore.RecordKey
	version runstore.Version
	value   []byte
	places  []runstore.Place
	reserve []runstore.RecordWrite
	// saved is the length of the removed bodies, without rationales.
	saved int64
}

func (r blankRow) size() int { return len(r.key) + len(r.value) }

// blankRows collects the rows of one commit.
type blankRows struct {
	rows []blankRow
	size int
}

// add adds a row, or returns false if there is no room for it.
func (c *blankRows) add(r blankRow) bool {
	if len(c.rows) == compactRows || len(c.rows) > 0 && c.size+r.size() > compactBytes {
		return false
	}
	c.rows, c.size = append(c.rows, r), c.size+r.size()
	return true
}

// survey is what startCompaction reads of a run's records.
type survey struct {
	state compaction
	// open and unknown are the numbers of open obligations and UNKNOWN effects.
	open, unknown int
	// rows are the rows to blank. They are complete only if fits; otherwise they exceed one commit.
	rows []blankRow
	fits bool
}

// surveyRun reads the records of a run up to the last obligation, or up to the record of a
// compaction. It keeps no bodies.
func (t *Tape) surveyRun(ctx context.Context, run Run) (survey, error) {
	s := survey{fits: true}
	var collected blankRows
	for rec, err := range runstore.Records(ctx, t.store, run.ID, "") {
		if err != nil {
			return survey{}, noSuchRun(err)
		}
		key := string(rec.Key)
		switch {
		case rec.Key == compactionKey:
			s.state, err = compactionOf(run.ID, rec)
			return s, err
		case strings.HasPrefix(key, obligationPrefix):
			o, err := obligationOf(run.ID, rec)
			if err != nil {
				return survey{}, err
			}
			if o.Status == ObligationPending || o.Status == ObligationCommitted {
				s.open++
			}
			continue
		case key > obligationPrefix:
			s.rows = collected.rows
			return s, nil
		case strings.HasPrefix(key, effectPrefix):
			e, err := effectOf(run.ID, rec)
			if err != nil {
				return survey{}, err
			}
			if e.Status == EffectUnknown {
				s.unknown++
			}
		}
		row, found, err := blankOf(run.ID, rec, run.LastSeq)
		if err != nil {
			return survey{}, err
		}
		if found && s.fits {
			s.fits = collected.add(row)
		}
	}
	s.rows = collected.rows
	return s, nil
}

// blankOf returns the blank form of a decision or effect that has bodies recorded up to the seq
// upTo; found is false for any other record.
func blankOf(run runstore.RunID, rec runstore.Record, upTo runstore.Seq) (row blankRow, found bool, err error) {
	row = blankRow{key: rec.Key, version: rec.Version}
	if rec.Created.Seq > upTo {
		return row, false, nil
	}
	switch {
	case strings.HasPrefix(string(rec.Key), decisionPrefix):
		d, err := decisions.decode(run, rec)
		if err != nil {
			return row, false, err
		}
		blank, full := d.blank()
		if !full {
			return row, false, nil
		}
		row.saved = int64(len(d.Request) + len(d.Response))
		row.value, row.places = decisions.encode(blank)
	case strings.HasPrefix(string(rec.Key), effectPrefix):
		e, err := effects.decode(run, rec)
		if err != nil {
			return row, false, err
		}
		before := len(e.Request) + len(e.Response) + len(e.Error)
		if e.Mode != Outbox || e.Status == EffectConfirmed || e.Status == EffectFailed { // no dispatcher will send the request
			e.Request = ""
		}
		if rec.Updated.Seq <= upTo { // a later outcome was recorded after the compaction began
			e.Response, e.Error = "", ""
		}
		if row.saved = int64(before - len(e.Request) - len(e.Response) - len(e.Error)); row.saved == 0 {
			return row, false, nil
		}
		row.value, row.places = effects.encode(e)
		row.reserve = e.later()
	default:
		return row, false, nil
	}
	// The row keeps its positions in its queues: relative times count from its last change.
	for i, p := range row.places {
		if d, relative := p.At.Offset(); relative {
			row.places[i].At = runstore.At(rec.Updated.Time.Add(d))
		}
	}
	return row, true, nil
}
