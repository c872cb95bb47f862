package bigtable

import (
	"context"
	"errors"
	"maps"
	"slices"

	"cloud.google.com/go/bigtable"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter"
	"github.com/tapestore/tapestore/runstore/adapter/outcome"
)

// rereads bounds the reads of an operation whose values are replaced while it reads them. Before each
// repeat a write has made progress.
const rereads = 100

// retryMissing repeats a read while it returns errMissing.
func retryMissing[R any](f func() (R, error)) (found R, err error) {
	for range rereads {
		var missing errMissing
		if found, err = f(); !errors.As(err, &missing) {
			return found, err
		}
	}
	return found, outcome.Unavailable(err)
}

// GetRun implements adapter.Core: one read.
func (s *engine) GetRun(ctx context.Context, id runstore.RunID) (runstore.Run, error) {
	return retryMissing(func() (found runstore.Run, err error) {
		r, err := s.readRun(ctx, id, column(familyRecords, string(runstore.SummaryKey)))
		if err != nil {
			return found, err
		}
		if !r.exists() {
			return found, runstore.ErrNotFound
		}
		found, pack, err := r.public(id)
		if err != nil || pack == nil {
			return found, err
		}
		err = s.fetchValues(ctx, []wantedValue{{id, pack, func(value []byte) { found.Summary.Value = value }}})
		return found, err
	})
}

// ReadTerms implements runstore.TermReader.
func (s *engine) ReadTerms(ctx context.Context, id runstore.RunID) ([]runstore.Term, error) {
	return retryMissing(func() ([]runstore.Term, error) {
		r, err := s.readRun(ctx, id, column(familyOther, columnTerms), column(familyOther, columnEnded))
		if err != nil {
			return nil, err
		}
		if !r.exists() {
			return nil, runstore.ErrNotFound
		}
		h := r.head.rules(id, r.beat)
		h.Terms, h.Last.EndedAt = cell(r.cells, familyOther, columnTerms), endOf(h.Token, cell(r.cells, familyOther, columnEnded))
		return h.ListTerms()
	})
}

// public returns the run as callers see it, and the reference to the summary's value if that is in a pack.
func (r *row) public(id runstore.RunID) (found runstore.Run, pack *packed, err error) {
	found = r.head.rules(id, r.beat).Run
	if summary := cell(r.cells, familyRecords, string(runstore.SummaryKey)); summary != nil {
		var m recordMeta
		value, err := decodeCell(summary, &m)
		if err != nil {
			return found, nil, err
		}
		found.Summary, pack = m.record(runstore.SummaryKey, value), m.Pack
	}
	return found, pack, nil
}

// ReadRecords implements adapter.Core: one read, another if the run has cold records, and one for large
// values.
func (s *engine) ReadRecords(ctx context.Context, id runstore.RunID, q runstore.RecordQuery) ([]runstore.Record, error) {
	return retryMissing(func() ([]runstore.Record, error) { return s.readRecords(ctx, id, q) })
}

// readRecords reads records by their keys, or a page of them.
func (s *engine) readRecords(ctx context.Context, id runstore.RunID, q runstore.RecordQuery) (records []runstore.Record, err error) {
	asked := map[runstore.RecordKey]bool{}
	for _, k := range q.Keys {
		asked[k] = true
	}
	if len(asked) > 0 {
		filters := append(recordFilters(q.Keys), moveListFilter())
		r, _, colds, err := s.withCold(ctx, id,
			func() (*row, error) { return s.readRun(ctx, id, filters...) },
			func(c *moveList) (coldPage, error) { return s.coldKeys(ctx, id, c, slices.Sorted(maps.Keys(asked))) })
		if err != nil {
			return nil, err
		}
		all, err := r.merged(colds, func(key runstore.RecordKey) bool { return asked[key] })
		if err != nil {
			return nil, err
		}
		return s.pageOf(ctx, id, all, 0)
	}
	_, all, err := s.readPage(ctx, id, q)
	if err != nil {
		return nil, err
	}
	return s.pageOf(ctx, id, all, q.Limit)
}

// readPage reads a page of the records with a prefix, without their large values, and the run's row in
// the same state.
func (s *engine) readPage(ctx context.Context, id runstore.RunID, q runstore.RecordQuery) (*row, []mergedRecord, error) {
	// All rows of a page may be tombstones, hidden by tombstones, or rows that do not count.
	for limit, most, stamp := q.Limit, runstore.MaxPageBytes, int64(0); ; {
		r, colds, upTo, err := s.readPrefix(ctx, id, q, limit, most, stamp)
		if err != nil {
			return nil, nil, err
		}
		if r.late && r.head.Stamp > stamp {
			stamp = r.head.Stamp
			continue
		}
		all, err := r.merged(colds, upTo)
		if err != nil {
			return nil, nil, err
		}
		if len(all) > 0 || len(r.cells[familyRecords]) < limit && !colds.cut {
			return r, all, nil
		}
		limit, most = 2*limit, 2*most // not the rest of the page alone, which could be of a later state of the run
	}
}

// readPrefix reads the cells of up to limit records after q.After in the run's row, and as many cold
// ones, until these have more than most bytes. upTo reports for which keys it has read all of both kinds. It
// leaves out cells below a stamp before it counts.
func (s *engine) readPrefix(ctx context.Context, id runstore.RunID, q runstore.RecordQuery, limit, most int, stamp int64) (r *row, colds coldPage, upTo func(runstore.RecordKey) bool, err error) {
	filters := []bigtable.Filter{moveListFilter()}
	from := max(string(q.Prefix), string(q.After)+"\x00")
	if q.After == "" {
		from = string(q.Prefix)
	}
	// After the last key of the prefix there is nothing to read, and the service refuses an empty range.
	if end := after(string(q.Prefix)); end == "" || from < end {
		filters = append(filters, bigtable.ChainFilters(
			sinceStamp(stamp, columns(familyRecords, from, end)), bigtable.LatestNFilter(1), bigtable.CellsPerRowLimitFilter(limit)))
	}
	r, _, colds, err = s.withCold(ctx, id,
		func() (*row, error) { return s.readRun(ctx, id, filters...) },
		func(c *moveList) (coldPage, error) {
			return s.coldRange(ctx, id, c, q.Prefix, q.After, limit, most)
		})
	if err != nil {
		return nil, coldPage{}, nil, err
	}
	last := ""
	if items := r.cells[familyRecords]; len(items) == limit {
		last = qualifier(familyRecords, items[limit-1])
	}
	return r, colds, func(key runstore.RecordKey) bool {
		return (last == "" || string(key) <= last) && (!colds.cut || key <= colds.through)
	}, nil
}

// pageOf returns the first records, up to the size of a page, and up to limit unless that is 0.
func (s *engine) pageOf(ctx context.Context, id runstore.RunID, all []mergedRecord, limit int) (records []runstore.Record, err error) {
	var wanted []wantedValue
	p := adapter.NewPage(limit)
	for _, one := range all {
		i, size := len(records), len(one.value)
		records = append(records, one.meta.record(one.key, one.value))
		if m := &one.meta; m.Pack != nil {
			wanted = append(wanted, wantedValue{id, m.Pack, func(value []byte) { records[i].Value = value }})
			size += int(m.Pack.Length)
		}
		if p.Add(size) && limit > 0 {
			break
		}
	}
	return records, s.fetchValues(ctx, wanted)
}

// ReadJournal implements adapter.Core: one read, and another if the page has sealed events or large
// values.
func (s *engine) ReadJournal(ctx context.Context, id runstore.RunID, from runstore.Seq, limit int) ([]runstore.Event, error) {
	return retryMissing(func() ([]runstore.Event, error) { return s.readJournal(ctx, id, int64(max(from, 1)), limit) })
}

func (s *engine) readJournal(ctx context.Context, id runstore.RunID, from int64, limit int) ([]runstore.Event, error) {
	r, err := s.readRun(ctx, id, eventColumns(from, from+int64(limit)-1))
	if err != nil {
		return nil, err
	}
	if !r.exists() {
		return nil, runstore.ErrNotFound
	}
	p := &eventPage{id: id, Page: adapter.NewPage(limit)}
	// Segments are immutable, so it does not matter that they are read after the row.
	for number := (from - 1) / segmentSize; number < r.head.Sealed && !p.full; {
		var keys []string
		for size := 0; number < r.head.Sealed && size < limit-len(p.events)+segmentSize; number++ {
			keys = append(keys, segmentKey(id, r.head.Generation, number))
			size += segmentSize
		}
		segments, err := s.readSegments(ctx, keys)
		if err != nil {
			return nil, err
		}
		for _, k := range keys {
			segment, there := segments[k]
			if !there {
				return nil, errMissing{id} // purged meanwhile
			}
			for _, one := range segment {
				if one.seq >= from && !p.full {
					p.add(one.seq, &one.meta, one.data)
				}
			}
		}
	}
	err = r.events(func(one journalEvent, _ []byte) error {
		if one.seq >= from && !p.full {
			p.add(one.seq, &one.meta, one.data)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return p.events, s.fetchValues(ctx, p.wanted)
}

// eventPage collects the events that ReadJournal returns, up to the size of a page.
type eventPage struct {
	adapter.Page
	id     runstore.RunID
	full   bool
	events []runstore.Event
	wanted []wantedValue
}

func (p *eventPage) add(seq int64, a *eventMeta, data []byte) {
	i, size := len(p.events), len(data)
	p.events = append(p.events, a.event(seq, data))
	if a.Pack != nil {
		size += int(a.Pack.Length)
		p.wanted = append(p.wanted, wantedValue{p.id, a.Pack, func(value []byte) { p.events[i].Data = value }})
	}
	p.full = p.Add(size)
}
