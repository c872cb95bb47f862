package sqlite

import (
	"context"
	"database/sql/driver"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter"
)

// maxGap is how many events of other runs a query for events of one run may pass over: 8. In a feed
// that alternates between nine runs, with events of 100 bytes, that reads a journal 2.3 times as
// fast as a query for each event. It breaks even at a gap of 32; with events of 3,000 bytes, of
// which a database page holds one, at 4.
const maxGap = 8

// journalPage reads a page of a run's journal.
type journalPage struct {
	ctx   context.Context
	conn  *conn
	run   driver.Value
	limit int
	page  adapter.Page
	next  runstore.Seq // of the next event

	// The pending events: count events of the run between first and last that are not read yet.
	first, last runstore.Position
	count       int

	events  []runstore.Event
	decoder eventDecoder
}

// ReadJournal implements adapter.Core.
func (e *engine) ReadJournal(ctx context.Context, id runstore.RunID, from runstore.Seq, limit int) (events []runstore.Event, err error) {
	err = e.read(ctx, func(c *conn) error {
		run, err := c.one(ctx, sqlJournalTail, blob(id))
		if err != nil {
			return err
		}
		if run == nil {
			return runstore.ErrNotFound
		}
		from, last, tail := max(from, 1), runstore.Seq(run[1].(int64)), runstore.Seq(run[2].(int64))
		if from > last {
			return nil
		}
		p := &journalPage{ctx: ctx, conn: c, run: run[0], limit: limit, page: adapter.NewPage(limit), next: from}
		p.events = make([]runstore.Event, 0, min(int64(limit), int64(last-from)+1))
		err = p.read(from, tail, bytesOf(run[3]))
		if err == nil && p.next <= last {
			err = damaged("the journal ends before seq %d, its last is %d", p.next, last)
		}
		if err == errEnough {
			err = nil
		}
		events = p.events
		return err
	})
	return events, err
}

// read reads the events from a seq on: first those of the sealed extents, then those of the tail,
// which begins at tailSeq. It returns errEnough when the page is full.
func (p *journalPage) read(from, tailSeq runstore.Seq, tail []byte) error {
	if from < tailSeq {
		full := false
		err := p.conn.query(p.ctx, sqlJournalExtents, func(v []driver.Value) error {
			err := p.add(from, runstore.Seq(v[0].(int64)), bytesOf(v[1]))
			full = err == errEnough
			return err
		}, p.run, int64(from))
		if full {
			return errEnough
		}
		if err != nil {
			return err
		}
	}
	if err := p.add(from, tailSeq, tail); err != nil {
		return err
	}
	return p.flush()
}

// add adds the extents of one row, the first of which begins at seq. It reads the events of extents
// that are close to each other with one query.
func (p *journalPage) add(from, seq runstore.Seq, extents []byte) error {
	for _, e := range decodeExtents(extents) {
		first := seq
		seq += runstore.Seq(e.count)
		if seq <= from {
			continue
		}
		if skip := from - first; skip > 0 {
			e.pos += runstore.Position(skip)
			e.count -= int(skip)
		}
		if p.count > 0 && (p.count >= p.limit-len(p.events) || e.pos <= p.last || e.pos-p.last-1 > maxGap) {
			if err := p.flush(); err != nil {
				return err
			}
		}
		if p.count == 0 {
			p.first = e.pos
		}
		p.last = e.pos + runstore.Position(e.count) - 1
		p.count += e.count
	}
	return nil
}

// flush reads the pending events.
func (p *journalPage) flush() error {
	if p.count == 0 {
		return nil
	}
	p.count = 0
	full := false
	err := p.conn.query(p.ctx, sqlJournalPage, func(v []driver.Value) error {
		event, err := p.decoder.decode(bytesOf(v[0]))
		if err != nil {
			return err
		}
		if event.Seq != p.next {
			return damaged("the journal has seq %d where %d belongs", event.Seq, p.next)
		}
		p.next++
		p.events = append(p.events, event.Event)
		full = p.page.Add(len(event.Data))
		return enough(full)
	}, int64(p.first), int64(p.last), p.run)
	if err == nil && full {
		return errEnough
	}
	return err
}
