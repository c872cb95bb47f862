package cases

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/tapestore/tapestore/conformance/harness"
	"github.com/tapestore/tapestore/conformance/internal/kit"
	"github.com/tapestore/tapestore/conformance/internal/panics"
	"github.com/tapestore/tapestore/runstore"
)

// Indexes returns the cases that prove I9 for the queues in which records are placed: an
// acknowledged entry is found, and an entry that is no longer true is never returned.
func Indexes() []harness.Case {
	return []harness.Case{
		{Guarantee: "I9", Name: "entries-come-in-order", Run: entriesInOrder, Doc: `
			Records of two runs are placed in one queue at different times and at equal ones, out of order. A scan
			returns them by time, and at equal times in the order of the writes; newest first is the exact reverse,
			and indexes with similar names are empty. A store that orders by key or run, or keeps the old place of a
			record that is written again, fails.`},
		{Guarantee: "I9", Name: "a-scan-ends-at-its-bound", Run: untilInclusive, Doc: `
			Three records are placed a second apart in the future, and scans end before, at and between them, in both
			directions and in another time zone. A scan holds the entries up to its bound, including one exactly at
			it, and the end of time holds all. A store with an exclusive bound leaves what is due at the very time of
			the scan to the next one.`},
		{Guarantee: "I9", Name: "what-is-due-is-judged-by-the-store-clock", Run: dueByStoreClock, Doc: `
			Records are placed for now, for a short while later, and for the next day. A scan without a bound returns
			what is due on the store clock, and the second record once that time has passed; each entry's time counts
			from its commit. A store that takes the bound from another clock returns entries early or late.`},
		{Guarantee: "I9", Name: "an-entry-carries-its-record", Run: entryCarriesRecord, Doc: `
			One record is placed in four queues and changed three times. Each queue holds it once, at the commit's time
			plus its delay, with the value, version and stamps that a read of the record returns, a cursor, and no
			head. A store that keeps a copy of the record in the index, and does not update it, returns an old value.`},
		{Guarantee: "I9", Name: "replaced-places-vanish", Run: replacedPlaces, Doc: `
			One record is placed, moved, put without a place, placed again, deleted, made anew and purged. After each
			step exactly the queues of the last put hold it, with the last value. A store that adds the new entry and
			leaves the old one fires a timer at its old time, or delivers an effect that is done.`},
		{Guarantee: "I9", Name: "pages-join-without-gap-or-repeat", Run: indexPages, Doc: `
			A queue of 23 entries of five runs, three at each time, is read in pages of several sizes and from every
			cursor, in both directions. The pages join to the list that one page returns. A store whose cursor holds
			the time alone loses or repeats an entry where a page ends between equal times.`},
		{Guarantee: "I9", Name: "index-pages-of-large-and-tiny-entries-lose-nothing", Run: mixedEntries, Doc: `
			Runs with tiny and large summaries are placed in a queue and in the store's own indexes, which are read in
			pages of three and of the largest count, in both directions. The pages join to the list, and a page ends
			with the entry that passes the limit in bytes. A store that leaves this entry out loses it.`},
		{Guarantee: "I9", Name: "a-scan-meets-what-stays-while-others-come-and-go", Run: scanUnderChange, Doc: `
			Thirty entries stay in a queue while others around them are placed, moved and removed, and three handles
			scan it in pages, in both directions. Every scan finds each of the thirty once and in order. A store
			whose cursor counts entries, or points at one that may vanish, loses or repeats some.`},
		{Guarantee: "I9", Name: "every-acknowledged-entry-is-found", Run: acknowledgedFound, Doc: `
			Four handles place records in one queue at random times; after each acknowledgement another handle scans
			the queue, while all continue to write. Each scan holds the acknowledged entry, and the queue at the end
			holds every entry once. A store that writes index entries after the commit, or removes those of a commit in
			progress, loses one.`},
		{Guarantee: "I9", Name: "every-acknowledged-entry-is-found-though-commits-were-held-open", Needs: []harness.Need{harness.NeedBlockWriters}, Run: heldOpenFound, Doc: `
			Commits that place entries before the existing ones are blocked at the engine, and the queue is scanned
			meanwhile, round after round. Every entry acknowledged so far is found once, before and after the commits
			are unblocked. A store whose scan removes the entry of a commit that it takes for dead loses an
			acknowledged entry.`},
		{Guarantee: "I9", Name: "stale-entries-are-never-returned", Run: noStaleEntries, Doc: `
			Two handles move records between two queues, out of both, and delete them, while others scan. An entry's
			value says that it is in the queue that returned it, and a later read never shows an older version; at
			the end queues and records agree. A store that writes record and index apart returns entries that are no
			longer true.`},
	}
}

// putIndexed puts a record into one index at one time.
func putIndexed(t harness.T, s runstore.RunStore, id runstore.RunID, key runstore.RecordKey, name runstore.IndexName, at runstore.When) {
	t.Helper()
	b := runstore.NewBatch(id, runstore.Unguarded("test"))
	b.Put(key, []byte(key), runstore.Place{Index: name, At: at})
	kit.MustCommit(t, s, b)
}

// scan returns the record keys of one page of a query.
func scan(t harness.T, s runstore.RunStore, q runstore.IndexQuery) []runstore.RecordKey {
	t.Helper()
	if q.Limit == 0 {
		q.Limit = runstore.MaxPage
	}
	page, err := s.ScanIndex(t.Context(), q)
	if err != nil {
		t.Fatalf("scan %+v: %v", q, err)
	}
	var keys []runstore.RecordKey
	for _, entry := range page {
		keys = append(keys, entry.Record.Key)
	}
	return keys
}

func entriesInOrder(t harness.T, e *harness.Env) {
	base := e.Now(t).Add(-time.Hour)
	e.Create(t, "one")
	e.Create(t, "two")
	want := make([]runstore.RecordKey, 8)
	for _, i := range []int{5, 2, 7, 0, 3, 6, 1, 4} {
		want[i] = runstore.RecordKey(fmt.Sprintf("at-%d", i))
		putIndexed(t, e.Store, []runstore.RunID{"one", "two"}[i%2], want[i], "queue", runstore.At(base.Add(time.Duration(i)*time.Microsecond)))
	}
	// Entries of equal times are ordered by the time of the write, whatever their run or key.
	for i, key := range []runstore.RecordKey{"z", "a", "m"} {
		e.Advance(t, time.Millisecond)
		putIndexed(t, e.Store, []runstore.RunID{"two", "one"}[i%2], key, "queue", runstore.At(base.Add(time.Minute)))
		want = append(want, key)
	}
	other := e.Reopen(t)
	kit.Equal(t, "order", scan(t, other, runstore.IndexQuery{Index: "queue"}), want)
	slices.Reverse(want)
	kit.Equal(t, "order, newest first", scan(t, other, runstore.IndexQuery{Index: "queue", Newest: true}), want)
	kit.Equal(t, "another index", scan(t, other, runstore.IndexQuery{Index: "queue2", Until: runstore.EndOfTime}), nil)
	kit.Equal(t, "the beginning of its name", scan(t, other, runstore.IndexQuery{Index: "queu", Until: runstore.EndOfTime}), nil)
	// A record that is put again at the same time comes after those put before.
	e.Advance(t, time.Millisecond)
	putIndexed(t, e.Store, "two", "z", "queue", runstore.At(base.Add(time.Minute)))
	kit.Equal(t, "the last ones, after one was written again",
		scan(t, other, runstore.IndexQuery{Index: "queue", Newest: true, Limit: 3}), []runstore.RecordKey{"z", "m", "a"})
}

func untilInclusive(t harness.T, e *harness.Env) {
	base := e.Now(t).Add(time.Hour)
	e.Create(t, "run")
	for i := range 3 {
		putIndexed(t, e.Store, "run", runstore.RecordKey(fmt.Sprint(i)), "queue", runstore.At(base.Add(time.Duration(i)*time.Second)))
	}
	type keys = []runstore.RecordKey
	for _, test := range []struct {
		until  time.Time
		newest bool
		want   keys
	}{
		{time.Time{}, false, nil},
		{base.Add(-runstore.TimePrecision), false, nil},
		{base, false, keys{"0"}},
		{base.Add(2*time.Second - runstore.TimePrecision), false, keys{"0", "1"}},
		{base.Add(2*time.Second - runstore.TimePrecision), true, keys{"1", "0"}},
		{base.Add(2 * time.Second), false, keys{"0", "1", "2"}},
		{base.Add(2 * time.Second).In(time.FixedZone("far", 14*3600)), false, keys{"0", "1", "2"}},
		{runstore.EndOfTime, true, keys{"2", "1", "0"}},
	} {
		kit.Equal(t, fmt.Sprintf("until %v", test.until),
			scan(t, e.Store, runstore.IndexQuery{Index: "queue", Until: test.until, Newest: test.newest}), test.want)
	}
	putIndexed(t, e.Store, "run", "never", "queue", runstore.At(runstore.EndOfTime))
	kit.Equal(t, "the end of time", len(scan(t, e.Store, runstore.IndexQuery{Index: "queue", Until: runstore.EndOfTime})), 4)
}

func dueByStoreClock(t harness.T, e *harness.Env) {
	wait := e.ShortTTL()
	e.Create(t, "run")
	putIndexed(t, e.Store, "run", "now", "queue", runstore.After(0))
	putIndexed(t, e.Store, "run", "soon", "queue", runstore.After(wait))
	putIndexed(t, e.Store, "run", "later", "queue", runstore.After(24*time.Hour))
	entries := kit.Queue(t, e.Store, "queue")
	if len(entries) != 3 {
		t.Fatalf("%d entries, want 3", len(entries))
	}
	for i, after := range []time.Duration{0, wait, 24 * time.Hour} {
		kit.Equal(t, fmt.Sprintf("time of %q", entries[i].Record.Key), entries[i].At, entries[i].Record.Updated.Time.Add(after))
	}
	// An entry may become due while the case scans; an entry that is not due must not appear.
	due := scan(t, e.Store, runstore.IndexQuery{Index: "queue"})
	if len(due) != 1 && e.Now(t).Before(entries[1].At) {
		t.Errorf("due are %q, want what was due at once alone", due)
	}
	e.Advance(t, wait)
	kit.Equal(t, "due after the wait", scan(t, e.Store, runstore.IndexQuery{Index: "queue"}), []runstore.RecordKey{"now", "soon"})
}

func entryCarriesRecord(t harness.T, e *harness.Env) {
	e.Create(t, "run")
	for n := range 3 {
		b := runstore.NewBatch("run", runstore.AtVersion("k", runstore.Version(n)))
		b.Append("event", nil)
		b.Put("k", fmt.Append(nil, "value ", n), runstore.Place{Index: "one", At: runstore.After(0)},
			runstore.Place{Index: "two", At: runstore.After(time.Second)},
			runstore.Place{Index: "three \x00\xff", At: runstore.After(time.Minute)},
			runstore.Place{Index: "four", At: runstore.After(time.Hour)})
		done := kit.MustCommit(t, e.Store, b)
		want := kit.Record(t, e.Store, "run", "k")
		kit.Equal(t, "version", want.Version, runstore.Version(n+1))
		for name, after := range map[runstore.IndexName]time.Duration{"one": 0, "two": time.Second, "three \x00\xff": time.Minute, "four": time.Hour} {
			entries := kit.Queue(t, e.Store, name)
			if len(entries) != 1 {
				t.Fatalf("index %q holds %d entries, want 1", name, len(entries))
			}
			got := entries[0]
			kit.Equal(t, "record in "+string(name), got.Record, want)
			kit.Equal(t, "time in "+string(name), got.At, done.Time.Add(after))
			kit.Equal(t, "run in "+string(name), got.Run, "run")
			kit.Equal(t, "head in "+string(name), got.Head, runstore.Run{})
			if got.Cursor == "" {
				t.Errorf("an entry of %q has no cursor", name)
			}
		}
	}
}

func replacedPlaces(t harness.T, e *harness.Env) {
	e.Create(t, "run")
	now := runstore.After(0)
	steps := []struct {
		name   string
		places []runstore.Place
		remove bool
		want   string
	}{
		{name: "placed", places: []runstore.Place{{Index: "a", At: now}, {Index: "b", At: now}}, want: "ab"},
		{name: "moved", places: []runstore.Place{{Index: "c", At: now}, {Index: "b", At: now}}, want: "bc"},
		{name: "put without a place", want: ""},
		{name: "placed again", places: []runstore.Place{{Index: "a", At: now}}, want: "a"},
		{name: "deleted", remove: true, want: ""},
		{name: "made anew", places: []runstore.Place{{Index: "b", At: now}}, want: "b"},
		{name: "purged", want: ""},
		{name: "made anew after the purge", want: ""},
	}
	other := e.Reopen(t)
	for _, step := range steps {
		b := runstore.NewBatch("run", runstore.Unguarded("test"))
		switch {
		case step.name == "made anew after the purge":
			e.Create(t, "run")
			b.Put("k", nil)
		case step.name == "purged":
			b.Purge = true
		case step.remove:
			b.Delete("k")
		default:
			b.Put("k", []byte(step.name), step.places...)
		}
		kit.MustCommit(t, e.Store, b)
		got := ""
		for _, name := range []runstore.IndexName{"a", "b", "c"} {
			for _, entry := range kit.Queue(t, other, name) {
				got += string(name)
				kit.Equal(t, step.name+": value", string(entry.Record.Value), step.name)
			}
		}
		kit.Equal(t, step.name+": the indexes that hold the record", got, step.want)
	}
}

func acknowledgedFound(t harness.T, e *harness.Env) {
	const writers = 4
	each := e.Scaled(t, "entries of each writer", 6, 15)
	ctx := t.Context()
	random := kit.Seeded(t)
	base := e.Now(t)
	stores := kit.OpenHandles(t, e, writers)
	for i := range writers {
		e.Create(t, runstore.RunID(fmt.Sprint("run-", i)))
	}
	kit.RunConcurrently(t, writers, func(i int) error {
		pick := random(i)
		for n := range each {
			key := runstore.RecordKey(fmt.Sprintf("%d/%d", i, n))
			b := runstore.NewBatch(runstore.RunID(fmt.Sprint("run-", pick.IntN(writers))), runstore.Unguarded("test"))
			b.Put(key, nil, runstore.Place{Index: "all", At: runstore.At(base.Add(time.Duration(pick.IntN(1e6)) * time.Microsecond))})
			if _, err := stores[i].Commit(ctx, b); err != nil {
				return err
			}
			q := runstore.IndexQuery{Index: "all", Until: runstore.EndOfTime, Limit: 10 + n, Newest: n%2 == 0}
			entries, err := kit.Collect(runstore.Entries(ctx, stores[(i+1)%writers], q))
			if err != nil {
				return err
			}
			if !slices.ContainsFunc(entries, func(entry runstore.IndexEntry) bool { return entry.Record.Key == key }) {
				return fmt.Errorf("the entry of %q was acknowledged and is not among the %d that a scan found", key, len(entries))
			}
		}
		return nil
	})
	var want []string
	for i := range writers {
		for n := range each {
			want = append(want, fmt.Sprintf("%d/%d", i, n))
		}
	}
	got := kit.NamesOf(kit.Queue(t, e.Store, "all"), func(entry runstore.IndexEntry) string { return string(entry.Record.Key) })
	kit.CheckOrder(t, `ScanIndex of "all", by key`, slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(want)))
}

func heldOpenFound(t harness.T, e *harness.Env) {
	const writers, rounds = 6, 4
	ctx := t.Context()
	base := e.Now(t)
	stores := kit.OpenHandles(t, e, writers)
	for i := range writers {
		e.Create(t, runstore.RunID(fmt.Sprint("run-", i)))
	}
	known := map[runstore.RecordKey]bool{}
	check := func(when string) {
		t.Helper()
		found := map[runstore.RecordKey]int{}
		for _, entry := range kit.Queue(t, e.Store, "all") {
			found[entry.Record.Key]++
		}
		for key := range known {
			if found[key] != 1 {
				t.Errorf("%s: acknowledged %q is found %d times", when, key, found[key])
			}
		}
	}
	for round := range rounds {
		blocked := kit.BlockWriters(t, e)
		var wg sync.WaitGroup
		errs := make([]error, writers)
		for i, s := range stores {
			wg.Go(panics.Guarded(t, func() {
				b := runstore.NewBatch(runstore.RunID(fmt.Sprint("run-", i)), runstore.Unguarded("test"))
				// Earlier than every existing entry, so that a scan has passed the place.
				b.Put(runstore.RecordKey(fmt.Sprintf("%d/%d", round, i)), nil,
					runstore.Place{Index: "all", At: runstore.At(base.Add(-time.Duration(round*writers+i) * time.Second))})
				_, errs[i] = s.Commit(ctx, b)
			}))
		}
		blocked.Await(t, closedAfter(&wg))
		for range 5 {
			check(fmt.Sprintf("round %d, with commits held open", round))
		}
		blocked.Resume()
		wg.Wait()
		for i, err := range errs {
			if err != nil {
				t.Fatalf("round %d: writer %d: %v", round, i, err)
			}
			known[runstore.RecordKey(fmt.Sprintf("%d/%d", round, i))] = true
		}
		check(fmt.Sprintf("round %d, after the commits", round))
	}
}
