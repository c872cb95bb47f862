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
		now, err := s.readServerClock(ctx, clockKey())
		if err != nil {
			return nil, err
		}
		until = runstore.Micros(now)
	}
	return retryMissing(func() (found []runstore.IndexEntry, err error) {
		for t := s.newBackoff(); ; {
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
		store: s, observed: s.observe(), query: q, low: low, high: high, seen: map[string]bool{}, orders: map[runstore.Cursor]string{}, rechecks: map[entryOwner]int{},
		owned: map[runstore.RunID]bool{}, takenBy: map[runstore.RunID]indexEntry{}, met: map[string]bool{}, chunk: min(maxVerified, q.Limit+perShard),
	}
	began, each := s.clock.local.Read(), 0
	slow := func() bool { return s.clock.local.Since(began) > s.maxScanTime } // entries that it relies on may have been deleted
	for low < high && !slow() {
		page, more, err := s.candidates(ctx, q, low, high, each)
		if err != nil {
			return nil, err
		}
		horizon := ""
		if len(page) > 0 && more {
			horizon = page[len(page)-1].sortKey()
		}
		if err := v.verify(ctx, page, horizon); err != nil {
			return nil, err
		}
		if v.full() || !more || len(page) == 0 {
			break
		}
		each = min(max(2*each, perShard), maxEach)
		if q.Newest {
			high = page[len(page)-1].sortKey()
		} else {
			low = page[len(page)-1].sortKey()
		}
	}
	if err := v.lookBack(ctx); err != nil && !slow() {
		return nil, err
	}
	err := v.repair(ctx) // also if it was slow: the next scan meets less
	if err == nil && slow() {
		err = outcome.Unavailable(errSlowScan)
	}
	if err != nil {
		return nil, err
	}
	if v.unverified { // between what was verified and what moved behind it something may stand
		v.entries = slices.DeleteFunc(v.entries, func(e runstore.IndexEntry) bool { return v.before(v.verifiedTo, v.orders[e.Cursor]) })
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

var errSlowScan = fmt.Errorf("bigtable: the scan took more than %v; the next one meets fewer entries that are not true", maxScanTime)

// verifier collects the entries of a page that are true.
type verifier struct {
	store      *engine
	observed   observation // it began
	query      runstore.IndexQuery
	owned      map[runstore.RunID]bool       // runs whose own rows in IndexRunnable were met
	takenBy    map[runstore.RunID]indexEntry // by which row of IndexRunnable runs were taken
	met        map[string]bool               // rows of IndexRunnable that were read
	moves      []entryMove
	strays     []strayEntry
	chunk      int    // how many the next request verifies at most
	low        string // the range of the scan: above low and below high
	high       string
	seen       map[string]bool // entries that were looked at
	entries    []runstore.IndexEntry
	orders     map[runstore.Cursor]string // of the entries
	size       int
	dead       []string
	verifiedTo string // all before it was verified…
	unverified bool   // …and something behind it was not
	rechecks   map[entryOwner]int
	horizon    string // of the page that is verified: nothing behind it is known; empty: all is
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

func (v *verifier) compare(a, b indexEntry) int {
	switch x, y := a.sortKey(), b.sortKey(); {
	case x == y:
		return 0
	case v.before(x, y):
		return -1
	default:
		return 1
	}
}

// maxRechecks is how often a record that moves on while it is verified is verified again.
// After that what was read is taken: it was true then.
const maxRechecks = 2

// maxVerified bounds how many runs one request verifies.
const maxVerified = 256

// verify takes the true entries of a page, and those that have come to stand in its
// range since it was read in the place of another: a record that moves about within a
// queue is found, whenever it moves.
func (v *verifier) verify(ctx context.Context, page []indexEntry, horizon string) error {
	v.horizon = horizon
	if v.query.Index == runstore.IndexRunnable {
		for _, p := range page {
			v.met[p.sortKey()] = true
		}
	}
	for len(page) > 0 && !v.full() {
		n, size := 0, 0
		filter := map[runstore.RecordKey]bool{}
		if v.query.Heads {
			filter[runstore.SummaryKey], size = true, filterSize(runstore.SummaryKey)
		}
		for ; n < len(page) && n < v.chunk; n++ {
			if k := page[n].recordKey(); !filter[k] {
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
	v.unverified = slices.ContainsFunc(page, func(p indexEntry) bool { return !v.seen[p.sortKey()] })
	return nil
}

// recordKey is the key of the record that a reader of the entry gets.
func (p indexEntry) recordKey() runstore.RecordKey {
	if p.isRun() {
		return runstore.SummaryKey
	}
	return p.key
}

// isRun reports whether it is a run that stands there, not a record.
func (p indexEntry) isRun() bool {
	return p.index == string(runstore.IndexRuns) || p.index == string(runstore.IndexRunnable)
}

// entryOwner is what stands at a place: a record of a run, or a run.
type entryOwner struct {
	run runstore.RunID
	key runstore.RecordKey
}

func (p indexEntry) owner() entryOwner { return entryOwner{p.run, p.key} }

// entryState is what an entry leads to: where the record or the run stands now, and what
// the caller gets of it. The packs have the values that are not in the run's row.
type entryState struct {
	entries     []indexEntry
	record      runstore.Record
	pack        *packed
	head        runstore.Run
	summaryPack *packed
}

// verifySome verifies entries with one request. It returns those that it came upon and
// that belong behind the last of these.
func (v *verifier) verifySome(ctx context.Context, page []indexEntry, records map[runstore.RecordKey]bool) (moved []indexEntry, err error) {
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
		return v.store.unlessSkipped(id, err)
	})
	if err != nil {
		return nil, err
	}
	last := page[len(page)-1].sortKey()
	v.verifiedTo = last
	type truth struct {
		indexEntry
		entryState
	}
	var taken []truth
	known, _ := v.store.clock.estimate()
	for _, p := range page {
		r := runs[p.run]
		if r == nil || r.stored == nil {
			continue // its creation may be under way
		}
		now, err := p.state(r, v.query.Heads)
		if err != nil {
			if err := v.store.unlessSkipped(p.run, err); err != nil {
				return nil, err
			}
			continue
		}
		if p.index == string(runstore.IndexRunnable) {
			v.planRepair(p, r)
		} else if !slices.Contains(now.entries, p) && r.head.Rev >= p.rev && known.Sub(runstore.FromMicros(r.head.Time)) > readerGrace {
			v.dead = append(v.dead, p.rowKey())
		}
		for _, c := range now.entries {
			order := c.sortKey()
			switch {
			case v.seen[order] || order <= v.low || order >= v.high || v.horizon != "" && v.before(v.horizon, order):
			case v.before(last, order) && v.rechecks[c.owner()] < maxRechecks:
				moved = append(moved, c)
			default:
				v.seen[order] = true
				if p.index == string(runstore.IndexRunnable) && (!r.head.rules(p.run, r.beat).Runnable(v.query.Until) || v.isDuplicate(c)) {
					continue
				}
				taken = append(taken, truth{c, now})
			}
		}
	}
	chased := map[entryOwner]bool{}
	for _, c := range moved {
		chased[c.owner()] = true
	}
	for c := range chased {
		v.rechecks[c]++
	}
	slices.SortFunc(taken, func(a, b truth) int { return v.compare(a.indexEntry, b.indexEntry) })
	v.entries = slices.DeleteFunc(v.entries, func(e runstore.IndexEntry) bool { // those that have moved on meanwhile
		was, _ := parseIndexEntry(v.orders[e.Cursor])
		return slices.ContainsFunc(taken, func(now truth) bool { return now.run == e.Run && now.key == was.key && now.rev != was.rev })
	})
	var wanted []wantedValue
	for _, one := range taken {
		if v.full() {
			break
		}
		wanted = append(wanted, v.take(one.indexEntry, one.entryState)...)
	}
	return moved, v.store.fetchValues(ctx, wanted)
}

// state returns where what the entry leads to stands now in its index. The entry of a
// record has its run's head only if heads are wanted.
func (p indexEntry) state(r *row, heads bool) (now entryState, err error) {
	if !r.exists() {
		return now, nil
	}
	if p.isRun() || heads {
		if now.head, now.summaryPack, err = r.public(p.run); err != nil {
			return now, err
		}
	}
	if p.isRun() {
		if p.index == string(runstore.IndexRuns) && r.head.Unlisted {
			return now, nil
		} else if p.index == string(runstore.IndexRuns) {
			now.entries = []indexEntry{r.head.runsEntry(p.run)}
		} else if r.head.ownsEntry(p) {
			now.entries = []indexEntry{p}
		} else if r.head.Runnable != 0 {
			now.entries = []indexEntry{r.head.runnableEntry(p.run)}
		}
		return now, nil
	}
	value := cell(r.cells, familyRecords, string(p.key))
	if value == nil {
		return now, nil
	}
	var m recordMeta
	if value, err = decodeCell(value, &m); err != nil {
		return now, err
	}
	now.record, now.pack = m.record(p.key, value), m.Pack
	for _, c := range m.indexEntries(p.run, p.key) {
		if c.index == p.index {
			now.entries = append(now.entries, c)
		}
	}
	return now, nil
}

// take adds an entry to the page, and returns the values that it needs.
func (v *verifier) take(p indexEntry, now entryState) (wanted []wantedValue) {
	i := len(v.entries)
	cursor := encodeCursor(p)
	v.orders[cursor] = p.sortKey()
	v.entries = append(v.entries, runstore.IndexEntry{
		Run: p.run, At: runstore.FromMicros(p.at), Record: now.record, Head: now.head, Cursor: cursor,
	})
	v.size += len(now.record.Value) + len(now.head.Summary.Value)
	if now.pack != nil {
		v.size += int(now.pack.Length)
		wanted = append(wanted, wantedValue{p.run, now.pack, func(value []byte) { v.entries[i].Record.Value = value }})
	}
	if now.summaryPack != nil {
		v.size += int(now.summaryPack.Length)
		wanted = append(wanted, wantedValue{p.run, now.summaryPack, func(value []byte) { v.entries[i].Head.Summary.Value = value }})
	}
	return wanted
}

// encodeCursor returns the entry's key without its shard. It is not [adapter.EncodeCursor]'s, so that
// programs of earlier versions read it.
func encodeCursor(p indexEntry) runstore.Cursor {
	return runstore.Cursor(base64.RawURLEncoding.EncodeToString([]byte(p.sortKey())))
}

func decodeCursor(q runstore.IndexQuery) (string, error) {
	if q.After == "" {
		return "", nil
	}
	order, err := base64.RawURLEncoding.DecodeString(string(q.After))
	if p, ok := parseIndexEntry(string(order)); err == nil && ok && p.index == string(q.Index) {
		return string(order), nil
	}
	return "", adapter.Invalid("after", "is not a cursor of this store")
}
