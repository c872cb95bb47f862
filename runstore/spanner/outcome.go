package spanner

import (
	"bytes"
	"context"
	"time"

	"cloud.google.com/go/spanner"

	"github.com/tapestore/tapestore/runstore"
)

// try is an attempt of a write whose commit may have been applied.
type try struct {
	results []*result // by request; nil for a request that had nothing to write
	// The first event identifies the try in the journal of its run; nil if the try has no event.
	first *runstore.Event
	key   runKey
	slot  int64     // of the first event
	now   time.Time // the store clock when the try was decided
}

// add adds the edit of the request with the number i.
func (t *try) add(i int, e *edit) {
	t.results[i] = e.result()
	if t.first == nil && len(e.events) > 0 {
		t.first, t.key, t.now = &e.events[0], e.g.key, e.now
	}
}

// findInJournals returns the try that was applied, by the journals of the runs, which keep the events of a
// write when its result is evicted. At most one transaction writes a seq of a journal, and the event of
// another transaction has another time, slot or content.
//
// If no try was applied, found is nil and known is true. known is false if the journals do not show that: a
// try had no events, or the run was purged since. The row of seq 0 is inserted by the creation of a run. If
// its commit timestamp is earlier than the store clock of the try, the run is still the one that the try was
// decided on, because the commit of a try is never earlier than its store clock.
func (s *engine) findInJournals(ctx context.Context, tx *spanner.ReadWriteTransaction, tries []*try) (found *try, known bool, err error) {
	known = true
	for _, t := range tries {
		sameRun, applied := false, false
		if t.first != nil {
			keys := spanner.KeySets(spanner.Key{t.key.hash, t.key.run, 0}, spanner.Key{t.key.hash, t.key.run, int64(t.first.Seq)})
			var rows []event
			err = spanner.SelectAll(tx.ReadWithOptions(ctx, "Events", keys, eventColumns, s.read("outcome", 0)), &rows, spanner.WithLenient())
			for _, e := range rows {
				if e.Seq.Int64 == 0 {
					sameRun = e.Committed.Time.Before(t.now)
				} else {
					applied = t.wrote(&e)
				}
			}
		}
		if err != nil || applied {
			return t, true, err
		}
		known = known && sameRun
	}
	return nil, known, nil
}

// wrote reports whether the row of the first event's seq is the one that the try inserts.
func (t *try) wrote(row *event) bool {
	e := row.public()
	return row.Slot.Int64 == t.slot && e.Time.Equal(t.first.Time) && e.Token == t.first.Token &&
		e.Owner == t.first.Owner && e.Kind == t.first.Kind && bytes.Equal(e.Data, t.first.Data)
}
