package bigtable

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"

	"cloud.google.com/go/bigtable"

	"github.com/tapestore/tapestore/runstore"
)

// Open pages are group commit without a leader: many handles append their events to the page that ends
// the feed's log. An append is one read-modify-write of the page's row. The server orders the appends
// and answers each with the whole page. So the appends of many handles never collide, each costs one
// request, and the reply shows what other handles have appended.
//
// It is not simple because appends may arrive late, twice, or after the page was removed, because a
// failover may lose some of them, and because programs of format 4 do not know open pages. So the row of
// an open page has the cell of a complete page and a second cell (columnPage): a header, then one entry
// for each append.
//
//  1. A page is open from its creation until it is full or has an entry that closes it. Both follow from its
//     bytes, so all readers agree. Later entries do not count.
//  2. The log continues after a page only once the page is closed: readers stop at an open page, and a handle
//     creates the next page only after it has read that the page is closed.
//  3. A handle appends events of a run only if it knows every earlier page. If several entries of a page
//     name an event, the first one counts. So the log has each event once, however late an append
//     arrives and however often the handle repeats it.
//  4. The header is the By of the page. freezePage moves the entries of a closed page into the cell of a
//     complete page, under another By. An append that arrives after that, or after the page was removed,
//     finds no such header and does not count.
//  5. Handles record in the rows of the runs, and in the hint, only what complete pages name. So two
//     records of one page are equal, and a late one changes nothing.
//  6. Raising the epoch closes and freezes the page that ends the log. So no late request of the history
//     that a failover lost finds its header.
//
// appendToPage adds an entry, withPage decodes a page, closePage closes it and freezePage completes it. The
// sequencer calls them: extendLog for events, review for pages that have closed or are idle.
//
// A program of format 4 takes an open page for a complete one, and creates the next page. review finds
// that page and closes the open one. An open page names no event that such a program may name as well:
// events up to head.PagedFrom go into complete pages, which both programs compete to create.
//
// Rejected: a complete page for each round, as in format 4. Of n handles that create the next page one
// succeeds, and the others need two more requests: from eight handles on, the feed fell behind by a
// second (bench scale, "handles"). Rejected: a lease for one appender. The other handles would need one
// request more to pass their events to it, and would wait for the lease to expire when the appender
// dies. TestAppendsOfManyHandles counts the requests.

const (
	// pageEntries is how many appends a page takes. 256: many times the number of handles that are
	// busy at the same time, because each handle needs a request more to go on in the next page
	// (sequencer.isLikelyFull), or two.
	pageEntries = 256
	// pageBytes closes a page early, because each append writes the whole page again, as a version of the
	// cell that remains until freezePage deletes all of them. 16 KB: a page of 256 entries of one run each
	// has some 12 KB, and 256 versions take less than 4 MiB.
	pageBytes = 16 << 10
)

// columnPage is the column of a page's header and entries.
const columnPage = "+"

// pageEntry is what one append adds to a page: ranges of events, or a number, which closes the page.
type pageEntry struct {
	nonce  uint64
	next   int64 // the number of the next page if the entry closes this one, or 0
	ranges []eventRange
}

func (e *pageEntry) encode() []byte {
	b := binary.BigEndian.AppendUint64(nil, e.nonce)
	b = binary.AppendUvarint(b, uint64(e.next))
	for _, r := range e.ranges {
		b = binary.AppendUvarint(b, uint64(len(r.Run)))
		b = append(b, r.Run...)
		for _, n := range []int64{r.Generation, r.From, r.N} {
			b = binary.AppendUvarint(b, uint64(n))
		}
	}
	return appendFramed(nil, b)
}

// decodePageEntry returns the first entry of a cell and the bytes after it.
func decodePageEntry(cell []byte) (e pageEntry, rest []byte, err error) {
	b, rest, ok := cutFrame(cell)
	if !ok || len(b) < 8 {
		return e, nil, errPage
	}
	e.nonce, b = binary.BigEndian.Uint64(b), b[8:]
	read := func(numbers ...*int64) {
		for _, number := range numbers {
			v, n := binary.Uvarint(b)
			*number, b, ok = int64(v), b[max(n, 0):], ok && n > 0
		}
	}
	for read(&e.next); ok && len(b) > 0; {
		var r eventRange
		if r.Run, b, ok = cutFrame(b); ok {
			read(&r.Generation, &r.From, &r.N)
			e.ranges = append(e.ranges, r)
		}
	}
	if !ok {
		return e, nil, errPage
	}
	return e, rest, nil
}

var errPage = errors.New("an entry that this program did not write")

// header returns the bytes with which the second cell of an open page begins.
func (g *feedPage) header() string { return be64(int64(g.By)) }

// openState is the state of a page that is not complete.
type openState struct {
	open    bool            // the page is not closed
	entries int             // how many entries the page has, including those that do not count
	has     map[uint64]bool // the nonces of the entries that count
}

// withPage returns the page with the entries of its second cell. It returns the page itself if that cell
// is nil or does not begin with the page's header: then the page is complete.
func (g *feedPage) withPage(cell []byte) *feedPage {
	if g.damage != nil || len(cell) < 8 || string(cell[:8]) != g.header() {
		return g
	}
	p := &openState{open: true, has: map[uint64]bool{}}
	all := &feedPage{By: g.By, Next: g.Next, Ranges: g.Ranges[:len(g.Ranges):len(g.Ranges)], number: g.number, openState: p, created: len(g.Ranges)}
	named, events := map[runGeneration]int64{}, int64(0)
	for _, r := range g.Ranges {
		named[r.owner()], events = max(named[r.owner()], r.From+r.N-1), events+r.N
	}
	for rest := cell[8:]; len(rest) > 0; p.entries++ {
		if p.entries == pageEntries || len(cell)-len(rest) >= pageBytes {
			p.open = false
		}
		e, behind, err := decodePageEntry(rest)
		if err != nil {
			all.damage, all.openState = corrupt(fmt.Errorf("page %d of the feed's log: %w", g.number, err)), nil
			return all
		}
		rest = behind
		if !p.open {
			continue
		}
		var adds []eventRange
		for _, r := range e.ranges {
			last := r.From + r.N - 1
			if from := max(r.From, named[r.owner()]+1); from <= last {
				adds = append(adds, eventRange{r.Run, r.Generation, from, last - from + 1})
				events, named[r.owner()] = events+last-from+1, last
			}
		}
		if p.open = events <= maxPageEvents; !p.open {
			continue
		}
		p.has[e.nonce] = true
		all.Ranges = append(all.Ranges, adds...)
		if e.next != 0 {
			p.open = false
			if e.next != g.number+1 {
				all.Next = e.next
			}
		}
	}
	if p.entries >= pageEntries || len(cell) >= pageBytes {
		p.open = false
	}
	return all
}

// isOpen reports whether handles may append to the page.
func (g *feedPage) isOpen() bool { return g != nil && g.openState != nil && g.openState.open }

// appendToPage appends an entry to a page. It returns the page after that, or nil if the page was frozen or
// removed, and reports whether the entry counts. If it does not count, the page was closed before.
func (s *engine) appendToPage(ctx context.Context, g *feedPage, e pageEntry) (now *feedPage, has bool, err error) {
	e.nonce = rand.Uint64()
	rmw := bigtable.NewReadModifyWrite()
	rmw.AppendValue(familyOther, columnPage, e.encode())
	var r bigtable.Row
	err = s.retry(ctx, func(ctx context.Context) (err error) { // of several copies of the request, the first counts
		r, err = s.table.ApplyReadModifyWrite(ctx, logKey(g.number), rmw)
		return err
	})
	if err != nil {
		return nil, false, err
	}
	now = (&feedPage{By: g.By, Ranges: g.Ranges[:g.created], number: g.number, created: g.created}).withPage(cell(r, familyOther, columnPage))
	switch {
	case now.damage != nil:
		return now, false, nil
	case now.openState == nil:
		return nil, false, nil
	}
	return now, now.has[e.nonce], nil
}

// closePage closes a page. The log continues with the page of the number next.
func (s *engine) closePage(ctx context.Context, g *feedPage, next int64) (*feedPage, error) {
	now, _, err := s.appendToPage(ctx, g, pageEntry{next: next})
	return now, err
}

// freezePage turns a closed page into a complete one and returns that. Every handle that freezes a page
// writes the same ranges, and only the first request finds the header.
func (s *engine) freezePage(ctx context.Context, g *feedPage) (*feedPage, error) {
	frozen := &feedPage{By: ^g.By, Next: g.Next, Ranges: g.Ranges, WasOpen: true, number: g.number}
	value, _ := json.Marshal(frozen) // numbers and bytes only: it cannot fail
	set := bigtable.NewMutation()
	set.Set(familyOther, "", timestampOf(g.stamp()), value)
	set.DeleteCellsInColumn(familyOther, columnPage)
	_, _, err := s.applyIf(ctx, logKey(g.number), columnPage, []byte(g.header()), []byte(after(g.header())), set)
	return frozen, err
}

// stamp returns the stamp of the page's cell: that of the next epoch if the page ends an epoch.
func (g *feedPage) stamp() int64 { return max(g.Next-1, 0) }

// owner returns the generation of the run to which the events belong.
func (r eventRange) owner() runGeneration { return runGeneration{runstore.RunID(r.Run), r.Generation} }

// allowOpenPages raises the format of the run, so that its later events may stand in open pages. A program of
// format 4 refuses the run from then on.
func (h *head) allowOpenPages() {
	if h.Format < formatOpenPages {
		h.Format, h.PagedFrom = formatOpenPages, h.Seq
	}
}

// pagedFrom returns the last event that must not stand in an open page.
func (h *head) pagedFrom() int64 {
	if h.Format < formatOpenPages {
		return h.Seq
	}
	return h.PagedFrom
}
