package cases

import (
	"bytes"
	"fmt"
	"slices"
	"time"

	"github.com/tapestore/tapestore/conformance/harness"
	"github.com/tapestore/tapestore/conformance/internal/kit"
	"github.com/tapestore/tapestore/runstore"
)

// The cases in this file read large entries between tiny ones. A page ends with the entry that
// passes [runstore.MaxPageBytes]. A store that leaves this entry out and continues with the tiny
// one after it loses the large entry, because the reader resumes after the last entry of the page.

const (
	// largeEvent is the largest size of an event: the fourth such event passes the bound.
	largeEvent = runstore.MaxEventData
	// largeRecord is more than half a page: the second such record passes the bound.
	largeRecord = runstore.MaxPageBytes * 5 / 8
	// tinyEntry has room for a name.
	tinyEntry = 32
)

// content returns size bytes that are unique to the entry called name.
func content(name string, size int) []byte {
	return append([]byte(name), bytes.Repeat([]byte{'.'}, size-len(name))...)
}

// sizes alternates tiny and large entries, n of them large. The first and the last are tiny.
func sizes(n, large int) (all []int) {
	for range n {
		all = append(all, tinyEntry, large)
	}
	return append(all, tinyEntry)
}

// nameIfIntact returns name, or a text that reports that the entry does not hold what was written.
func nameIfIntact(name string, got []byte, size int) string {
	if !bytes.Equal(got, content(name, size)) {
		return fmt.Sprintf("%s with %d bytes that differ from the %d written", name, len(got), size)
	}
	return name
}

// paged is one way to read a list in pages.
type paged[V any] struct {
	what string
	// read returns the page after the entry last, or the first page if last is nil.
	read func(last *V, limit int) ([]V, error)
	// name identifies an entry, and size is the number of bytes that it adds to its page.
	name func(V) string
	size func(V) int
}

// list reads all pages of at most limit entries. It fails the case if a page is longer than that or
// continues after the entry that passes MaxPageBytes.
func (p paged[V]) list(t harness.T, limit int) (names []string) {
	t.Helper()
	var last *V
	for number := 1; ; number++ {
		page, err := p.read(last, limit)
		if err != nil {
			t.Fatalf("%s, page %d of limit %d: %v", p.what, number, limit, err)
		}
		if len(page) == 0 {
			return names
		}
		if len(page) > limit {
			t.Errorf("%s, page %d of limit %d: got %d entries", p.what, number, limit, len(page))
		}
		sum := 0
		for _, v := range page {
			if sum > runstore.MaxPageBytes {
				t.Errorf("%s, page %d of limit %d: it goes on with %s behind %d bytes, want it to end with the entry that passes %d",
					p.what, number, limit, p.name(v), sum, runstore.MaxPageBytes)
			}
			sum += p.size(v)
			names = append(names, p.name(v))
		}
		if len(names) > 10*runstore.MaxPage {
			t.Fatalf("%s of limit %d: %d pages and no end", p.what, limit, number)
		}
		last = &page[len(page)-1]
	}
}

// check reads the list in pages of several limits and fails the case unless each way yields want.
func (p paged[V]) check(t harness.T, want []string) {
	t.Helper()
	// A page of 3 entries has room for one large record, so it ends by its limit. The other pages
	// end by their size.
	for _, limit := range []int{3, runstore.MaxPage} {
		kit.CheckOrder(t, fmt.Sprintf("%s in pages of %d", p.what, limit), p.list(t, limit), want)
	}
}

func eventName(id runstore.RunID, seq runstore.Seq) string {
	return fmt.Sprintf("seq %d of %q", seq, id)
}

// appendMixed appends events of these sizes to a run, starting at seq, and returns their names.
func appendMixed(t harness.T, e *harness.Env, id runstore.RunID, seq runstore.Seq, sizes ...int) (names []string) {
	t.Helper()
	b := runstore.NewBatch(id, runstore.AtSeq(seq))
	for i, size := range sizes {
		name := eventName(id, seq+runstore.Seq(i))
		b.Append("event", content(name, size))
		names = append(names, name)
	}
	kit.MustCommit(t, e.Store, b)
	return names
}

// mixedSize returns the size that an event was written with, according to its data.
func mixedSize(data []byte) int {
	if len(data) > tinyEntry {
		return largeEvent
	}
	return tinyEntry
}

func mixedJournal(t harness.T, e *harness.Env) {
	e.Create(t, "run")
	all := sizes(6, largeEvent)
	names := appendMixed(t, e, "run", 1, all[:7]...)
	names = append(names, appendMixed(t, e, "run", 8, all[7:]...)...)
	paged[runstore.Event]{
		what: `ReadJournal of "run"`,
		read: func(last *runstore.Event, limit int) ([]runstore.Event, error) {
			from := runstore.Seq(1)
			if last != nil {
				from = last.Seq + 1
			}
			return e.Store.ReadJournal(t.Context(), "run", from, limit)
		},
		name: func(event runstore.Event) string {
			return nameIfIntact(eventName("run", event.Seq), event.Data, mixedSize(event.Data))
		},
		size: func(event runstore.Event) int { return len(event.Data) },
	}.check(t, names)
}

func mixedFeed(t harness.T, e *harness.Env) {
	e.Create(t, "one")
	e.Create(t, "two")
	all := sizes(5, largeEvent)
	want := appendMixed(t, e, "one", 1, all[:5]...)
	want = append(want, appendMixed(t, e, "two", 1, all[:2]...)...)
	want = append(want, appendMixed(t, e, "one", 6, all[5:]...)...)
	feed := paged[runstore.FeedEvent]{
		what: "ReadFeed",
		read: func(last *runstore.FeedEvent, limit int) ([]runstore.FeedEvent, error) {
			after := runstore.Position(0)
			if last != nil {
				after = last.Position
			}
			return e.Store.ReadFeed(t.Context(), runstore.FeedQuery{After: after, Limit: limit})
		},
		name: func(event runstore.FeedEvent) string {
			return nameIfIntact(eventName(event.Run, event.Seq), event.Data, mixedSize(event.Data))
		},
		size: func(event runstore.FeedEvent) int { return len(event.Data) },
	}
	// The feed may lag, and its order between runs is its own. Pages of one event show that order,
	// because no size can make such a page leave an event out.
	var order []string
	e.AwaitState(t, harness.CaseTimeout, func() bool {
		order = feed.list(t, 1)
		return len(order) >= len(want)
	}, func() string { return kit.DiffNames(order, want) })
	sorted := slices.Sorted(slices.Values(order))
	kit.CheckOrder(t, "ReadFeed in pages of 1, by name", sorted, slices.Sorted(slices.Values(want)))
	feed.check(t, order)
}

func mixedRecords(t harness.T, e *harness.Env) {
	e.Create(t, "run")
	base := e.Now(t)
	all := sizes(2, largeRecord)
	b := runstore.NewBatch("run", runstore.Unguarded("test"))
	var keys []runstore.RecordKey
	var names []string
	for i, size := range all {
		key := runstore.RecordKey(fmt.Sprintf("record %d", i))
		b.Put(key, content(string(key), size), runstore.Place{Index: "mixed", At: runstore.At(base.Add(time.Duration(i) * time.Second))})
		keys, names = append(keys, key), append(names, string(key))
	}
	kit.MustCommit(t, e.Store, b)
	name := func(r runstore.Record) string {
		size := tinyEntry
		if len(r.Value) > tinyEntry {
			size = largeRecord
		}
		return nameIfIntact(string(r.Key), r.Value, size)
	}
	records := paged[runstore.Record]{
		what: `ReadRecords of "run"`,
		read: func(last *runstore.Record, limit int) ([]runstore.Record, error) {
			q := runstore.RecordQuery{Limit: limit}
			if last != nil {
				q.After = last.Key
			}
			return e.Store.ReadRecords(t.Context(), "run", q)
		},
		name: name,
		size: func(r runstore.Record) int { return len(r.Value) },
	}
	records.check(t, names)
	// A read by exact keys has no pages: all records come back at once.
	found, err := e.Store.ReadRecords(t.Context(), "run", runstore.RecordQuery{Keys: keys})
	if err != nil {
		t.Fatalf("ReadRecords of %d keys: %v", len(keys), err)
	}
	var got []string
	for _, r := range found {
		got = append(got, name(r))
	}
	kit.CheckOrder(t, fmt.Sprintf("ReadRecords of %d keys", len(keys)), got, names)
	mixedScan(t, e, "mixed", names, name)
}

// mixedEntries scans the indexes of runs, whose entries are as large as the summaries, and an index
// with one record of each run.
func mixedEntries(t harness.T, e *harness.Env) {
	base := e.Now(t)
	var names []string
	for i, size := range sizes(2, largeRecord) {
		at := runstore.At(base.Add(time.Duration(i) * time.Second))
		name := fmt.Sprintf("run %d", i)
		spec := runstore.RunSpec{ID: runstore.RunID(name), Runnable: at}
		spec.Writes.Put(runstore.SummaryKey, content(name, size), runstore.Place{Index: "mixed", At: at})
		if _, err := e.Store.CreateRun(t.Context(), spec); err != nil {
			t.Fatalf("create %q: %v", name, err)
		}
		names = append(names, name)
		e.Advance(t, runstore.TimePrecision) // the index lists runs by their creation
	}
	for _, index := range []runstore.IndexName{"mixed", runstore.IndexRuns, runstore.IndexRunnable} {
		mixedScan(t, e, index, names, nil)
	}
}

// mixedScan scans an index in both directions. name names a record; if it is nil, entries are named
// by their runs.
func mixedScan(t harness.T, e *harness.Env, index runstore.IndexName, want []string, name func(runstore.Record) string) {
	t.Helper()
	for _, newest := range []bool{false, true} {
		value := func(entry runstore.IndexEntry) []byte {
			if entry.Record.Key != "" {
				return entry.Record.Value
			}
			return entry.Head.Summary.Value
		}
		paged[runstore.IndexEntry]{
			what: fmt.Sprintf("ScanIndex of %q, newest first %t,", index, newest),
			read: func(last *runstore.IndexEntry, limit int) ([]runstore.IndexEntry, error) {
				q := runstore.IndexQuery{Index: index, Until: runstore.EndOfTime, Limit: limit, Newest: newest}
				if last != nil {
					q.After = last.Cursor
				}
				return e.Store.ScanIndex(t.Context(), q)
			},
			name: func(entry runstore.IndexEntry) string {
				if name != nil {
					return name(entry.Record)
				}
				size := tinyEntry
				if len(value(entry)) > tinyEntry {
					size = largeRecord
				}
				return nameIfIntact(string(entry.Run), value(entry), size)
			},
			size: func(entry runstore.IndexEntry) int { return len(value(entry)) },
		}.check(t, want)
		want = slices.Clone(want)
		slices.Reverse(want)
	}
}
