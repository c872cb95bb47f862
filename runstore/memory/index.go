package memory

import (
	"cmp"
	"slices"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// queue is one index, sorted by place.
type queue struct{ entries []place }

// place is where a record stands in an index.
type place struct {
	index   runstore.IndexName
	at      time.Time
	written time.Time
	run     runstore.RunID
	key     runstore.RecordKey
}

func (p place) compare(q place) int {
	return cmp.Or(p.at.Compare(q.at), p.written.Compare(q.written), cmp.Compare(p.run, q.run), cmp.Compare(p.key, q.key))
}

func (s *Store) place(id runstore.RunID, rec *record, p runstore.Place, now time.Time) {
	entry := place{index: p.Index, at: p.At.Resolve(now), written: now, run: id, key: rec.Key}
	q := s.index[p.Index]
	if q == nil {
		q = &queue{}
		s.index[p.Index] = q
	}
	i, _ := slices.BinarySearchFunc(q.entries, entry, place.compare)
	q.entries = slices.Insert(q.entries, i, entry)
	rec.places = append(rec.places, entry)
}

// unplace takes a record out of its indexes.
func (s *Store) unplace(id runstore.RunID, rec *record) {
	for _, entry := range rec.places {
		q := s.index[entry.index]
		if i, found := slices.BinarySearchFunc(q.entries, entry, place.compare); found {
			q.entries = slices.Delete(q.entries, i, i+1)
		}
		if len(q.entries) == 0 {
			delete(s.index, entry.index)
		}
	}
	rec.places = nil
}

// entries returns the places of an index between the bounds of a query, sorted.
func (s *Store) entries(q runstore.IndexQuery, now time.Time) []place {
	until := q.Until
	if until.IsZero() {
		until = now
	}
	var all []place
	switch q.Index {
	case runstore.IndexRuns:
		for _, r := range s.order {
			if !r.Unlisted {
				all = append(all, place{at: r.CreatedAt, run: r.ID})
			}
		}
	case runstore.IndexRunnable:
		for _, r := range s.order {
			if r.Runnable(until) {
				all = append(all, place{at: r.RunnableFrom(), written: r.CreatedAt, run: r.ID})
			}
		}
	default:
		if queue := s.index[q.Index]; queue != nil {
			all = slices.Clone(queue.entries)
		}
	}
	slices.SortFunc(all, place.compare)
	return slices.DeleteFunc(all, func(p place) bool { return p.at.Before(q.From) || p.at.After(until) })
}
