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
	"github.com/tapestore/tapestore/runstore/outcome"
)

// A page is the last segment of the feed's log while handles append to it. This is group commit
// without a leader: an append is one read-modify-write, which the server puts behind all others and
// answers with the whole page. So appends of many handles never collide, each costs one request, and
// the reply names what others have appended.
//
// The row of a page has the cell of every segment, which was created if it was absent, and a cell of
// its own (columnPage): a header, then one entry for each append.
//
//  1. A page is open from its creation until it is full, or has an entry that closes it. Both follow
//     from its bytes, so all readers agree. Entries behind that count for nothing.
//  2. The log goes on behind a page only when it is closed: readers stay at an open page, and a handle
//     creates the next segment only after it has seen the page closed.
//  3. A handle appends events of a run to a page only if it knows every segment before the page. Of
//     events that earlier entries of the page name, only the first name counts. So each event is in
//     the log once, whoever appends, however late, and however often a request is repeated.
//  4. The header is the By of the segment. A page that is closed is frozen: its entries move into the
//     cell of the segment, under another By. What comes for it after that, or for a page that was
//     removed, has no header before it, and counts for nothing.
//  5. The hint advances over frozen segments only, so nothing behind it is read but their cells.
//
// A program of format 4 reads a page as a segment that is complete, and creates the next one behind
// it. It is found when the page is reviewed (sequencer.review), which closes the page. A page names no
// event that such a program may name: those up to head.PagedFrom go into segments of their own, whose
// creation the two compete for.
//
// Creating a segment for each round, as format 4 does, needs no page. Of n handles that try, one wins
// then, and the others need two requests to try again: from eight handles on the feed fell behind by
// a second (bench scale, "handles"). A lease for one appender, to which others hand their events
// over, costs them a request more, and all of them its expiry when it dies.

const (
	// pageEntries is how many appends a page takes. A handle that finds it full needs two requests
	// more, so it is many times the number of handles that are busy at once.
	pageEntries = 256
	// pageBytes bounds what each append writes again: a page of 256 entries of one run has some 12 KB.
	pageBytes = 16 << 10
	// prunedEntries is after how many appends the older versions of the cell are deleted.
	prunedEntries = 64
)

// columnPage is the column of a page's entries.
const columnPage = "+"

// entry is what one append adds to a page: ranges of events, or the end of the page.
type entry struct {
	nonce  uint64
	next   int64 // where the log goes on if the entry closes the page, or 0
	ranges []span
}

func (e *entry) encode() []byte {
	b := binary.BigEndian.AppendUint64(nil, e.nonce)
	b = binary.AppendUvarint(b, uint64(e.next))
	for _, r := range e.ranges {
		b = binary.AppendUvarint(b, uint64(len(r.Run)))
		b = append(b, r.Run...)
		for _, n := range []int64{r.Life, r.From, r.N} {
			b = binary.AppendUvarint(b, uint64(n))
		}
	}
	return appendFramed(nil, b)
}

// decodeEntry takes the first entry off a cell.
func decodeEntry(cell []byte) (e entry, rest []byte, err error) {
	size, n := binary.Uvarint(cell)
	if n <= 0 || size < 8 || uint64(len(cell)-n) < size {
		return e, nil, errPage
	}
	b, rest := cell[n:n+int(size)], cell[n+int(size):]
	e.nonce, b = binary.BigEndian.Uint64(b), b[8:]
	number := func() int64 {
		v, n := binary.Uvarint(b)
		if n <= 0 {
			err, b = errPage, nil
			return 0
		}
		b = b[n:]
		return int64(v)
	}
	e.next = number()
	for len(b) > 0 && err == nil {
		size := number()
		if size < 0 || size > int64(len(b)) {
			return e, nil, errPage
		}
		r := span{Run: b[:size]}
		b = b[size:]
		r.Life, r.From, r.N = number(), number(), number()
		e.ranges = append(e.ranges, r)
	}
	return e, rest, err
}

var errPage = errors.New("an entry that this program did not write")

// header is what the entries of a page follow.
func (g *segment) header() string { return be64(int64(g.By)) }

// appends is what a segment has beside its cell while it is a page.
type appends struct {
	open    bool            // it takes entries
	entries int             // those that count for nothing included
	has     map[uint64]bool // the nonces of those that count
	written written         // the version that this handle wrote last, or zero
}

// withPage returns the segment with the entries of a page, which are in another cell of its row. Nil
// or bytes without the segment's header are no page.
func (g *segment) withPage(cell []byte) *segment {
	if g.damage != nil || len(cell) < 8 || string(cell[:8]) != g.header() {
		return g
	}
	p := &appends{open: true, has: map[uint64]bool{}}
	all := &segment{By: g.By, Next: g.Next, Ranges: g.Ranges[:len(g.Ranges):len(g.Ranges)], number: g.number, appends: p, created: len(g.Ranges)}
	named, events := map[runLife]int64{}, int64(0)
	for _, r := range g.Ranges {
		named[r.of()], events = max(named[r.of()], r.From+r.N-1), events+r.N
	}
	for rest := cell[8:]; len(rest) > 0; p.entries++ {
		if p.entries == pageEntries || len(cell)-len(rest) >= pageBytes {
			p.open = false
		}
		e, behind, err := decodeEntry(rest)
		if err != nil {
			all.damage, all.appends = corrupt(fmt.Errorf("segment %d of the feed: %w", g.number, err)), nil
			return all
		}
		rest = behind
		if !p.open {
			continue
		}
		var adds []span
		for _, r := range e.ranges {
			last := r.From + r.N - 1
			if from := max(r.From, named[r.of()]+1); from <= last {
				adds = append(adds, span{r.Run, r.Life, from, last - from + 1})
				events, named[r.of()] = events+last-from+1, last
			}
		}
		if p.open = events <= maxSegment; !p.open {
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

// isOpen reports whether handles may append to the segment.
func (g *segment) isOpen() bool { return g != nil && g.appends != nil && g.appends.open }

// append appends an entry to a page. It returns the page as it is then, or nil if it was frozen or
// removed, and reports whether it has the entry. An entry of which that is not reported will not be
// in the page later: it came behind the end of the page.
func (s *Store) append(ctx context.Context, g *segment, e entry) (now *segment, has bool, err error) {
	e.nonce = rand.Uint64()
	when := s.present()
	rmw := bigtable.NewReadModifyWrite()
	rmw.AppendValue(familyOther, columnPage, e.encode())
	for t := s.tries(); ; {
		bound, cancel := t.Attempt(ctx, s.attemptTimeout)
		r, err := s.table.ApplyReadModifyWrite(bound, logKey(g.number), rmw)
		cancel()
		if err == nil { // of several copies of the request the first counts
			now := (&segment{By: g.By, Ranges: g.Ranges[:g.created], number: g.number, created: g.created}).withPage(cell(r, familyOther, columnPage))
			if now.appends == nil && now.damage == nil {
				return nil, false, nil
			}
			if now.damage != nil {
				return now, false, nil
			}
			for _, item := range r[familyOther] {
				now.written = written{when, item.Timestamp}
			}
			return now, now.has[e.nonce], nil
		}
		if ctx.Err() != nil || refusedByServer(err) || !t.More(ctx) {
			return nil, false, outcome.Unavailable(s.plainly(outcome.Cause(ctx, err)))
		}
	}
}

// written is when this handle wrote a version of a page's cell, and the version's timestamp.
type written struct {
	when moment
	at   bigtable.Timestamp
}

// prune deletes the versions of a page's cell before the one that this handle wrote, after every
// prunedEntries appends. prune skips a page that is closed, which freeze rewrites. It also skips a
// version that the process may have written before it was suspended: after a failover the page may end
// with an earlier version. The next writer deletes what prune skips.
func (s *Store) prune(ctx context.Context, g *segment) error {
	if !g.isOpen() || g.entries%prunedEntries != 0 || g.written.at == 0 || s.isOld(g.written.when) {
		return nil
	}
	m := bigtable.NewMutation()
	m.DeleteTimestampRange(familyOther, columnPage, 0, g.written.at)
	return s.writeAll(ctx, []mutation{{logKey(g.number), m, 64}})
}

// closePage closes a page, so that the log goes on with the segment of a number.
func (s *Store) closePage(ctx context.Context, g *segment, next int64) (*segment, error) {
	now, _, err := s.append(ctx, g, entry{next: next})
	return now, err
}

// freeze moves the entries of a page that is closed into the cell of its segment, and returns the
// segment. All who freeze a page write the same.
func (s *Store) freeze(ctx context.Context, g *segment) (*segment, error) {
	frozen := &segment{By: ^g.By, Next: g.Next, Ranges: g.Ranges, number: g.number}
	value, _ := json.Marshal(frozen) // numbers and bytes only: it cannot fail
	set := bigtable.NewMutation()
	set.Set(familyOther, "", numbered(g.stamp()), value)
	set.DeleteCellsInColumn(familyOther, columnPage)
	is := bigtable.ChainFilters(column(familyOther, columnPage), bigtable.LatestNFilter(1),
		bigtable.ValueRangeFilter([]byte(g.header()), []byte(after(g.header()))))
	err := s.again(ctx, func(ctx context.Context) error {
		return s.table.Apply(ctx, logKey(g.number), bigtable.NewCondMutation(is, set, nil))
	})
	return frozen, err
}

// stamp is that of the cell of the segment: what ends an epoch has the stamp of the next.
func (g *segment) stamp() int64 { return max(g.Next-1, 0) }

// of names the run and its life.
func (r span) of() runLife { return runLife{runstore.RunID(r.Run), r.Life} }

// beginPages has the events that follow stand in pages. From here on no program of format 4 writes to the
// run.
func (h *head) beginPages() {
	if h.Format < formatPages {
		h.Format, h.PagedFrom = formatPages, h.Seq
	}
}

// pagedFrom returns the last event that is not for pages.
func (h *head) pagedFrom() int64 {
	if h.Format < formatPages {
		return h.Seq
	}
	return h.PagedFrom
}
