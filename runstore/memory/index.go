package memory

import (
	"cmp"
	"slices"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// sortedIndex is one index of records, sorted by indexEntry.compare.
type sortedIndex struct{ entries []indexEntry }

// indexEntry is an entry of a record or a run in an index.
type indexEntry struct {
	index   runstore.IndexName
	at      time.Time
	written time.Time
	run     runstore.RunID
	key     runstore.RecordKey
}

func (p indexEntry) compare(q indexEntry) int {
	return cmp.Or(p.at.Compare(q.at), p.written.Compare(q.written), cmp.Compare(p.run, q.run), cmp.Compare(p.key, q.key))
}

func (s *Store) insertEntry(id runstore.RunID, rec *record, p runstore.Place, now time.Time) {
	entry := indexEntry{index: p.Index, at: p.At.Resolve(now), written: now, run: id, key: rec.Key}
	q := s.index[p.Index]
	if q == nil {
		q = &sortedIndex{}
		s.index[p.Index] = q
	}
	i, _ := slices.BinarySearchFunc(q.entries, entry, indexEntry.compare)
	q.entries = slices.Insert(q.entries, i, entry)
	rec.entries = append(rec.entries, entry)
}

// removeEntries removes a record's entries from their indexes.
func (s *Store) removeEntries(id runstore.RunID, rec *record) {
	for _, entry := range rec.entries {
		q := s.index[entry.index]
		if i, found := slices.BinarySearchFunc(q.entries, entry, indexEntry.compare); found {
			q.entries = slices.Delete(q.entries, i, i+1)
		}
		if len(q.entries) == 0 {
			delete(s.index, entry.index)
		}
	}
	rec.entries = nil
}

// entries returns the entries of an index within the bounds of a query, sorted.
func (s *Store) entries(q runstore.IndexQuery, now time.Time) []indexEntry {
	until := q.Until
	if until.IsZero() {
		until = now
	}
	var all []indexEntry
	switch q.Index {
	case runstore.IndexRuns:
		for _, r := range s.order {
			if !r.Unlisted {
				all = append(all, indexEntry{at: r.CreatedAt, run: r.ID})
			}
		}
	case runstore.IndexRunnable:
		for _, r := range s.order {
			if at := r.RunnableFrom(); !at.IsZero() {
				all = append(all, indexEntry{at: at, written: r.CreatedAt, run: r.ID})
			}
		}
	default:
		if queue := s.index[q.Index]; queue != nil {
			all = slices.Clone(queue.entries)
		}
	}
	slices.SortFunc(all, indexEntry.compare)
	return slices.DeleteFunc(all, func(p indexEntry) bool { return p.at.Before(q.From) || p.at.After(until) })
}
