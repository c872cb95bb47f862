package archive

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/tapestore/tapestore/runstore"
)

// defaultDifferences is how many differences are reported by default.
const defaultDifferences = 100

// maxPerRun bounds the differences of one run. 20: enough to see a pattern.
const maxPerRun = 20

// Difference is one difference between a run and its copy. A field that does not apply is zero.
type Difference struct {
	Run runstore.RunID
	Key runstore.RecordKey
	Seq runstore.Seq
	// Problem describes the difference.
	Problem string
}

// String returns the difference on one line.
func (d Difference) String() string {
	s := fmt.Sprintf("run %q", string(d.Run))
	if d.Key != "" {
		s += fmt.Sprintf(" record %q", string(d.Key))
	}
	if d.Seq != 0 {
		s += fmt.Sprintf(" seq %d", d.Seq)
	}
	return s + ": " + d.Problem
}

// comparison is the sink that compares the runs it receives, the originals, with those of a store, the
// copies. It reads a run of the store along with the original, page by page.
type comparison struct {
	copies source
	report func(Difference)

	h       head
	run     runstore.Run // the copy
	missing bool         // there is no copy
	found   int          // differences of the run
	records []runstore.PlacedRecord
	after   runstore.RecordKey
	floor   runstore.Version
	drained bool // all records of the copy were read
	events  []runstore.Event
	next    runstore.Seq // of the next page of events
}

func newComparison(copies source, report func(Difference)) *comparison {
	return &comparison{copies: copies, report: report}
}

// differ reports a difference of the present run.
func (c *comparison) differ(d Difference, format string, args ...any) {
	d.Run, d.Problem = c.h.ID, fmt.Sprintf(format, args...)
	switch c.found++; {
	case c.found <= maxPerRun:
		c.report(d)
	case c.found == maxPerRun+1:
		c.report(Difference{Run: c.h.ID, Problem: "there are further differences"})
	}
}

func (c *comparison) head(ctx context.Context, h head) error {
	*c = comparison{copies: c.copies, report: c.report, h: h, next: 1}
	run, err := c.copies.store.GetRun(ctx, h.ID)
	if errors.Is(err, runstore.ErrNotFound) {
		c.missing = true
		c.differ(Difference{}, "the copy has no such run")
		return nil
	}
	if err != nil {
		return err
	}
	c.run = run
	for _, p := range []struct {
		differs bool
		what    string
		a, b    any
	}{
		{h.Status != run.Status, "status", h.Status, run.Status},
		{h.Unlisted != run.Unlisted, "unlisted", h.Unlisted, run.Unlisted},
		{!h.CreatedAt.Equal(run.CreatedAt), "creation time", h.CreatedAt, run.CreatedAt},
		{!h.RunnableAt.Equal(run.RunnableAt), "runnable time", h.RunnableAt, run.RunnableAt},
		{h.LastSeq != run.LastSeq, "last seq", h.LastSeq, run.LastSeq},
	} {
		if p.differs {
			c.differ(Difference{}, "the %s is %v, and %v in the copy", p.what, p.a, p.b)
		}
	}
	if run.Token < h.Token {
		c.differ(Difference{}, "the last token is %v, and %v in the copy: it must not be lower there", h.Token, run.Token)
	}
	return nil
}

// peek returns the next record of the copy, nil after the last.
func (c *comparison) peek(ctx context.Context) (*runstore.PlacedRecord, error) {
	for len(c.records) == 0 && !c.drained {
		page, err := c.copies.mover.ReadPlaced(ctx, c.h.ID, c.after, runstore.MaxPage)
		if err != nil {
			return nil, err
		}
		c.records, c.floor, c.drained = page.Records, page.Floor, len(page.Records) == 0
	}
	if len(c.records) == 0 {
		return nil, nil
	}
	return &c.records[0], nil
}

func (c *comparison) pop() {
	c.after = c.records[0].Key
	c.records = c.records[1:]
}

func (c *comparison) record(ctx context.Context, r runstore.PlacedRecord) error {
	if c.missing {
		return nil
	}
	for {
		other, err := c.peek(ctx)
		if err != nil {
			return err
		}
		switch {
		case other == nil || other.Key > r.Key:
			c.differ(Difference{Key: r.Key}, "the copy has no such record")
			return nil
		case other.Key < r.Key:
			c.differ(Difference{Key: other.Key}, "only the copy has this record")
			c.pop()
		default:
			c.compareRecords(r, *other)
			c.pop()
			return nil
		}
	}
}

func (c *comparison) compareRecords(a, b runstore.PlacedRecord) {
	d := Difference{Key: a.Key}
	if a.Version != b.Version {
		c.differ(d, "the version is %d, and %d in the copy", a.Version, b.Version)
	}
	if !bytes.Equal(a.Value, b.Value) {
		c.differ(d, "the values differ, of %d bytes and of %d", len(a.Value), len(b.Value))
	}
	for _, s := range []struct {
		name string
		a, b runstore.Stamp
	}{{"creation", a.Created, b.Created}, {"last change", a.Updated, b.Updated}} {
		if s.a.Seq != s.b.Seq || s.a.Token != s.b.Token || !s.a.Time.Equal(s.b.Time) {
			c.differ(d, "the stamp of its %s is %v, and %v in the copy", s.name, stampLine(s.a), stampLine(s.b))
		}
	}
	if x, y := recordLine(a).Index, recordLine(b).Index; !slices.Equal(x, y) {
		c.differ(d, "the index entries are %.512v, and %.512v in the copy", x, y)
	}
}

func (c *comparison) event(ctx context.Context, e runstore.Event) error {
	if c.missing || e.Seq > c.run.LastSeq {
		return nil // head has reported it
	}
	if len(c.events) == 0 {
		page, err := c.copies.store.ReadJournal(ctx, c.h.ID, c.next, runstore.MaxPage)
		if err != nil {
			return err
		}
		c.events = page
	}
	if len(c.events) == 0 || c.events[0].Seq != e.Seq {
		c.differ(Difference{Seq: e.Seq}, "the copy has no such event")
		c.events, c.next = nil, e.Seq+1
		return nil
	}
	other := c.events[0]
	c.events, c.next = c.events[1:], e.Seq+1
	d := Difference{Seq: e.Seq}
	if e.Kind != other.Kind {
		c.differ(d, "the kind is %q, and %q in the copy", e.Kind, other.Kind)
	}
	if !bytes.Equal(e.Data, other.Data) {
		c.differ(d, "the data differ, of %d bytes and of %d", len(e.Data), len(other.Data))
	}
	if !e.Time.Equal(other.Time) {
		c.differ(d, "the time is %v, and %v in the copy", e.Time, other.Time)
	}
	if e.Token != other.Token || e.Owner != other.Owner {
		c.differ(d, "token and owner are %v %q, and %v %q in the copy", e.Token, string(e.Owner), other.Token, string(other.Owner))
	}
	return nil
}

func (c *comparison) end(ctx context.Context) error {
	if c.missing {
		return nil
	}
	for {
		other, err := c.peek(ctx)
		if err != nil {
			return err
		}
		if other == nil {
			break
		}
		c.differ(Difference{Key: other.Key}, "only the copy has this record")
		c.pop()
	}
	if c.floor < c.h.Floor {
		c.differ(Difference{}, "new records begin above version %d, and %d in the copy: it must not be lower there", c.h.Floor, c.floor)
	}
	return nil
}

func (c *comparison) discard(context.Context) error { return nil }
