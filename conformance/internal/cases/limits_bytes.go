package cases

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"github.com/tapestore/tapestore/conformance/harness"
	"github.com/tapestore/tapestore/conformance/internal/kit"
	"github.com/tapestore/tapestore/runstore"
)

// oddNames returns names that some engine would cut, fold, escape, order or match wrongly: every
// byte value, prefixes of each other, and characters that SQL, paths, regular expressions and text
// encodings treat specially.
func oddNames() []string {
	return []string{
		"a", "a\x00", "a\x00b", "a\x00\x00", "ab", "a\xff", "a\xff\xff", "a\xffb", "b",
		"\x00", "\x00\x00", "\x00a", "\x01", "\x7f", "\x80", "\xfe", "\xff", "\xff\xff", "\xff\xfe",
		"A", "a ", " a", " ", "\t", "\n", "a\n", "\r\n", "\ufeffa", "\u200ba",
		"é", "e\u0301", "É", "ß", "ss", "ſ", "İ", "i", "日本語", "😀", "👩‍🚀", "\u202eabc", "\xed\xa0\x80", "\xc0\x80", "é"[:1],
		"../a", "..", ".", "/", "a/b", "a//b", "a/", "/a", `\`, `a\`, `\\`, `C:\a`, "a%2Fb", "a%00b",
		"%", "a%", "%a", "_", "a_", "*", "a*", "?", ".*", "^a$", "[a]", "(a", "a|b", "\\C*", "\\x00", "$1", "{0}", "${a}",
		"'", "''", `"`, "`", "'; DROP TABLE runs; --", "--", "/*", ";", "NULL", "null", "\\N", "true", "0", "00", "1", "01", "1.0", "1e0", "-1", "+1",
		"#", "a#b", ":", "a:b", "a,b", "=", "&", "@", "~", "!", "<a>", "\x1b[31m",
		"run", "runs", "runnable", "queue", "lease", "head",
	}
}

// allBytes returns every byte value once.
func allBytes() []byte {
	b := make([]byte, 256)
	for i := range b {
		b[i] = byte(i)
	}
	return b
}

func emptyPayloads(t harness.T, e *harness.Env) {
	lease := seedDrivenRun(t, e, "run")
	for i, empty := range [][]byte{nil, {}} {
		b := runstore.NewBatch("run", lease.Fence())
		b.Append("empty", empty)
		key := runstore.RecordKey(fmt.Sprintf("empty-%d", i))
		b.Put(key, empty, runstore.Place{Index: "empties", At: runstore.After(0)})
		b.Put(runstore.SummaryKey, empty)
		kit.MustApply(t, e.Store, "a batch of empty payloads", b)
		events := kit.Journal(t, e.Store, "run")
		if last := events[len(events)-1]; last.Kind != "empty" || len(last.Data) != 0 {
			t.Errorf("an empty event came back as %q with %q", last.Kind, last.Data)
		}
		records, err := e.Store.ReadRecords(t.Context(), "run", runstore.RecordQuery{Keys: []runstore.RecordKey{key}})
		if err != nil || len(records) != 1 || len(records[0].Value) != 0 || records[0].Version != 1 {
			t.Errorf("an empty record came back as %+v, error %v; want it there, empty, at version 1", records, err)
		}
		if run := e.Get(t, "run"); run.Summary.Version != runstore.Version(i+1) || len(run.Summary.Value) != 0 {
			t.Errorf("an empty summary came back as %q v%d, want it empty at version %d", run.Summary.Value, run.Summary.Version, i+1)
		}
		entries, err := e.Store.ScanIndex(t.Context(), runstore.IndexQuery{Index: "empties", Until: runstore.EndOfTime, Limit: 10})
		if err != nil || len(entries) != i+1 {
			t.Errorf("%d empty records were placed, the scan found %d, error %v", i+1, len(entries), err)
		}
	}
	// Emptying a record is no deletion.
	b := runstore.NewBatch("run", lease.Fence(), runstore.AtVersion("record", 1))
	b.Put("record", nil)
	done := kit.MustApply(t, e.Store, "emptying a record", b)
	if done.Versions[0] != 2 {
		t.Errorf("emptying a record gave version %d, want 2", done.Versions[0])
	}
	// A batch that changes nothing is still judged by its guards.
	empty := runstore.NewBatch("run", lease.Fence(), runstore.AtVersion("record", 2))
	before := kit.Dump(t, e.Store, "run", "queue", "empties")
	if done := kit.MustApply(t, e.Store, "an empty batch", empty); done.FirstSeq != 0 || done.LastSeq != 3 {
		t.Errorf("an empty batch gave %+v, want first seq 0, last seq 3", done)
	}
	empty.Require(runstore.AtSeq(99))
	_, err := e.Store.Commit(t.Context(), empty)
	harness.Refused(t, "an empty batch with a guard that fails", err, runstore.ErrConflict)
	kit.CheckUnchanged(t, "an empty batch", before, kit.Dump(t, e.Store, "run", "queue", "empties"))
}

func anyByte(t harness.T, e *harness.Env) {
	lease := seedDrivenRun(t, e, "run")
	payloads := [][]byte{allBytes(), bytes.Repeat([]byte{0}, 1000), bytes.Repeat([]byte{0xff}, 1000), payload(70_000)}
	for _, name := range oddNames() {
		payloads = append(payloads, []byte(name))
	}
	b := runstore.NewBatch("run", lease.Fence())
	for i, p := range payloads {
		b.Append("test", p)
		b.Put(runstore.RecordKey(fmt.Sprintf("odd-%03d", i)), p)
	}
	kit.MustApply(t, e.Store, "a batch of odd payloads", b)
	for i, event := range kit.Journal(t, e.Store, "run")[1:] {
		if !bytes.Equal(event.Data, payloads[i]) {
			t.Errorf("event %d: wrote %q, read %q", event.Seq, payloads[i], event.Data)
		}
	}
	records, err := e.Store.ReadRecords(t.Context(), "run", runstore.RecordQuery{Prefix: "odd-", Limit: runstore.MaxPage})
	if err != nil || len(records) != len(payloads) {
		t.Fatalf("%d records, error %v; want %d", len(records), err, len(payloads))
	}
	for i, r := range records {
		if !bytes.Equal(r.Value, payloads[i]) {
			t.Errorf("record %q: wrote %q, read %q", r.Key, payloads[i], r.Value)
		}
	}
}

func oddRunIDs(t harness.T, e *harness.Env) {
	names := append(oddNames(), string(allBytes()))
	for i, name := range names {
		spec := kit.WithLease(runstore.RunID(name), "holder")
		spec.Status = runstore.Status(i)
		spec.Writes.Append("test", []byte(name))
		spec.Writes.Put("record", []byte(name), runstore.Place{Index: "queue", At: runstore.After(0)})
		created, err := e.Store.CreateRun(t.Context(), spec)
		if err != nil || !created.New || created.Lease.Token != 1 {
			t.Fatalf("create %q: new %t, token %v, error %v; is it taken for another?", name, created.New, created.Lease.Token, err)
		}
	}
	listed := func(index runstore.IndexName) []string {
		var all []string
		for entry, err := range runstore.Entries(t.Context(), e.Store, runstore.IndexQuery{Index: index, Until: runstore.EndOfTime, Limit: 7}) {
			if err != nil {
				t.Fatalf("scan: %v", err)
			}
			if index == "queue" && string(entry.Record.Value) != string(entry.Run) {
				t.Errorf("the entry of %q carries the record of %q", entry.Run, entry.Record.Value)
			}
			all = append(all, string(entry.Run))
		}
		slices.Sort(all)
		return all
	}
	check := func(names []string) {
		t.Helper()
		want := slices.Sorted(slices.Values(names))
		for _, index := range []runstore.IndexName{runstore.IndexRuns, "queue"} {
			if got := listed(index); !slices.Equal(got, want) {
				t.Errorf("index %q lists %q, want %q", index, got, want)
			}
		}
		for _, name := range names {
			id := runstore.RunID(name)
			if run := e.Get(t, id); run.ID != id || run.LastSeq != 1 || run.Holder.Owner != "holder" {
				t.Errorf("get %q: got %q, seq %d, holder %q", name, run.ID, run.LastSeq, run.Holder.Owner)
			}
			if events := kit.Journal(t, e.Store, id); len(events) != 1 || string(events[0].Data) != name {
				t.Errorf("the journal of %q is %s", name, kit.JournalText(events))
			}
			records, err := e.Store.ReadRecords(t.Context(), id, runstore.RecordQuery{Limit: 10})
			if err != nil || len(records) != 1 || string(records[0].Value) != name {
				t.Errorf("the records of %q: %+v, error %v", name, records, err)
			}
		}
	}
	check(names)
	var kept []string
	for i, name := range names {
		if i%2 == 0 {
			kept = append(kept, name)
			continue
		}
		b := runstore.NewBatch(runstore.RunID(name), runstore.InStatus(runstore.Status(i)))
		b.Purge = true
		kit.MustApply(t, e.Store, fmt.Sprintf("purge of %q", name), b)
	}
	check(kept)
}

func oddRecordKeys(t harness.T, e *harness.Env) {
	lease := seedDrivenRun(t, e, "run")
	neighbour := seedDrivenRun(t, e, "run\x00")
	names := append(oddNames(), string(allBytes()))
	b := runstore.NewBatch("run", lease.Fence())
	for _, name := range names {
		b.Put(runstore.RecordKey(name), []byte(name))
		b.Require(runstore.AtVersion(runstore.RecordKey(name), 0))
	}
	kit.MustApply(t, e.Store, "a batch of odd keys", b)
	all := slices.Sorted(slices.Values(append(names, "record")))
	for _, name := range names {
		key := runstore.RecordKey(name)
		records, err := e.Store.ReadRecords(t.Context(), "run", runstore.RecordQuery{Keys: []runstore.RecordKey{key}})
		if err != nil || len(records) != 1 || records[0].Key != key || string(records[0].Value) != name || records[0].Version != 1 {
			t.Errorf("record %q: got %+v, error %v", name, records, err)
		}
	}
	for _, prefix := range append([]string{""}, names...) {
		var got, want []string
		for q := (runstore.RecordQuery{Prefix: runstore.RecordKey(prefix), Limit: 3}); ; {
			page, err := e.Store.ReadRecords(t.Context(), "run", q)
			if err != nil {
				t.Fatalf("prefix %q: %v", prefix, err)
			}
			if len(page) == 0 {
				break
			}
			for _, r := range page {
				got = append(got, string(r.Key))
			}
			q.After = page[len(page)-1].Key
		}
		for _, name := range all {
			if strings.HasPrefix(name, prefix) {
				want = append(want, name)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("prefix %q: got %q, want %q", prefix, got, want)
		}
	}
	// A deletion touches no other record, in this run or its neighbour.
	b = runstore.NewBatch("run", lease.Fence())
	var kept []string
	for i, name := range names {
		if i%2 == 0 {
			b.Require(runstore.AtVersion(runstore.RecordKey(name), 1))
			b.Delete(runstore.RecordKey(name))
		} else {
			kept = append(kept, name)
		}
	}
	kit.MustApply(t, e.Store, "deleting every other key", b)
	kept = append(kept, "record")
	slices.Sort(kept)
	var got []string
	for r, err := range runstore.Records(t.Context(), e.Store, "run", "") {
		if err != nil {
			t.Fatalf("records: %v", err)
		}
		got = append(got, string(r.Key))
	}
	if !slices.Equal(got, kept) {
		t.Errorf("after deleting every other key: got %q, want %q", got, kept)
	}
	records, err := e.Store.ReadRecords(t.Context(), neighbour.Run, runstore.RecordQuery{Limit: 10})
	if err != nil || len(records) != 1 {
		t.Errorf("the neighbour has %d records, error %v; want 1", len(records), err)
	}
}

func oddIndexNames(t harness.T, e *harness.Env) {
	lease := seedDrivenRun(t, e, "run")
	names := append(oddNames(), string(allBytes()))
	names = slices.DeleteFunc(names, func(name string) bool { // names that are in use already
		return name == string(runstore.IndexRuns) || name == string(runstore.IndexRunnable) || name == "queue"
	})
	b := runstore.NewBatch("run", lease.Fence())
	for i, name := range names {
		b.Put(runstore.RecordKey(fmt.Sprintf("record-%d", i)), []byte(name), runstore.Place{Index: runstore.IndexName(name), At: runstore.After(0)})
	}
	kit.MustApply(t, e.Store, "a batch of odd index names", b)
	check := func(removed func(i int) bool) {
		t.Helper()
		for i, name := range names {
			entries, err := e.Store.ScanIndex(t.Context(), runstore.IndexQuery{Index: runstore.IndexName(name), Until: runstore.EndOfTime, Limit: 10})
			want := 1
			if removed(i) {
				want = 0
			}
			if err != nil || len(entries) != want || want == 1 && string(entries[0].Record.Value) != name {
				t.Errorf("index %q: got %+v, error %v; want %d entries, its own", name, entries, err, want)
			}
		}
	}
	check(func(int) bool { return false })
	b = runstore.NewBatch("run", lease.Fence())
	for i := range names {
		if i%2 == 0 {
			b.Delete(runstore.RecordKey(fmt.Sprintf("record-%d", i)))
		}
	}
	kit.MustApply(t, e.Store, "emptying every other index", b)
	check(func(i int) bool { return i%2 == 0 })
}

func oddOwners(t harness.T, e *harness.Env) {
	e.Create(t, "run")
	var last runstore.Lease
	var seen []string
	for i, name := range append(oddNames(), string(allBytes()[:runstore.MaxGrantID])) {
		req := kit.Preempting("run", runstore.Owner(name), name)
		req.Reactor, req.Grant = runstore.Reactor(name), runstore.GrantID(name)
		lease := kit.MustAcquire(t, e.Store, req)
		if lease.Token != runstore.Token(i+1) || lease.Owner != req.Owner || lease.Reactor != req.Reactor || lease.Grant != req.Grant {
			t.Fatalf("asked for %q, got %+v under token %v, want %v", name, lease, lease.Token, i+1)
		}
		run := e.Get(t, "run")
		if want := (runstore.Preempted{From: last.Owner, Reason: name}); i > 0 && run.Holder.Preempted != want {
			t.Errorf("preempted %+v, want %+v", run.Holder.Preempted, want)
		}
		if run.Holder.Owner != req.Owner || run.Holder.Reactor != req.Reactor {
			t.Errorf("the run shows the holder %s, want %q", kit.HolderText(run.Holder), name)
		}
		if i > 0 {
			kit.CheckFenced(t, "the grant before", commitOnly(t, e.Store, last), last, run)
		}
		b := runstore.NewBatch("run", lease.Fence())
		b.ID = runstore.BatchID(name)
		b.Append(name, []byte(name))
		if done := kit.MustApply(t, e.Store, "commit", b); done.Replayed {
			t.Errorf("a batch of id %q was taken for one of %q", name, seen)
		}
		if done := kit.MustApply(t, e.Store, "its repeat", b); !done.Replayed {
			t.Errorf("the repeat of batch id %q was not recognised", name)
		}
		seen, last = append(seen, name), lease
	}
	for i, event := range kit.Journal(t, e.Store, "run") {
		if event.Kind != seen[i] || string(event.Owner) != seen[i] || string(event.Data) != seen[i] {
			t.Errorf("event %d is of kind %q by %q, want %q", event.Seq, event.Kind, event.Owner, seen[i])
		}
	}
}

func largestEverywhere(t harness.T, e *harness.Env) {
	value, event := payload(runstore.MaxRecordValue), payload(runstore.MaxEventData)
	var w runstore.Writes
	w.Put(runstore.SummaryKey, value, runstore.Place{Index: "large", At: runstore.After(0)})
	w.Append("large", event)
	if _, err := e.Store.CreateRun(t.Context(), runstore.RunSpec{ID: "run", Runnable: runstore.After(0), Writes: w}); err != nil {
		t.Fatalf("create: %v", err)
	}
	same := func(what string, got, want []byte) {
		t.Helper()
		if !bytes.Equal(got, want) {
			t.Errorf("%s: %d bytes came back changed, want the %d that were written", what, len(got), len(want))
		}
	}
	for name, s := range map[string]runstore.RunStore{"its writer": e.Store, "another handle": e.Reopen(t)} {
		run, err := s.GetRun(t.Context(), "run")
		if err != nil {
			t.Fatalf("%s: get the run: %v", name, err)
		}
		same(name+", the run's summary", run.Summary.Value, value)
		for _, index := range []runstore.IndexName{runstore.IndexRuns, runstore.IndexRunnable} {
			entries := kit.Queue(t, s, index)
			kit.Equal(t, fmt.Sprintf("%s: runs in %q", name, index), len(entries), 1)
			same(fmt.Sprintf("%s, the summary in %q", name, index), entries[0].Head.Summary.Value, value)
		}
		entries := kit.Queue(t, s, "large")
		kit.Equal(t, name+": entries", len(entries), 1)
		same(name+", a record in a queue", entries[0].Record.Value, value)
		same(name+", an event in the journal", kit.Journal(t, s, "run")[0].Data, event)
		same(name+", an event in the feed", kit.FeedOf(t, e, s, 1)[0].Data, event)
	}
}
