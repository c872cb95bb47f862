package bigtable

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter"
	"github.com/tapestore/tapestore/runstore/adapter/outcome"
)

// A place in a queue is a row of its own, written before the commit that needs it. So
// it says only that a record may stand there: a scan looks at the record, or at the run's
// head, and takes the entry as true if that names the very write which made the entry.
// An entry that its run does not name, of a revision that the run has left behind, can
// never become true, and is deleted.

// perShard is how many entries a scan reads more of each shard than a page has, for
// those that are not true.
const perShard = 16

// maxEach bounds how many entries one request reads of a shard. A scan that meets many which are
// not true reads ever more.
const maxEach = 1024

// ScanIndex implements adapter.Core: one read of the entries, and one of their runs, which verifies
// them. Without q.Until it reads Bigtable's clock first. If a shard holds more entries than a page, each
// shard is read by a request of its own.
func (s *engine) ScanIndex(ctx context.Context, q runstore.IndexQuery) ([]runstore.IndexEntry, error) {
	cursor, err := decodeCursor(q)
	if err != nil {
		return nil, err
	}
	until := runstore.Micros(q.Until)
	if q.Until.IsZero() {
		now, err := s.ask(ctx, clockKey())
		if err != nil {
			return nil, err
		}
		until = runstore.Micros(now)
	}
	return steady(func() (found []runstore.IndexEntry, err error) {
		for t := s.tries(); ; {
			found, err = s.scan(ctx, q, cursor, until)
			if !errors.Is(err, errSlowScan) || !t.More(ctx) { // the next scan meets fewer stale entries
				return found, err
			}
		}
	})
}

// scan returns a page of the entries behind a cursor from q.From until a time, both
// inclusive. The bounds are bounds of the range of keys that is read: entries beside them
// cost nothing.
func (s *engine) scan(ctx context.Context, q runstore.IndexQuery, cursor string, until int64) ([]runstore.IndexEntry, error) {
	prefix := escape(string(q.Index))
	low, high := prefix+be64(firstMicros(q.From)), prefix+be64(until+1)
	if cursor != "" && q.Newest {
		high = min(high, cursor)
	} else if cursor != "" {
		low = max(low, cursor)
	}
	q.Until = runstore.FromMicros(until)
	v := &verifier{
		store: s, moment: s.present(), query: q, low: low, high: high, seen: map[string]bool{}, orders: map[runstore.Cursor]string{}, chased: map[subject]int{},
		owned: map[runstore.RunID]bool{}, took: map[runstore.RunID]place{}, met: map[string]bool{}, chunk: min(maxVerified, q.Limit+perShard),
	}
	began, each := s.clock.here.Read(), 0
	slow := func() bool { return s.clock.here.Since(began) > s.scanMost } // entries that it relies on may have been deleted
	for low < high && !slow() {
		page, more, err := s.candidates(ctx, q, low, high, each)
		if err != nil {
			return nil, err
		}
		horizon := ""
		if len(page) > 0 && more {
			horizon = page[len(page)-1].order()
		}
		if err := v.verify(ctx, page, horizon); err != nil {
			return nil, err
		}
		if v.full() || !more || len(page) == 0 {
			break
		}
		each = min(max(2*each, perShard), maxEach)
		if q.Newest {
			high = page[len(page)-1].order()
		} else {
			low = page[len(page)-1].order()
		}
	}
	if err := v.lookBack(ctx); err != nil && !slow() {
		return nil, err
	}
	err := v.settle(ctx) // also if it was slow: the next scan meets less
	if err == nil && slow() {
		err = outcome.Unavailable(errSlowScan)
	}
	if err != nil {
		return nil, err
	}
	if v.left { // between what was verified and what moved behind it something may stand
		v.entries = slices.DeleteFunc(v.entries, func(e runstore.IndexEntry) bool { return v.before(v.covered, v.orders[e.Cursor]) })
	}
	slices.SortStableFunc(v.entries, func(a, b runstore.IndexEntry) int { // those that moved came in late
		x, y := v.orders[a.Cursor], v.orders[b.Cursor]
		switch {
		case x == y:
			return 0
		case v.before(x, y):
			return -1
		default:
			return 1
		}
	})
	return v.entries[:min(len(v.entries), q.Limit)], nil
}

// firstMicros returns the first microsecond that is not before t. Entries are at whole
// microseconds.
func firstMicros(t time.Time) int64 {
	us := runstore.Micros(t)
	if runstore.FromMicros(us).Before(t) {
		us++
	}
	return us
}

var errSlowScan = fmt.Errorf("bigtable: the scan took more than %v; the next one meets fewer entries that are not true", scanMost)

// verifier collects the entries of a page that are true.
type verifier struct {
	store   *engine
	moment  moment // it began
	query   runstore.IndexQuery
	owned   map[runstore.RunID]bool  // runs whose own rows in IndexRunnable were met
	took    map[runstore.RunID]place // by which row of IndexRunnable runs were taken
	met     map[string]bool          // rows of IndexRunnable that were read
	moves   []shift
	strays  []stray
	chunk   int    // how many the next request verifies at most
	low     string // the range of the scan: above low and below high
	high    string
	seen    map[string]bool // entries that were looked at
	entries []runstore.IndexEntry
	orders  map[runstore.Cursor]string // of the entries
	size    int
	dead    []string
	covered string // all before it was verified…
	left    bool   // …and something behind it was not
	chased  map[subject]int
	horizon string // of the page that is verified: nothing behind it is known; empty: all is
}

func (v *verifier) full() bool {
	return len(v.entries) >= v.query.Limit || v.size > runstore.MaxPageBytes
}

// before reports whether order a comes before order b in the direction of the scan.
func (v *verifier) before(a, b string) bool {
	if v.query.Newest {
		return a > b
	}
	return a < b
}

func (v *verifier) compare(a, b place) int {
	switch x, y := a.order(), b.order(); {
	case x == y:
		return 0
	case v.before(x, y):
		return -1
	default:
		return 1
	}
}

// chases is how often a record that moves on while it is verified is verified again.
// After that what was read is taken: it was true then.
const chases = 2

// maxVerified bounds how many runs one request verifies.
const maxVerified = 256

// verify takes the true entries of a page, and those that have come to stand in its
// range since it was read in the place of another: a record that moves about within a
// queue is found, whenever it moves.
func (v *verifier) verify(ctx context.Context, page []place, horizon string) error {
	v.horizon = horizon
	if v.query.Index == runstore.IndexRunnable {
		for _, p := range page {
			v.met[p.order()] = true
		}
	}
	for len(page) > 0 && !v.full() {
		n, size := 0, 0
		filter := map[runstore.RecordKey]bool{}
		if v.query.Heads {
			filter[runstore.SummaryKey], size = true, filterSize(runstore.SummaryKey)
		}
		for ; n < len(page) && n < v.chunk; n++ {
			if k := page[n].record(); !filter[k] {
				if size += filterSize(k); size > maxFilter && n > 0 {
					break
				}
				filter[k] = true
			}
		}
		moved, err := v.verifySome(ctx, page[:n], filter)
		if err != nil {
			return err
		}
		page, v.chunk = page[n:], min(2*v.chunk, maxVerified)
		for _, p := range moved {
			if i, there := slices.BinarySearchFunc(page, p, v.compare); !there {
				page = slices.Insert(slices.Clone(page), i, p)
			}
		}
	}
	v.left = slices.ContainsFunc(page, func(p place) bool { return !v.seen[p.order()] })
	return nil
}

// record is the key of the record that a reader of the entry gets.
func (p place) record() runstore.RecordKey {
	if p.ofRun() {
		return runstore.SummaryKey
	}
	return p.key
}

// ofRun reports whether it is a run that stands there, not a record.
func (p place) ofRun() bool {
	return p.index == string(runstore.IndexRuns) || p.index == string(runstore.IndexRunnable)
}

// subject is what stands at a place: a record of a run, or a run.
type subject struct {
	run runstore.RunID
	key runstore.RecordKey
}

func (p place) of() subject { return subject{p.run, p.key} }

// standing is what an entry leads to: where the record or the run stands now, and what
// the caller gets of it. The packs have the values that are not in the run's row.
type standing struct {
	places      []place
	record      runstore.Record
	pack        *packed
	head        runstore.Run
	summaryPack *packed
}

// verifySome verifies entries with one request. It returns those that it came upon and
// that belong behind the last of these.
func (v *verifier) verifySome(ctx context.Context, page []place, records map[runstore.RecordKey]bool) (moved []place, err error) {
	filters := []bigtable.Filter{wholeFamily(familyHead)}
	for k := range records {
		filters = append(filters, column(familyRecords, string(k)))
	}
	var keys []string
	runs := map[runstore.RunID]*row{}
	for _, p := range page {
		if _, asked := runs[p.run]; !asked {
			runs[p.run] = nil
			keys = append(keys, runKey(p.run))
		}
	}
	err = v.store.readList(ctx, keys, latest(filters...), func(r bigtable.Row) (err error) {
		id := runOf(r.Key())
		runs[id], err = parseRow(r)
		return v.store.unlessPassedOver(id, err)
	})
	if err != nil {
		return nil, err
	}
	last := page[len(page)-1].order()
	v.covered = last
	type truth struct {
		place
		standing
	}
	var taken []truth
	known, _ := v.store.clock.estimate()
	for _, p := range page {
		r := runs[p.run]
		if r == nil || r.stored == nil {
			continue // its creation may be under way
		}
		now, err := p.standing(r, v.query.Heads)
		if err != nil {
			if err := v.store.unlessPassedOver(p.run, err); err != nil {
				return nil, err
			}
			continue
		}
		if p.index == string(runstore.IndexRunnable) {
			v.tidy(p, r)
		} else if !slices.Contains(now.places, p) && r.head.Rev >= p.rev && known.Sub(runstore.FromMicros(r.head.Time)) > placeGrace {
			v.dead = append(v.dead, p.rowKey())
		}
		for _, c := range now.places {
			order := c.order()
			switch {
			case v.seen[order] || order <= v.low || order >= v.high || v.horizon != "" && v.before(v.horizon, order):
			case v.before(last, order) && v.chased[c.of()] < chases:
				moved = append(moved, c)
			default:
				v.seen[order] = true
				if p.index == string(runstore.IndexRunnable) && (!r.head.rules(p.run, r.beat).Runnable(v.query.Until) || v.twice(c)) {
					continue
				}
				taken = append(taken, truth{c, now})
			}
		}
	}
	chased := map[subject]bool{}
	for _, c := range moved {
		chased[c.of()] = true
	}
	for c := range chased {
		v.chased[c]++
	}
	slices.SortFunc(taken, func(a, b truth) int { return v.compare(a.place, b.place) })
	v.entries = slices.DeleteFunc(v.entries, func(e runstore.IndexEntry) bool { // those that have moved on meanwhile
		was, _ := placeOf(v.orders[e.Cursor])
		return slices.ContainsFunc(taken, func(now truth) bool { return now.run == e.Run && now.key == was.key && now.rev != was.rev })
	})
	var wanted []want
	for _, one := range taken {
		if v.full() {
			break
		}
		wanted = append(wanted, v.take(one.place, one.standing)...)
	}
	return moved, v.store.fetch(ctx, wanted)
}

// standing returns where what the entry leads to stands now in its index. The entry of a
// record has its run's head only if heads are wanted.
func (p place) standing(r *row, heads bool) (now standing, err error) {
	if !r.exists() {
		return now, nil
	}
	if p.ofRun() || heads {
		if now.head, now.summaryPack, err = r.public(p.run); err != nil {
			return now, err
		}
	}
	if p.ofRun() {
		if p.index == string(runstore.IndexRuns) && r.head.Unlisted {
			return now, nil
		} else if p.index == string(runstore.IndexRuns) {
			now.places = []place{r.head.runsPlace(p.run)}
		} else if r.head.placed(p) {
			now.places = []place{p}
		} else if r.head.Runnable != 0 {
			now.places = []place{r.head.runnablePlace(p.run)}
		}
		return now, nil
	}
	value := cell(r.cells, familyRecords, string(p.key))
	if value == nil {
		return now, nil
	}
	var m meta
	if value, err = split(value, &m); err != nil {
		return now, err
	}
	now.record, now.pack = m.record(p.key, value), m.Pack
	for _, c := range m.places(p.run, p.key) {
		if c.index == p.index {
			now.places = append(now.places, c)
		}
	}
	return now, nil
}

// take adds an entry to the page, and returns the values that it needs.
func (v *verifier) take(p place, now standing) (wanted []want) {
	i := len(v.entries)
	cursor := encodeCursor(p)
	v.orders[cursor] = p.order()
	v.entries = append(v.entries, runstore.IndexEntry{
		Run: p.run, At: runstore.FromMicros(p.at), Record: now.record, Head: now.head, Cursor: cursor,
	})
	v.size += len(now.record.Value) + len(now.head.Summary.Value)
	if now.pack != nil {
		v.size += int(now.pack.Length)
		wanted = append(wanted, want{p.run, now.pack, func(value []byte) { v.entries[i].Record.Value = value }})
	}
	if now.summaryPack != nil {
		v.size += int(now.summaryPack.Length)
		wanted = append(wanted, want{p.run, now.summaryPack, func(value []byte) { v.entries[i].Head.Summary.Value = value }})
	}
	return wanted
}

// encodeCursor returns the entry's key without its shard. It is not [adapter.EncodeCursor]'s, so that
// programs of earlier versions read it.
func encodeCursor(p place) runstore.Cursor {
	return runstore.Cursor(base64.RawURLEncoding.EncodeToString([]byte(p.order())))
}

func decodeCursor(q runstore.IndexQuery) (string, error) {
	if q.After == "" {
		return "", nil
	}
	order, err := base64.RawURLEncoding.DecodeString(string(q.After))
	if p, ok := placeOf(string(order)); err == nil && ok && p.index == string(q.Index) {
		return string(order), nil
	}
	return "", adapter.Invalid("after", "is not a cursor of this store")
}
