package cases

import (
	"fmt"
	"time"

	"github.com/tapestore/tapestore/conformance/harness"
	"github.com/tapestore/tapestore/conformance/internal/kit"
	"github.com/tapestore/tapestore/runstore"
)

func fullestBatch(t harness.T, e *harness.Env) {
	lease := seedDrivenRun(t, e, "run")
	key := func(i int) runstore.RecordKey { return runstore.RecordKey(fmt.Sprintf("key-%03d", i)) }
	b := runstore.NewBatch("run", lease.Fence())
	for i := range runstore.MaxEvents {
		b.Append("test", fmt.Append(nil, i))
	}
	for i := range runstore.MaxRecordWrites {
		var places []runstore.Place
		for j := range runstore.MaxPlaces {
			places = append(places, runstore.Place{Index: runstore.IndexName(fmt.Sprintf("queue-%d", j)), At: runstore.After(0)})
		}
		b.Put(key(i), fmt.Append(nil, i), places...)
		b.Records[i].Event = i
	}
	for i := range runstore.MaxGuards - 1 {
		b.Require(runstore.AtVersion(key(i), 0))
	}
	b.Require(runstore.InStatus(0))
	checkEachGuard(t, e, lease, key, 0, 1)
	done := kit.MustApply(t, e.Store, "the fullest batch", b)
	if done.FirstSeq != 2 || done.LastSeq != runstore.MaxEvents+1 || len(done.Versions) != runstore.MaxRecordWrites {
		t.Errorf("the fullest batch gave seqs %d to %d and %d versions, want 2 to %d and %d",
			done.FirstSeq, done.LastSeq, len(done.Versions), runstore.MaxEvents+1, runstore.MaxRecordWrites)
	}
	checkEachGuard(t, e, lease, key, 1, 0)
	page, err := e.Store.ReadJournal(t.Context(), "run", 2, runstore.MaxPage)
	if err != nil || len(page) != runstore.MaxPage {
		t.Fatalf("a full page of the journal: %d events, error %v", len(page), err)
	}
	for i, event := range page {
		if event.Seq != runstore.Seq(i+2) || string(event.Data) != fmt.Sprint(i) {
			t.Fatalf("event %d of the page is seq %d, %q; want %d, %d", i, event.Seq, event.Data, i+2, i)
		}
	}
	keys := make([]runstore.RecordKey, runstore.MaxRecordKeys)
	for i := range keys {
		keys[i] = key(i)
	}
	records, err := e.Store.ReadRecords(t.Context(), "run", runstore.RecordQuery{Keys: keys})
	if err != nil || len(records) != runstore.MaxRecordKeys {
		t.Fatalf("the most keys in one read: %d records, error %v", len(records), err)
	}
	for i, r := range records {
		if r.Key != key(i) || r.Version != 1 || string(r.Value) != fmt.Sprint(i) || r.Updated.Seq != runstore.Seq(i+2) {
			t.Fatalf("record %d is %q v%d %q of seq %d; want %q v1 %d of %d", i, r.Key, r.Version, r.Value, r.Updated.Seq, key(i), i, i+2)
		}
	}
	for j := range runstore.MaxPlaces {
		index := runstore.IndexName(fmt.Sprintf("queue-%d", j))
		entries := 0
		for _, err := range runstore.Entries(t.Context(), e.Store, runstore.IndexQuery{Index: index, Until: runstore.EndOfTime}) {
			if err != nil {
				t.Fatalf("scan: %v", err)
			}
			entries++
		}
		if entries != runstore.MaxRecordWrites {
			t.Errorf("%q has %d entries, want %d", index, entries, runstore.MaxRecordWrites)
		}
	}
}

// checkEachGuard commits batches with the most guards, on records that are at version at. One guard, in
// the first, a middle or the last place, requires the version wrong: each batch is ErrConflict.
func checkEachGuard(t harness.T, e *harness.Env, lease runstore.Lease, key func(int) runstore.RecordKey, at, wrong runstore.Version) {
	t.Helper()
	before := e.Get(t, lease.Run)
	for _, place := range []int{0, runstore.MaxGuards / 2, runstore.MaxGuards - 1} {
		b := kit.Appending(lease, "refused")
		for i := range runstore.MaxGuards {
			if i == place {
				b.Require(runstore.AtVersion(key(i), wrong))
			} else {
				b.Require(runstore.AtVersion(key(i), at))
			}
		}
		_, err := e.Store.Commit(t.Context(), b)
		harness.Refused(t, fmt.Sprintf("the most guards, of which guard %d fails", place), err, runstore.ErrConflict)
	}
	kit.Equal(t, "the run after these refusals", e.Get(t, lease.Run), before)
}

func countsBeyond(t harness.T, e *harness.Env) {
	lease := seedDrivenRun(t, e, "run")
	ctx := t.Context()
	batch := func(what, field string, limit int, fill func(b *runstore.Batch)) overLimit {
		return overLimit{what, runstore.ErrTooLarge, field, fmt.Sprint(limit), commitFunc(t, e.Store, lease, fill)}
	}
	key := func(i int) runstore.RecordKey { return runstore.RecordKey(fmt.Sprint(i)) }
	keys := make([]runstore.RecordKey, runstore.MaxRecordKeys+1)
	for i := range keys {
		keys[i] = key(i)
	}
	refuseAll(t, e, "run", []overLimit{
		batch("one event too many", "events", runstore.MaxEvents, func(b *runstore.Batch) {
			for range runstore.MaxEvents + 1 {
				b.Append("test", nil)
			}
		}),
		batch("one record too many", "records", runstore.MaxRecordWrites, func(b *runstore.Batch) {
			for i := range runstore.MaxRecordWrites + 1 {
				b.Put(key(i), nil)
			}
		}),
		batch("one guard too many", "guards", runstore.MaxGuards, func(b *runstore.Batch) {
			for i := range runstore.MaxGuards + 1 {
				b.Require(runstore.AtVersion(key(i), 0))
			}
			b.Append("test", nil)
		}),
		batch("one status too many", "guards", runstore.MaxGuards, func(b *runstore.Batch) {
			b.Require(runstore.InStatus(0, make([]runstore.Status, runstore.MaxGuards)...))
			b.Append("test", nil)
		}),
		batch("one place too many", "records[0].index", runstore.MaxPlaces, func(b *runstore.Batch) {
			var places []runstore.Place
			for i := range runstore.MaxPlaces + 1 {
				places = append(places, runstore.Place{Index: runstore.IndexName(fmt.Sprint(i)), At: runstore.After(0)})
			}
			b.Put("good", nil, places...)
		}),
		batch("one record too many to reserve room for", "records[0].reserve.records", runstore.MaxRecordWrites, func(b *runstore.Batch) {
			b.Put("good", nil)
			for i := range runstore.MaxRecordWrites + 1 {
				b.Records[0].Reserve = append(b.Records[0].Reserve, runstore.RecordWrite{Key: key(i)})
			}
		}),
		{"one key too many to read", runstore.ErrTooLarge, "keys", fmt.Sprint(runstore.MaxRecordKeys), func() error {
			_, err := e.Store.ReadRecords(ctx, "run", runstore.RecordQuery{Keys: keys})
			return err
		}},
	})
	e.Append(t, e.Store, lease, "the run is usable")
}

func multiBounds(t harness.T, e *harness.Env) {
	lease := seedDrivenRun(t, e, "run")
	multi := kit.Capability[runstore.MultiCommitter](e.Store)
	batches := func(n int) []runstore.Batch {
		all := []runstore.Batch{kit.Appending(lease, "multi")}
		for i := 1; i < n; i++ {
			b := runstore.NewBatch(runstore.RunID(fmt.Sprintf("run-%d", i)), runstore.AtSeq(1))
			b.Append("test", []byte("multi"))
			all = append(all, b)
		}
		return all
	}
	for i := 1; i <= runstore.MaxMultiBatches; i++ {
		e.Create(t, runstore.RunID(fmt.Sprintf("run-%d", i)))
	}
	try := func(all []runstore.Batch) func() error {
		return func() error {
			_, err := multi.CommitMulti(t.Context(), all)
			return err
		}
	}
	limit := fmt.Sprint(runstore.MaxMultiBatches)
	twice := append(batches(2), batches(2)[1])
	bad := batches(2)
	bad[1].Append("", nil)
	refuseAll(t, e, "run", []overLimit{
		{"no batch", runstore.ErrInvalid, "batches", limit, try(nil)},
		{"one batch too many", runstore.ErrTooLarge, "batches", limit, try(batches(runstore.MaxMultiBatches + 1))},
		{"one run twice", runstore.ErrInvalid, "batches[2]", "twice", try(twice)},
		{"a malformed batch behind a good one", runstore.ErrInvalid, "events[1].kind", fmt.Sprint(runstore.MaxKind), try(bad)},
	})
	done, err := multi.CommitMulti(t.Context(), batches(runstore.MaxMultiBatches))
	if err != nil || len(done) != runstore.MaxMultiBatches {
		t.Fatalf("the most batches: %d results, error %v", len(done), err)
	}
	for i := 1; i <= runstore.MaxMultiBatches; i++ {
		want := 1
		if i == runstore.MaxMultiBatches { // one run more than the commit may have
			want = 0
		}
		if got := len(kit.Journal(t, e.Store, runstore.RunID(fmt.Sprintf("run-%d", i)))); got != want {
			t.Errorf("run-%d has %d events, want %d", i, got, want)
		}
	}
}

func ttlBounds(t harness.T, e *harness.Env) {
	lease := seedDrivenRun(t, e, "run")
	var tries []overLimit
	for _, ttl := range []time.Duration{0, -time.Second, runstore.MinTTL - 1, runstore.MaxTTL + 1, time.Hour, 1<<63 - 1, -1 << 63} {
		add := func(what string, f func() error) {
			for _, limit := range []time.Duration{runstore.MinTTL, runstore.MaxTTL} {
				tries = append(tries, overLimit{fmt.Sprintf("%s for %v", what, ttl), runstore.ErrInvalid, "ttl", limit.String(), f})
			}
		}
		add("acquire", func() error {
			req := kit.Preempting("run", "a", "test")
			req.TTL = ttl
			_, err := e.Store.AcquireLease(t.Context(), req)
			return err
		})
		add("create", func() error {
			spec := kit.WithLease("other", "a")
			spec.Lease.TTL = ttl
			_, err := e.Store.CreateRun(t.Context(), spec)
			return err
		})
		add("renewal", func() error { return kit.Renew(t, e.Store, lease, ttl) })
	}
	refuseAll(t, e, "run", tries)
	for _, ttl := range []time.Duration{runstore.MinTTL, runstore.MaxTTL} {
		req := kit.Preempting("run", "a", "test")
		req.TTL = ttl
		got := kit.MustAcquire(t, e.Store, req)
		if err := kit.Renew(t, e.Store, got, runstore.MaxTTL); err != nil {
			t.Errorf("renewal of a lease of %v for %v: %v", ttl, runstore.MaxTTL, err)
		}
	}
}

func timeBounds(t harness.T, e *harness.Env) {
	lease := seedDrivenRun(t, e, "run")
	const century = 100 * 365 * 24 * time.Hour
	first, last := runstore.FromMicros(1), runstore.EndOfTime
	var tries []overLimit
	for what, when := range map[string]runstore.When{
		"1970 itself": runstore.At(time.Unix(0, 0)), "before 1970": runstore.At(time.Unix(-1, 0)),
		"the zero time": runstore.At(time.Time{}), "after the end of time": runstore.At(last.Add(time.Microsecond)),
		"a negative delay": runstore.After(-1), "a delay of more than a century": runstore.After(century + 1),
	} {
		tries = append(tries,
			overLimit{"runnable at " + what, runstore.ErrInvalid, "runnable", "limits are",
				commitFunc(t, e.Store, lease, func(b *runstore.Batch) { b.Runnable = when })},
			overLimit{"a place at " + what, runstore.ErrInvalid, "records[0].index[0].at", "limits are",
				commitFunc(t, e.Store, lease, func(b *runstore.Batch) { b.Put("good", nil, runstore.Place{Index: "queue", At: when}) })},
			overLimit{"a new run, runnable at " + what, runstore.ErrInvalid, "runnable", "limits are", func() error {
				_, err := e.Store.CreateRun(t.Context(), runstore.RunSpec{ID: "other", Runnable: when})
				return err
			}})
	}
	for what, when := range map[string]runstore.When{"no time": {}, "never": runstore.Never()} {
		tries = append(tries, overLimit{"a place at " + what, runstore.ErrInvalid, "records[0].index[0].at", "missing",
			commitFunc(t, e.Store, lease, func(b *runstore.Batch) { b.Put("good", nil, runstore.Place{Index: "queue", At: when}) })})
	}
	for _, until := range []time.Time{time.Unix(0, 0), last.Add(time.Microsecond)} {
		tries = append(tries, overLimit{fmt.Sprintf("a scan until %v", until), runstore.ErrInvalid, "until", "limits are", func() error {
			_, err := e.Store.ScanIndex(t.Context(), runstore.IndexQuery{Index: "queue", Until: until, Limit: 1})
			return err
		}}, overLimit{fmt.Sprintf("a scan from %v", until), runstore.ErrInvalid, "from", "limits are", func() error {
			_, err := e.Store.ScanIndex(t.Context(), runstore.IndexQuery{Index: "queue", From: until, Limit: 1})
			return err
		}})
	}
	refuseAll(t, e, "run", tries)

	for _, at := range []time.Time{first, last} {
		b := kit.Appending(lease, "work")
		b.Runnable = runstore.At(at)
		b.Put("edge", nil, runstore.Place{Index: "edge", At: runstore.At(at)})
		kit.MustApply(t, e.Store, "a batch at the edge of time", b)
		if got := e.Get(t, "run").RunnableAt; !got.Equal(at) {
			t.Errorf("runnable at %v: got %v", at, got)
		}
		entries, err := e.Store.ScanIndex(t.Context(), runstore.IndexQuery{Index: "edge", From: at, Until: at, Limit: 10})
		if err != nil || len(entries) != 1 || !entries[0].At.Equal(at) {
			t.Errorf("a scan until %v: %d entries, error %v; want the one placed then", at, len(entries), err)
		}
	}
	b := kit.Appending(lease, "work")
	b.Runnable = runstore.After(century)
	done := kit.MustApply(t, e.Store, "a batch for the next century", b)
	if got, want := e.Get(t, "run").RunnableAt, done.Time.Add(century); !got.Equal(want) {
		t.Errorf("runnable in a century: got %v, want %v", got, want)
	}
}

func readBounds(t harness.T, e *harness.Env) {
	lease := seedDrivenRun(t, e, "run")
	ctx := t.Context()
	var tries []overLimit
	for _, limit := range []int{0, -1, runstore.MaxPage + 1, 1 << 62} {
		add := func(what string, f func() error) {
			tries = append(tries, overLimit{fmt.Sprintf("%s with limit %d", what, limit), runstore.ErrInvalid, "limit", fmt.Sprint(runstore.MaxPage), f})
		}
		add("a journal", func() error { _, err := e.Store.ReadJournal(ctx, "run", 1, limit); return err })
		add("records", func() error {
			_, err := e.Store.ReadRecords(ctx, "run", runstore.RecordQuery{Limit: limit})
			return err
		})
		add("a scan", func() error {
			_, err := e.Store.ScanIndex(ctx, runstore.IndexQuery{Index: "queue", Limit: limit})
			return err
		})
		add("the feed", func() error { _, err := e.Store.ReadFeed(ctx, runstore.FeedQuery{Limit: limit}); return err })
	}
	exact := func(q runstore.RecordQuery) func() error {
		q.Keys = []runstore.RecordKey{"record"}
		return func() error { _, err := e.Store.ReadRecords(ctx, "run", q); return err }
	}
	tries = append(tries,
		overLimit{"a journal from a negative seq", runstore.ErrInvalid, "from", "-1", func() error { _, err := e.Store.ReadJournal(ctx, "run", -1, 1); return err }},
		overLimit{"the feed after a negative position", runstore.ErrInvalid, "after", "-1", func() error { _, err := e.Store.ReadFeed(ctx, runstore.FeedQuery{After: -1, Limit: 1}); return err }},
		overLimit{"the feed after a position that no store gives", runstore.ErrInvalid, "after", fmt.Sprint(runstore.MaxPosition), func() error {
			_, err := e.Store.ReadFeed(ctx, runstore.FeedQuery{After: runstore.MaxPosition + 1, Limit: 1})
			return err
		}},
		overLimit{"the newest events behind a position", runstore.ErrInvalid, "after", "newest", func() error {
			_, err := e.Store.ReadFeed(ctx, runstore.FeedQuery{After: 1, Newest: true, Limit: 1})
			return err
		}},
		overLimit{"exact keys with a limit", runstore.ErrInvalid, "keys", "limit", exact(runstore.RecordQuery{Limit: 1})},
		overLimit{"exact keys with a prefix", runstore.ErrInvalid, "keys", "prefix", exact(runstore.RecordQuery{Prefix: "r"})},
		overLimit{"exact keys with a key to resume after", runstore.ErrInvalid, "keys", "after", exact(runstore.RecordQuery{After: "a"})},
	)
	refuseAll(t, e, "run", tries)
	for _, limit := range []int{1, runstore.MaxPage} {
		events, err1 := e.Store.ReadJournal(ctx, "run", 0, limit)
		records, err2 := e.Store.ReadRecords(ctx, "run", runstore.RecordQuery{Limit: limit})
		entries, err3 := e.Store.ScanIndex(ctx, runstore.IndexQuery{Index: "queue", Until: runstore.EndOfTime, Limit: limit})
		_, err4 := e.Store.ReadFeed(ctx, runstore.FeedQuery{Limit: limit})
		if err1 != nil || err2 != nil || err3 != nil || err4 != nil || len(events) != 1 || len(records) != 1 || len(entries) != 1 {
			t.Errorf("reads with limit %d: %d events, %d records, %d entries, errors %v, %v, %v, %v; want one of each",
				limit, len(events), len(records), len(entries), err1, err2, err3, err4)
		}
	}
	e.Append(t, e.Store, lease, "the run is usable")
}

func malformedBatches(t harness.T, e *harness.Env) {
	lease := seedDrivenRun(t, e, "run")
	other := seedDrivenRun(t, e, "other")
	former := runstore.Lease{Run: "run", Owner: lease.Owner, Token: lease.Token, Grant: runstore.NewGrantID()}.Fence()
	status := runstore.Status(1)
	commit := func(b runstore.Batch, fill func(b *runstore.Batch)) func() error {
		return func() error {
			fill(&b)
			_, err := e.Store.Commit(t.Context(), b)
			return err
		}
	}
	appends := func(b *runstore.Batch) { b.Append("test", nil) }
	after := runstore.After(0)
	invalid := func(what, field, says string, f func() error) overLimit {
		return overLimit{what, runstore.ErrInvalid, field, says, f}
	}
	fenced := func(what, field, says string, fill func(b *runstore.Batch)) overLimit {
		return invalid(what, field, says, commitFunc(t, e.Store, lease, fill))
	}
	refuseAll(t, e, "run", []overLimit{
		invalid("no guard", "guards", "at least one guard", commit(runstore.NewBatch("run", runstore.Fence{}), appends)),
		invalid("no guard, zero batch", "run id", "256", commit(runstore.Batch{}, appends)),
		invalid("no guard, and no reason why", "guards", "at least one guard", commit(runstore.NewBatch("run", runstore.Unguarded("")), appends)),
		invalid("a fence and Unguarded", "guards", "Unguarded", commit(runstore.NewBatch("run", lease.Fence(), runstore.Unguarded("test")), appends)),
		invalid("a version and Unguarded", "guards", "Unguarded", commit(runstore.NewBatch("run", runstore.Unguarded("test"), runstore.AtVersion("record", 1)), appends)),
		invalid("the fence of another run", "fence", "another run", commit(runstore.NewBatch("run", other.Fence()), appends)),
		fenced("a negative token", "guards: token", "-1", func(b *runstore.Batch) { b.Require(runstore.AtToken(-1)); appends(b) }),
		fenced("a negative seq", "guards: seq", "-1", func(b *runstore.Batch) { b.Require(runstore.AtSeq(-1)); appends(b) }),
		fenced("a key guarded twice", "guards: versions[1]", "twice", func(b *runstore.Batch) {
			b.Require(runstore.AtVersion("record", 1), runstore.AtVersion("record", 1))
			appends(b)
		}),
		fenced("two fences", "guards: fence", "twice", func(b *runstore.Batch) { b.Require(former); appends(b) }),
		invalid("two fences, the current one last", "guards: fence", "twice", commit(runstore.NewBatch("run", former, lease.Fence()), appends)),
		fenced("two tokens", "guards: token", "twice", func(b *runstore.Batch) { b.Require(runstore.AtToken(0), runstore.AtToken(lease.Token)); appends(b) }),
		fenced("two seqs", "guards: seq", "twice", func(b *runstore.Batch) { b.Require(runstore.AtSeq(77), runstore.AtSeq(2)); appends(b) }),
		fenced("two sets of statuses", "guards: status", "twice", func(b *runstore.Batch) {
			b.Require(runstore.InStatus(7), runstore.InStatus(0))
			appends(b)
		}),
		fenced("a key put twice", "records[1].key", "twice", func(b *runstore.Batch) { b.Put("k", nil); b.Put("k", nil) }),
		fenced("a key put and deleted", "records[1].key", "twice", func(b *runstore.Batch) { b.Put("k", nil); b.Delete("k") }),
		fenced("an event out of range", "records[0].event", "1", func(b *runstore.Batch) { appends(b); b.Put("k", nil); b.Records[0].Event = 1 }),
		fenced("a negative event", "records[0].event", "-1", func(b *runstore.Batch) { appends(b); b.Put("k", nil); b.Records[0].Event = -1 }),
		fenced("an event of none", "records[0].event", "1", func(b *runstore.Batch) { b.Put("k", nil); b.Records[0].Event = 1 }),
		fenced("a deletion with a value", "records[0]", "deleted", func(b *runstore.Batch) { b.Delete("k"); b.Records[0].Value = []byte("v") }),
		fenced("a deletion with a place", "records[0]", "deleted", func(b *runstore.Batch) {
			b.Delete("k")
			b.Records[0].Index = []runstore.Place{{Index: "queue", At: after}}
		}),
		fenced("an index named twice", "records[0].index[1]", "twice", func(b *runstore.Batch) {
			b.Put("k", nil, runstore.Place{Index: "queue", At: after}, runstore.Place{Index: "queue", At: after})
		}),
		fenced("a place in the index of runs", "records[0].index[0]", "kept by the store", func(b *runstore.Batch) {
			b.Put("k", nil, runstore.Place{Index: runstore.IndexRuns, At: after})
		}),
		fenced("a place in the index of runnable runs", "records[0].index[0]", "kept by the store", func(b *runstore.Batch) {
			b.Put("k", nil, runstore.Place{Index: runstore.IndexRunnable, At: after})
		}),
		fenced("a purge with an event", "purge", "no other write", func(b *runstore.Batch) { b.Purge = true; appends(b) }),
		fenced("a purge with a record", "purge", "no other write", func(b *runstore.Batch) { b.Purge = true; b.Put("k", nil) }),
		fenced("a purge with a status", "purge", "no other write", func(b *runstore.Batch) { b.Purge = true; b.Status = &status }),
		fenced("a purge with a runnable time", "purge", "no other write", func(b *runstore.Batch) { b.Purge = true; b.Runnable = after }),
	})
	e.Append(t, e.Store, lease, "the run is usable")
}

func malformedRequests(t harness.T, e *harness.Env) {
	lease := seedDrivenRun(t, e, "run")
	other := seedDrivenRun(t, e, "other")
	status := runstore.Status(1)
	var tries []overLimit
	create := func(what, field, says string, fill func(s *runstore.RunSpec)) {
		tries = append(tries, overLimit{"a create with " + what, runstore.ErrInvalid, field, says, func() error {
			spec := kit.WithLease("new", "a")
			fill(&spec)
			_, err := e.Store.CreateRun(t.Context(), spec)
			return err
		}})
	}
	create("a release", "writes", "events and records only", func(s *runstore.RunSpec) { s.Writes.Release = true })
	create("a purge", "writes", "events and records only", func(s *runstore.RunSpec) { s.Writes.Purge = true })
	create("a status to write", "writes", "fields of the spec", func(s *runstore.RunSpec) { s.Writes.Status = &status })
	create("a runnable time to write", "writes", "fields of the spec", func(s *runstore.RunSpec) { s.Writes.Runnable = runstore.After(0) })
	create("an event without a kind", "events[0].kind", "128", func(s *runstore.RunSpec) { s.Writes.Append("", nil) })
	grant := func(what, field, says string, fill func(r *runstore.AcquireRequest)) {
		tries = append(tries, overLimit{"an acquire with " + what, runstore.ErrInvalid, field, says, func() error {
			req := kit.Preempting("run", "a", "test")
			fill(&req)
			_, err := e.Store.AcquireLease(t.Context(), req)
			return err
		}})
	}
	grant("a fence and a preempt", "preempt", "no fence", func(r *runstore.AcquireRequest) { r.Guards = []runstore.Guard{lease.Fence()} })
	grant("the fence of another run", "fence", "another run", func(r *runstore.AcquireRequest) {
		r.Preempt, r.Guards = "", []runstore.Guard{other.Fence()}
	})
	grant("a negative token", "guards: token", "-1", func(r *runstore.AcquireRequest) { r.Guards = []runstore.Guard{runstore.AtToken(-1)} })
	grant("Unguarded", "guards", "Unguarded", func(r *runstore.AcquireRequest) { r.Guards = []runstore.Guard{runstore.Unguarded("test")} })
	for _, stall := range []time.Duration{-1, time.Microsecond, runstore.MaxMaxStall + 1} {
		grant(fmt.Sprintf("a stall of %v", stall), "max stall", "limits are", func(r *runstore.AcquireRequest) { r.MaxStall = stall })
	}
	grant("a release", "writes", "release", func(r *runstore.AcquireRequest) { r.Writes.Release = true })
	grant("a purge", "writes", "purge", func(r *runstore.AcquireRequest) { r.Writes.Purge = true })
	grant("a record written twice", "records[1].key", "twice", func(r *runstore.AcquireRequest) { r.Writes.Put("k", nil); r.Writes.Put("k", nil) })
	back := func(what, field, says string, fill func(r *runstore.ReleaseRequest)) {
		tries = append(tries, overLimit{"a release with " + what, runstore.ErrInvalid, field, says, func() error {
			req := runstore.ReleaseRequest{Fence: lease.Fence()}
			fill(&req)
			_, err := e.Store.ReleaseLease(t.Context(), req)
			return err
		}})
	}
	renewing := func(what, field, says string, fill func(r *runstore.RenewRequest)) {
		tries = append(tries, overLimit{"a renewal with " + what, runstore.ErrInvalid, field, says, func() error {
			req := runstore.RenewRequest{Fence: lease.Fence(), TTL: harness.TTL}
			fill(&req)
			_, err := e.Store.RenewLease(t.Context(), req)
			return err
		}})
	}
	renewing("a release", "writes", "release", func(r *runstore.RenewRequest) { r.Writes.Release = true })
	renewing("a purge", "writes", "purge", func(r *runstore.RenewRequest) { r.Writes.Purge = true })
	renewing("an event without a kind", "events[0].kind", "128", func(r *runstore.RenewRequest) { r.Writes.Append("", nil) })
	renewing("an id and no writes", "batch id", "writes", func(r *runstore.RenewRequest) { r.ID = "id" })
	back("no fence", "fence", "missing", func(r *runstore.ReleaseRequest) { r.Fence = runstore.Fence{} })
	back("a fence among its guards", "guards", "no other fence", func(r *runstore.ReleaseRequest) { r.Guards = []runstore.Guard{lease.Fence()} })
	back("Unguarded", "guards", "Unguarded", func(r *runstore.ReleaseRequest) { r.Guards = []runstore.Guard{runstore.Unguarded("test")} })
	back("a negative token", "guards: token", "-1", func(r *runstore.ReleaseRequest) { r.Guards = []runstore.Guard{runstore.AtToken(-1)} })
	back("a purge", "writes", "purge", func(r *runstore.ReleaseRequest) { r.Writes.Purge = true })
	back("an event without a kind", "events[0].kind", "128", func(r *runstore.ReleaseRequest) { r.Writes.Append("", nil) })
	nothing := lease
	nothing.Token = 0
	negative := lease
	negative.Token = -1
	tries = append(tries,
		overLimit{"a renewal with no fence", runstore.ErrInvalid, "fence", "missing", func() error { return kit.Renew(t, e.Store, runstore.Lease{}, harness.TTL) }},
		overLimit{"a renewal under token 0", runstore.ErrInvalid, "fence", "positive", func() error { return kit.Renew(t, e.Store, nothing, harness.TTL) }},
		overLimit{"a commit under token -1", runstore.ErrInvalid, "fence", "positive", func() error { return commitOnly(t, e.Store, negative) }},
		overLimit{"a release under token 0", runstore.ErrInvalid, "fence", "positive", func() error { return kit.Release(t, e.Store, nothing) }},
	)
	refuseAll(t, e, "run", tries)
	e.Append(t, e.Store, lease, "the run is usable")
}
