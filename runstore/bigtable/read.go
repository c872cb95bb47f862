package bigtable

import (
	"context"
	"errors"

	"cloud.google.com/go/bigtable"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/outcome"
)

// rereads is how often a reader tries again whose values were replaced while it read
// them. Each time somebody else has made progress.
const rereads = 100

// steady repeats a read that met a value which was just replaced.
func steady(f func() error) error {
	var err error
	for range rereads {
		var missing errMissing
		if err = f(); !errors.As(err, &missing) {
			return err
		}
	}
	return outcome.Unavailable(err)
}

// GetRun implements runstore.RunStore: one read.
func (s *Store) GetRun(ctx context.Context, id runstore.RunID) (found runstore.Run, err error) {
	err = s.op(ctx, "get run", id, runstore.CheckRunID(id), func(ctx context.Context) error {
		found, err = s.getRun(ctx, id)
		return err
	})
	return found, err
}

func (s *Store) getRun(ctx context.Context, id runstore.RunID) (found runstore.Run, err error) {
	err = steady(func() error {
		r, err := s.readRun(ctx, id, column(familyRecords, string(runstore.SummaryKey)))
		if err != nil {
			return err
		}
		if !r.exists() {
			return runstore.ErrNotFound
		}
		var pack *packed
		found, pack, err = r.public(id)
		if err != nil || pack == nil {
			return err
		}
		return s.fetch(ctx, []want{{id, pack, func(value []byte) { found.Summary.Value = value }}})
	})
	return found, err
}

// public returns the run's head with its summary, and the pack that has the summary's
// value, nil if the row has it.
func (r *row) public(id runstore.RunID) (found runstore.Run, pack *packed, err error) {
	found = r.head.rules(id, r.beat).Run
	if summary := cell(r.cells, familyRecords, string(runstore.SummaryKey)); summary != nil {
		var m meta
		value, err := split(summary, &m)
		if err != nil {
			return found, nil, err
		}
		found.Summary, pack = m.record(runstore.SummaryKey, value), m.Pack
	}
	return found, pack, nil
}

// ReadRecords implements runstore.RunStore: one read, and another for large values.
func (s *Store) ReadRecords(ctx context.Context, id runstore.RunID, q runstore.RecordQuery) (records []runstore.Record, err error) {
	err = s.op(ctx, "read records", id, q.Check(id), func(ctx context.Context) error {
		return steady(func() error {
			records, err = s.readRecords(ctx, id, q, 0)
			return err
		})
	})
	return records, err
}

// readRecords reads a page of records. It leaves out the cells below a stamp before it counts
// the cells of the page, and reads anew if the run's head has a higher stamp and there are such.
func (s *Store) readRecords(ctx context.Context, id runstore.RunID, q runstore.RecordQuery, stamp int64) (records []runstore.Record, err error) {
	filters := recordFilters(q.Keys)
	left := len(q.Keys)
	if left == 0 {
		from := max(string(q.Prefix), string(q.After)+"\x00")
		if q.After == "" {
			from = string(q.Prefix)
		}
		left = q.Limit
		if end := after(string(q.Prefix)); end != "" && from >= end {
			filters = nil // behind them all: the service refuses a range that ends before it begins
		} else {
			filters = []bigtable.Filter{bigtable.ChainFilters(
				since(stamp, columns(familyRecords, from, end)), bigtable.LatestNFilter(1), bigtable.CellsPerRowLimitFilter(q.Limit))}
		}
	}
	r, err := s.readRun(ctx, id, filters...)
	if err != nil {
		return nil, err
	}
	if !r.exists() {
		return nil, runstore.ErrNotFound
	}
	if r.late && len(q.Keys) == 0 {
		return s.readRecords(ctx, id, q, r.head.Stamp)
	}
	asked := map[runstore.RecordKey]bool{}
	for _, k := range q.Keys {
		asked[k] = true
	}
	var wanted []want
	size := 0
	for _, item := range r.cells[familyRecords] {
		key := runstore.RecordKey(qualifier(familyRecords, item))
		if len(q.Keys) > 0 && !asked[key] {
			continue
		}
		var m meta
		value, err := split(item.Value, &m)
		if err != nil {
			return nil, err
		}
		records = append(records, m.record(key, value))
		size += len(value)
		if m.Pack != nil {
			i := len(records) - 1
			wanted = append(wanted, want{id, m.Pack, func(value []byte) { records[i].Value = value }})
			size += int(m.Pack.Length)
		}
		if len(q.Keys) == 0 && (len(records) == left || size > runstore.MaxPageBytes) {
			break
		}
	}
	return records, s.fetch(ctx, wanted)
}

// ReadJournal implements runstore.RunStore: one read, and another where the page has
// sealed events or large values.
func (s *Store) ReadJournal(ctx context.Context, id runstore.RunID, from runstore.Seq, limit int) (events []runstore.Event, err error) {
	err = s.op(ctx, "read journal", id, runstore.CheckRead(id, from, limit), func(ctx context.Context) error {
		return steady(func() error {
			events, err = s.readJournal(ctx, id, int64(max(from, 1)), limit)
			return err
		})
	})
	return events, err
}

func (s *Store) readJournal(ctx context.Context, id runstore.RunID, from int64, limit int) ([]runstore.Event, error) {
	r, err := s.readRun(ctx, id, eventColumns(from, from+int64(limit)-1))
	if err != nil {
		return nil, err
	}
	if !r.exists() {
		return nil, runstore.ErrNotFound
	}
	p := &page{id: id, left: limit}
	// Segments are immutable, so it does not matter that they are read later.
	for number := (from - 1) / segmentSize; number < r.head.Sealed && !p.full(); {
		var keys []string
		for size := 0; number < r.head.Sealed && size < p.left+segmentSize; number++ {
			keys = append(keys, segmentKey(id, r.head.Life, number))
			size += segmentSize
		}
		segments, err := s.segments(ctx, keys)
		if err != nil {
			return nil, err
		}
		for _, k := range keys {
			segment, there := segments[k]
			if !there {
				return nil, errMissing{id} // purged meanwhile
			}
			for _, one := range segment {
				if one.seq >= from && !p.full() {
					p.add(one.seq, &one.about, one.data)
				}
			}
		}
	}
	err = r.events(func(one sealedEvent, _ []byte) error {
		if one.seq >= from && !p.full() {
			p.add(one.seq, &one.about, one.data)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return p.events, s.fetch(ctx, p.wanted)
}

// page collects a page of events: up to a limit, ended early by its size.
type page struct {
	id     runstore.RunID
	left   int
	size   int64
	events []runstore.Event
	wanted []want
}

func (p *page) full() bool { return p.left <= 0 || p.size > runstore.MaxPageBytes }

func (p *page) add(seq int64, a *about, data []byte) {
	p.events = append(p.events, a.event(seq, data))
	p.left--
	p.size += int64(len(data))
	if a.Pack != nil {
		i := len(p.events) - 1
		p.size += a.Pack.Length
		p.wanted = append(p.wanted, want{p.id, a.Pack, func(value []byte) { p.events[i].Data = value }})
	}
}
