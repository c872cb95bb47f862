package cases

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/tapestore/tapestore/conformance/harness"
	"github.com/tapestore/tapestore/conformance/internal/kit"
	"github.com/tapestore/tapestore/conformance/internal/panics"
	"github.com/tapestore/tapestore/runstore"
)

// Readers returns the cases that prove I6: reads need no lease, see all acknowledged writes, and
// never wait for a writer.
func Readers() []harness.Case {
	return []harness.Case{
		{Guarantee: "I6", Name: "reads-need-no-lease", Run: readsNeedNoLease, Doc: `
			Another handle reads a run whose lease is held: head, journal, records, queues, the store's own indexes
			and the feed. Every read returns what the holder wrote and changes nothing, and the holder goes on. A
			store that asks readers for a lease, or whose reads touch the run, fails.`},
		{Guarantee: "I6", Name: "reads-see-what-was-acknowledged-before", Run: readsSeeAcknowledged, Doc: `
			Three handles write a run in turn, and after each acknowledgement all three read it by every method. Each
			read except the feed shows the new state at once; the feed follows. A store that answers from a cache, a
			replica or an index that is updated later returns an old state.`},
		{Guarantee: "I6", Name: "reads-never-fall-behind-concurrent-writers", Run: readsNeverBehind, Doc: `
			One handle commits batch after batch, and four others read head, journal, record and index meanwhile. No
			read shows less than what was acknowledged before it began, or than the reader's last read. A store that
			reads from a snapshot of an unknown age falls behind.`},
		{Guarantee: "I6", Name: "records-read-by-key-prefix-and-page", Run: recordQueries, Doc: `
			Records under awkward keys (a zero byte, 0xff, other case, a key that is another's prefix) are read by
			keys, by prefix and in pages. Each read returns exactly the matching keys once, in byte order, from this
			run alone. A store that matches by a pattern, a collation or the run id as a prefix returns others.`},
		{Guarantee: "I6", Name: "record-pages-of-large-and-tiny-values-lose-nothing", Run: mixedRecords, Doc: `
			A run alternates tiny and large records and is read in pages by key, by exact keys, and by a queue in both
			directions. The pages join to what was written, and a page ends with the record that passes the limit in
			bytes. A store that leaves this record out and continues with the tiny one after it loses the large one.`},
		{Guarantee: "I6", Name: "reads-never-wait-for-a-writer", Needs: []harness.Need{harness.NeedBlockWriters}, Run: readsNeverWait, Doc: `
			A commit, a renewal and a creation are blocked at the engine, and two handles read by every method
			meanwhile. Every read returns, and shows the run as it was; no writer ends before the case unblocks it, and
			then all three succeed. A store whose readers wait for a writer's lock, or see its open writes, fails.`},
	}
}

// reading is one read method, applied to a run that everything was written to.
type reading struct {
	name string
	// read returns a text of what it found.
	read func(ctx context.Context, s runstore.RunStore) (string, error)
}

// readings returns all read methods of a store but ReadFeed, which may lag.
func readings(id runstore.RunID) []reading {
	scan := func(name runstore.IndexName) reading {
		return reading{"scan of " + string(name), func(ctx context.Context, s runstore.RunStore) (string, error) {
			found, err := s.ScanIndex(ctx, runstore.IndexQuery{Index: name, Until: runstore.EndOfTime, Limit: 10})
			text := ""
			for _, entry := range found {
				if entry.Run == id {
					text += fmt.Sprintf("%s@%d %s %d/%s ", entry.Record.Key, entry.Record.Version, entry.Record.Value, entry.Head.LastSeq, entry.Head.Summary.Value)
				}
			}
			return text, err
		}}
	}
	records := func(name string, q runstore.RecordQuery) reading {
		return reading{name, func(ctx context.Context, s runstore.RunStore) (string, error) {
			found, err := s.ReadRecords(ctx, id, q)
			text := ""
			for _, r := range found {
				text += fmt.Sprintf("%s@%d %s ", r.Key, r.Version, r.Value)
			}
			return text, err
		}}
	}
	return []reading{
		{"get run", func(ctx context.Context, s runstore.RunStore) (string, error) {
			run, err := s.GetRun(ctx, id)
			return fmt.Sprintf("%d %d %s %s", run.LastSeq, run.Status, run.Summary.Value, run.Holder.Owner), err
		}},
		{"read journal", func(ctx context.Context, s runstore.RunStore) (string, error) {
			events, err := s.ReadJournal(ctx, id, 1, runstore.MaxPage)
			if len(events) == 0 {
				return "", err
			}
			last := events[len(events)-1]
			return fmt.Sprintf("%d %s", last.Seq, last.Data), err
		}},
		records("read records by key", runstore.RecordQuery{Keys: []runstore.RecordKey{"b", "a", "gone"}}),
		records("read records by prefix", runstore.RecordQuery{Limit: 10}),
		scan("queue-a"), scan("queue-b"), scan(runstore.IndexRuns), scan(runstore.IndexRunnable),
	}
}

func readsNeedNoLease(t harness.T, e *harness.Env) {
	lease := kit.SeedFixture(t, e, "run")
	b := runstore.NewBatch("run", lease.Fence())
	kit.WriteEverything(&b.Writes, "held", 5)
	kit.MustCommit(t, e.Store, b)
	stranger := e.Reopen(t)
	want := map[string]string{
		"get run": "3 5 held owner", "read journal": "3 held/second",
		"read records by key": "a@2 held b@2 held ", "read records by prefix": "a@2 held b@2 held run@2 held ",
		"scan of queue-a": "a@2 held 0/ ", "scan of queue-b": "a@2 held 0/ ",
		"scan of runs": "@0  3/held ", "scan of runnable": "@0  3/held ",
	}
	check := func(when string) {
		t.Helper()
		for _, r := range readings("run") {
			got, err := r.read(t.Context(), stranger)
			if err != nil {
				t.Fatalf("%s: %s: %v", when, r.name, err)
			}
			kit.Equal(t, when+": "+r.name, got, want[r.name])
		}
		kit.FeedOf(t, e, stranger, 3)
	}
	before := kit.Dump(t, stranger, "run", kit.AllIndexes...)
	check("while somebody holds the lease")
	kit.CheckUnchanged(t, "reading", before, kit.Dump(t, stranger, "run", kit.AllIndexes...))
	e.Append(t, e.Store, lease, "the holder goes on")
}

func readsSeeAcknowledged(t harness.T, e *harness.Env) {
	const rounds = 6
	kit.SeedFixture(t, e, "run")
	stores := append(kit.OpenHandles(t, e, 2), e.Store)
	for round := range rounds {
		tag := fmt.Sprint("round-", round)
		b := runstore.NewBatch("run", runstore.Unguarded("test"))
		kit.WriteEverything(&b.Writes, tag, runstore.Status(round))
		done := kit.MustCommit(t, stores[round%len(stores)], b)
		want := map[string]string{
			"get run":                fmt.Sprintf("%d %d %s owner", done.LastSeq, round, tag),
			"read journal":           fmt.Sprintf("%d %s/second", done.LastSeq, tag),
			"read records by key":    fmt.Sprintf("a@%d %s b@%d %s ", round+2, tag, round+2, tag),
			"read records by prefix": fmt.Sprintf("a@%d %s b@%d %s run@%d %s ", round+2, tag, round+2, tag, round+2, tag),
			"scan of queue-a":        fmt.Sprintf("a@%d %s 0/ ", round+2, tag),
			"scan of queue-b":        fmt.Sprintf("a@%d %s 0/ ", round+2, tag),
			"scan of runs":           fmt.Sprintf("@0  %d/%s ", done.LastSeq, tag),
			"scan of runnable":       fmt.Sprintf("@0  %d/%s ", done.LastSeq, tag),
		}
		for i, s := range stores {
			for _, r := range readings("run") {
				got, err := r.read(t.Context(), s)
				if err != nil {
					t.Fatalf("round %d: handle %d: %s: %v", round, i, r.name, err)
				}
				kit.Equal(t, fmt.Sprintf("round %d, written by handle %d: handle %d: %s", round, round%len(stores), i, r.name), got, want[r.name])
			}
		}
	}
	// The feed may lag, but it must follow.
	for _, s := range stores {
		kit.FeedOf(t, e, s, 1+2*rounds)
	}
}

func readsNeverBehind(t harness.T, e *harness.Env) {
	batches := e.Scaled(t, "batches", 20, 60)
	ctx := t.Context()
	e.Create(t, "run")
	var acknowledged atomic.Int64
	write := func() error {
		for n := int64(1); n <= int64(batches); n++ {
			b := runstore.NewBatch("run", runstore.Unguarded("test"))
			b.Append("event", nil)
			b.Put("k", nil, runstore.Place{Index: "all", At: runstore.After(0)})
			b.Put(runstore.SummaryKey, nil)
			if _, err := e.Store.Commit(ctx, b); err != nil {
				return err
			}
			acknowledged.Store(n)
		}
		return nil
	}
	reader := func(name string, read func(s runstore.RunStore) (int64, error)) func() error {
		s := e.Reopen(t)
		last := int64(0)
		return func() error {
			least := max(acknowledged.Load(), last)
			found, err := read(s)
			if err == nil && found < least {
				err = fmt.Errorf("%s found batch %d when %d had been seen or acknowledged", name, found, least)
			}
			last = found
			return err
		}
	}
	kit.During(t, write,
		reader("get run", func(s runstore.RunStore) (int64, error) {
			run, err := s.GetRun(ctx, "run")
			return min(int64(run.LastSeq), int64(run.Summary.Version)), err
		}),
		reader("read journal", func(s runstore.RunStore) (int64, error) {
			events, err := s.ReadJournal(ctx, "run", 1, runstore.MaxPage)
			return int64(len(events)), err
		}),
		reader("read records", func(s runstore.RunStore) (int64, error) {
			records, err := s.ReadRecords(ctx, "run", runstore.RecordQuery{Keys: []runstore.RecordKey{"k"}})
			if len(records) == 0 {
				return 0, err
			}
			return int64(records[0].Version), err
		}),
		reader("scan index", func(s runstore.RunStore) (int64, error) {
			entries, err := s.ScanIndex(ctx, runstore.IndexQuery{Index: "all", Until: runstore.EndOfTime, Limit: 1})
			if len(entries) == 0 {
				return 0, err
			}
			return int64(entries[0].Record.Version), err
		}),
	)
}

func recordQueries(t harness.T, e *harness.Env) {
	ctx := t.Context()
	e.Create(t, "run")
	e.Create(t, "run/b") // no run id may match the records of another run
	b := runstore.NewBatch("run", runstore.Unguarded("test"))
	for _, key := range []runstore.RecordKey{"b/2", "a", "b", "b/10", "b\x00", "b/1", "c", "B", "b\xff", "ß", "b/1/x"} {
		b.Put(key, []byte(key))
	}
	kit.MustCommit(t, e.Store, b)
	kit.Put(t, e.Store, "run/b", "b/3", 0, "b/3")
	type keys = []runstore.RecordKey
	for _, test := range []struct {
		name string
		q    runstore.RecordQuery
		want keys
	}{
		{"all", runstore.RecordQuery{Limit: 100}, keys{"B", "a", "b", "b\x00", "b/1", "b/1/x", "b/10", "b/2", "b\xff", "c", "ß"}},
		{"a prefix", runstore.RecordQuery{Prefix: "b/", Limit: 100}, keys{"b/1", "b/1/x", "b/10", "b/2"}},
		{"a prefix that is a key", runstore.RecordQuery{Prefix: "b", Limit: 100}, keys{"b", "b\x00", "b/1", "b/1/x", "b/10", "b/2", "b\xff"}},
		{"a prefix of the highest byte", runstore.RecordQuery{Prefix: "b\xff", Limit: 100}, keys{"b\xff"}},
		{"a page", runstore.RecordQuery{Prefix: "b/", Limit: 2}, keys{"b/1", "b/1/x"}},
		{"the page after", runstore.RecordQuery{Prefix: "b/", After: "b/1/x", Limit: 2}, keys{"b/10", "b/2"}},
		{"after a key that is not there", runstore.RecordQuery{Prefix: "b/", After: "b/1/a", Limit: 2}, keys{"b/1/x", "b/10"}},
		{"after the last", runstore.RecordQuery{Prefix: "b/", After: "b/2", Limit: 2}, nil},
		{"after, before the prefix", runstore.RecordQuery{Prefix: "b/", After: "a", Limit: 1}, keys{"b/1"}},
		{"a prefix of nothing", runstore.RecordQuery{Prefix: "x", Limit: 2}, nil},
		{"keys", runstore.RecordQuery{Keys: keys{"c", "x", "b/1", "B"}}, keys{"B", "b/1", "c"}},
		{"a key named twice", runstore.RecordQuery{Keys: keys{"c", "a", "c"}}, keys{"a", "c"}},
		{"absent keys", runstore.RecordQuery{Keys: keys{"x", "y"}}, nil},
	} {
		found, err := e.Store.ReadRecords(ctx, "run", test.q)
		if err != nil {
			t.Errorf("%s: %v", test.name, err)
			continue
		}
		var got keys
		for _, r := range found {
			got = append(got, r.Key)
			kit.Equal(t, test.name+": value", string(r.Value), string(r.Key))
		}
		kit.Equal(t, test.name, got, test.want)
	}
}

func readsNeverWait(t harness.T, e *harness.Env) {
	lease := kit.SeedFixture(t, e, "run")
	one, two, reader := e.Reopen(t), e.Reopen(t), e.Reopen(t)
	before := kit.Dump(t, e.Store, "run", kit.AllIndexes...)
	writers := kit.BlockWriters(t, e)
	b := runstore.NewBatch("run", lease.Fence())
	kit.WriteEverything(&b.Writes, "held up", 5)
	writes := []func() error{
		func() error { _, err := one.Commit(t.Context(), b); return err },
		func() error {
			_, err := two.RenewLease(t.Context(), runstore.RenewRequest{Fence: lease.Fence(), TTL: harness.TTL})
			return err
		},
		func() error { _, err := two.CreateRun(t.Context(), runstore.RunSpec{ID: "new"}); return err },
	}
	results := make(chan error, len(writes))
	for _, write := range writes {
		go func() { results <- panics.Caught(write) }()
	}
	ctx, cancel := context.WithTimeout(t.Context(), harness.CaseTimeout)
	defer cancel()
	writers.Await(t, nil)
	for range 3 {
		for _, s := range []runstore.RunStore{reader, one} {
			for _, r := range readings("run") {
				if _, err := r.read(ctx, s); err != nil {
					t.Fatalf("%s while writers are held up: %v", r.name, err)
				}
			}
			_, err := s.ReadFeed(ctx, runstore.FeedQuery{Limit: 10})
			_, nowErr := s.Now(ctx)
			if err := errors.Join(err, nowErr); err != nil {
				t.Fatalf("while writers are held up: %v", err)
			}
		}
	}
	kit.CheckUnchanged(t, "a batch that is held up", before, kit.Dump(t, reader, "run", kit.AllIndexes...))
	if len(results) > 0 {
		t.Errorf("a writer ended while the harness held writers up: %v", <-results)
		return
	}
	writers.Resume()
	for range writes {
		if err := <-results; err != nil {
			t.Errorf("a writer, once it could go on: %v", err)
		}
	}
	kit.Equal(t, "last seq", e.Get(t, "run").LastSeq, 3)
}
