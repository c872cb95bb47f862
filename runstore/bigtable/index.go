package bigtable

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"cloud.google.com/go/bigtable"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter"
	"github.com/tapestore/tapestore/runstore/adapter/outcome"
)

// An index entry is a row of its own, written before the commit that needs it. So it is only a
// candidate: a scan verifies it by the record, or by the run's head. An entry is true if that names the
// write that made the entry. An entry that its run does not name, of a revision that the run has passed,
// can never become true and is deleted.

// perShard is how many entries a scan reads beyond a page, of each shard: room for candidates that are
// not true.
const perShard = 16

// maxEach bounds how many entries one request reads of a shard. A scan that finds many candidates that
// are not true doubles its requests up to this.
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
	missing := map[missingValue]bool{}
	return retryMissing(func() (found []runstore.IndexEntry, err error) {
		for t := s.newBackoff(s.opts.RetryTimeout); ; {
			found, err = s.scan(ctx, q, cursor, until, missing)
			if !errors.Is(err, errSlowScan) || !t.More(ctx) { // the next scan meets fewer stale entries
				return found, err
			}
		}
	})
}

// scan returns a page of the entries after a cursor, from q.From until a time, both inclusive. They are
// bounds of the range of keys that is read, so entries out of them cost nothing. missing has the values that
// earlier scans for the same page did not find.
func (s *engine) scan(ctx context.Context, q runstore.IndexQuery, cursor string, until int64, missing map[missingValue]bool) ([]runstore.IndexEntry, error) {
	prefix := escape(string(q.Index))
	low, high := prefix+be64(adapter.FirstMicros(q.From)), prefix+be64(until+1)
	if cursor != "" && q.Newest {
		high = min(high, cursor)
	} else if cursor != "" {
		low = max(low, cursor)
	}
	q.Until = runstore.FromMicros(until)
	v := &verifier{
		store: s, observed: s.observe(), query: q, low: low, high: high, seen: map[string]bool{}, orders: map[runstore.Cursor]string{}, rechecks: map[entryOwner]int{},
		owned: map[runstore.RunID]bool{}, takenBy: map[runstore.RunID]indexEntry{}, met: map[string]bool{}, missing: missing, chunk: min(maxVerified, q.Limit+perShard),
	}
	began, each := s.clock.local.Read(), 0
	slow := func() bool { return s.clock.local.MostSince(began) > s.maxScanTime } // entries that the scan relies on may have been deleted
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
	err := v.repair(ctx) // also if the scan was slow: the next one finds fewer stale entries
	if err == nil && slow() {
		err = outcome.Unavailable(errSlowScan)
	}
	if err != nil {
		return nil, err
	}
	if v.unverified { // there may be entries between the last verified one and entries that moved behind it
		had := len(v.entries)
		v.entries = slices.DeleteFunc(v.entries, func(e runstore.IndexEntry) bool { return v.before(v.verifiedTo, v.orders[e.Cursor]) })
		if had > 0 && len(v.entries) == 0 { // an empty page would be the end of the index
			return s.scan(ctx, q, v.verifiedTo, until, missing)
		}
	}
	slices.SortStableFunc(v.entries, func(a, b runstore.IndexEntry) int { // entries that moved were taken late
		return v.order(v.orders[a.Cursor], v.orders[b.Cursor])
	})
	return v.entries[:min(len(v.entries), q.Limit)], nil
}

var errSlowScan = fmt.Errorf("bigtable: the scan took more than %v; the next one meets fewer entries that are not true", maxScanTime)

// verifier collects the true entries of a page, and plans repairs of stale ones.
type verifier struct {
	store      *engine
	observed   observation // when the scan began
	query      runstore.IndexQuery
	owned      map[runstore.RunID]bool       // runs whose own entries in IndexRunnable were read
	takenBy    map[runstore.RunID]indexEntry // the entries in IndexRunnable by which runs were taken
	met        map[string]bool               // entries in IndexRunnable that were read, by sort key
	missing    map[missingValue]bool         // values that were missing before
	moves      []entryMove
	strays     []strayEntry
	chunk      int    // how many entries the next request verifies at most
	low        string // the range of the scan, in sort keys: above low and below high
	high       string
	seen       map[string]bool // entries that were verified, by sort key
	entries    []runstore.IndexEntry
	orders     map[runstore.Cursor]string // the sort keys of entries
	size       int
	dead       []string // keys of entries to delete
	verifiedTo string   // the sort key up to which all entries are verified…
	unverified bool     // …if entries behind it are not
	rechecks   map[entryOwner]int
	horizon    string // the last sort key of the candidates that were read, or empty if all were
}

func (v *verifier) full() bool {
	return len(v.entries) >= v.query.Limit || v.size > runstore.MaxPageBytes
}

// order compares sort keys in the direction of the scan.
func (v *verifier) order(a, b string) int {
	if v.query.Newest {
		a, b = b, a
	}
	return strings.Compare(a, b)
}

// before reports whether the sort key a comes before b in the direction of the scan.
func (v *verifier) before(a, b string) bool { return v.order(a, b) < 0 }

func (v *verifier) compare(a, b indexEntry) int { return v.order(a.sortKey(), b.sortKey()) }

// maxRechecks is how often a record is verified again that moves while it is verified. After that the
// scan takes what it has read, which was true then.
const maxRechecks = 2

// maxVerified bounds how many runs one request verifies.
const maxVerified = 256

// verify takes the true entries of a page. If a candidate is stale because its record has moved within
// the range of the page, verify takes the present entry of the record: so a record that moves within an
// index is found, whenever it moves.
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
	v.unverified = v.unverified || slices.ContainsFunc(page, func(p indexEntry) bool { return !v.seen[p.sortKey()] })
	return nil
}

// recordKey returns the key of the record that a reader of the entry gets.
func (p indexEntry) recordKey() runstore.RecordKey {
	if p.isRun() {
		return runstore.SummaryKey
	}
	return p.key
}

// isRun reports whether it is the entry of a run, not of a record.
func (p indexEntry) isRun() bool {
	return p.index == string(runstore.IndexRuns) || p.index == string(runstore.IndexRunnable)
}

// entryOwner is what an entry belongs to: a record of a run, or a run.
type entryOwner struct {
	run runstore.RunID
	key runstore.RecordKey
}

func (p indexEntry) owner() entryOwner { return entryOwner{p.run, p.key} }

// entryState is the present state of an entry's owner: its entries in the same index, and what the
// caller gets of it. The packs have the values that are not in the run's row.
type entryState struct {
	entries     []indexEntry
	record      runstore.Record
	pack        *packed
	head        runstore.Run
	summaryPack *packed
}

// verifySome verifies entries with one request. It returns the present entries of their owners that
// belong behind the last of the page.
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
	type truth struct {
		indexEntry
		entryState
	}
	var taken []truth // in the end, those for which the page has no room
	known, _ := v.store.clock.estimate()
	for _, p := range page {
		r := runs[p.run]
		if r == nil || r.stored == nil {
			continue // the creation of the run may be under way
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
	v.entries = slices.DeleteFunc(v.entries, func(e runstore.IndexEntry) bool { // entries that have moved meanwhile
		was, _ := parseIndexEntry(v.orders[e.Cursor])
		return slices.ContainsFunc(taken, func(now truth) bool { return now.run == e.Run && now.key == was.key && now.rev != was.rev })
	})
	covered := last
	for len(taken) > 0 && !v.full() {
		var wanted []wantedValue
		var of []takenEntry // the entry of each wanted value
		for ; len(taken) > 0 && !v.full(); taken = taken[1:] {
			p, i, before := taken[0].indexEntry, len(v.entries), v.size
			for _, w := range v.take(p, taken[0].entryState) {
				wanted, of = append(wanted, w), append(of, takenEntry{i, v.size - before})
			}
			covered = p.sortKey()
		}
		if err := v.fetch(ctx, wanted, of); err != nil {
			return nil, err
		}
	}
	if v.verifiedTo, v.unverified = last, len(taken) > 0; v.unverified && v.before(covered, last) {
		v.verifiedTo = covered
	}
	return moved, nil
}

// takenEntry is the place of an entry in the page, and its size.
type takenEntry struct{ place, size int }

// missingValue names a value of a run.
type missingValue struct {
	run  runstore.RunID
	pack packed
}

// fetch reads the values of entries. It returns errMissing if one is missing. If the value was missing
// before the scan read the run's row, it is lost: then fetch leaves out the entry.
func (v *verifier) fetch(ctx context.Context, wanted []wantedValue, of []takenEntry) (err error) {
	var first error
	before, lost := maps.Clone(v.missing), map[int]bool{} // entries of one run may want one value
	err = v.store.fetchEachValue(ctx, wanted, func(i int, missing error) {
		id, which := wanted[i].run, missingValue{wanted[i].run, *wanted[i].pack}
		if !before[which] {
			v.missing[which] = true
			first = cmp.Or(first, missing)
		} else if v.store.skipDamaged(id, corrupt(missing)); !lost[of[i].place] {
			lost[of[i].place] = true
			v.size -= of[i].size
		}
	})
	if err == nil {
		err = first
	}
	for i := len(v.entries) - 1; i >= 0; i-- {
		if lost[i] {
			v.entries = slices.Delete(v.entries, i, i+1)
		}
	}
	return err
}

// state returns the present state of the entry's owner. It has the run's head only if the entry is of a
// run, or heads is set.
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

// take adds an entry to the page, and returns the values that have to be fetched for it.
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
