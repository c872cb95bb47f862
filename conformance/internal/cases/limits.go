package cases

import (
	"bytes"
	"errors"
	"fmt"
	"strings"

	"github.com/tapestore/tapestore/conformance/harness"
	"github.com/tapestore/tapestore/conformance/internal/kit"
	"github.com/tapestore/tapestore/runstore"
)

// Limits returns the cases that prove I12: input at each limit works, and input beyond it is
// refused before anything is written.
func Limits() []harness.Case {
	return []harness.Case{
		{Guarantee: "I12", Name: "longest-names-work", Run: longestNames, Doc: `
			Runs, owners, reactors, grants, batch ids, kinds, record keys and index names have the longest names
			allowed, of all byte values, in pairs that differ in the last byte. All come back unchanged, and no two
			are taken for one another. A store that cuts a name, or compares part of it, mixes two up.`},
		{Guarantee: "I12", Name: "names-beyond-the-limit-are-refused", Run: namesBeyond, Doc: `
			Each name of each request is one byte too long, or empty where a name is needed. The call is ErrTooLarge
			or ErrInvalid, names field and limit, and changes nothing. A store that cuts the name makes two runs into
			one; one that sends it on returns an engine's error.`},
		{Guarantee: "I12", Name: "largest-payloads-work", Run: largestPayloads, Doc: `
			A run gets the largest event, the largest record, and a batch of exactly the largest sum; one byte more
			is ErrTooLarge and changes nothing. Every byte comes back. A store whose engine has a smaller limit on a
			value, a statement or a request fails.`},
		{Guarantee: "I12", Name: "payloads-beyond-the-limit-are-refused", Run: payloadsBeyond, Doc: `
			A commit, a create, an acquire and a release carry an event, a record or a sum that is too large. Each is
			ErrTooLarge, names field and limit, and changes nothing; the lease stays as it was. A store that cuts the
			payload, or checks commits alone, fails.`},
		{Guarantee: "I12", Name: "largest-payloads-come-back-from-every-read", Run: largestEverywhere, Doc: `
			A run has the largest summary and the largest event, and two handles read it by every method that returns
			them: head, both indexes of runs, a queue, the journal and the feed. Every byte comes back. A store whose
			read builds a statement or page that is too large for the engine fails.`},
		{Guarantee: "I12", Name: "fullest-batch-works", Run: fullestBatch, Doc: `
			One batch has the most events, records, places and guards that are allowed. It applies, the largest page
			and the most exact keys read it back in order, and every queue holds every record. Batches with the most
			guards, before and after it, of which the first, a middle or the last one fails, are ErrConflict. A store
			whose statement has a smaller limit on parameters or mutations refuses the batch; one that compares only
			as many guards as its statement takes loses an update.`},
		{Guarantee: "I12", Name: "counts-beyond-the-limit-are-refused", Run: countsBeyond, Doc: `
			A batch has one event, record, guard, status, place or reserved record too many, and a read one key too
			many. Each is ErrTooLarge, names field and limit, and changes nothing. A store that checks none of these
			lets one engine accept what another refuses in the middle.`},
		{Guarantee: "I12", Name: "multi-run-commits-are-bounded", Needs: []harness.Need{harness.NeedMulti}, Run: multiBounds, Doc: `
			A CommitMulti has no batch, one too many, one run twice, or a malformed batch behind a good one. Each is
			ErrInvalid or ErrTooLarge, names the field, and changes nothing; the most batches allowed apply. A store
			that applies the good batch before it looks at the next fails.`},
		{Guarantee: "I12", Name: "ttl-is-bounded", Run: ttlBounds, Doc: `
			An acquire, a create and a renewal have a TTL out of range: zero, negative, just outside both ends, and
			the extremes of int64. Each is ErrInvalid with both limits and changes nothing; the shortest and longest
			TTLs work. A store that takes the nearest TTL in range gives a holder another lease than it asked for.`},
		{Guarantee: "I12", Name: "times-are-bounded", Run: timeBounds, Doc: `
			Runnable times, places and scan bounds lie outside the allowed range, or are missing. Each is ErrInvalid,
			names the field, and changes nothing; the first and last microsecond and a delay of a century are stored
			exactly. A store that wraps around, or rounds at the edge of its engine's range, fails.`},
		{Guarantee: "I12", Name: "reads-are-bounded", Run: readBounds, Doc: `
			Pages have a limit of zero, below zero, or above the largest; a seq or position is negative or out of
			range; exact keys come with a limit, prefix or cursor. Each read is ErrInvalid, names the field, and
			reads with limits of 1 and of the largest work. A store that takes 0 for no limit reads a whole journal
			into memory.`},
		{Guarantee: "I12", Name: "malformed-batches-are-refused", Run: malformedBatches, Doc: `
			Batches contradict themselves: no guard, Unguarded beside a guard, two guards of one kind, a key twice, an
			event out of range, a deletion with a value, a purge with other writes, a place in the store's own index.
			Each is ErrInvalid, names field and problem, and changes nothing. A store that takes a missing guard for
			Unguarded applies a batch without a fence, and one that checks only the last of two fences applies one
			under an ended grant.`},
		{Guarantee: "I12", Name: "malformed-requests-are-refused", Run: malformedRequests, Doc: `
			Creates, acquires, renewals and releases contradict themselves: writes that the request may not carry, no
			fence or two, another run's fence, a token that is not positive, a stall out of range. Each is
			ErrInvalid, names field and problem, and changes nothing. A store that checks batches alone accepts them.`},
		{Guarantee: "I12", Name: "empty-payloads-stay-empty", Run: emptyPayloads, Doc: `
			Events, records and the summary are empty, as nil and as an empty slice, and a batch has no writes. Each
			record is there with a version and its queue entry, emptying is no deletion, and the empty batch is
			judged by its guards and changes nothing. A store that takes empty for absent loses the record.`},
		{Guarantee: "I12", Name: "payloads-of-any-byte-come-back", Run: anyByte, Doc: `
			Events and records hold every byte value, runs of 0 and of 0xff, broken UTF-8, and texts that SQL and
			shells treat specially. Every byte comes back. A store that stores text, escapes wrongly, or ends a value
			at a zero byte changes a payload.`},
		{Guarantee: "I12", Name: "run-ids-of-any-byte-stay-apart", Run: oddRunIDs, Doc: `
			Runs are created under about a hundred awkward ids: zero bytes, prefixes of each other, other case, equal
			under Unicode, SQL and path syntax. Each is a run of its own in every read and index, and purging every
			second one touches no other. A store that folds, cuts or normalizes an id makes two runs into one.`},
		{Guarantee: "I12", Name: "record-keys-of-any-byte-stay-apart", Run: oddRecordKeys, Doc: `
			One run gets records under about a hundred awkward keys. Each is found by its key; each prefix finds
			exactly the keys that begin with it, in byte order and in pages; and deletions touch no other record or
			run. A store that matches a prefix by LIKE, or orders by a collation, finds others.`},
		{Guarantee: "I12", Name: "index-names-of-any-byte-stay-apart", Run: oddIndexNames, Doc: `
			Records are placed in indexes with about a hundred awkward names, and every second record is deleted.
			Each index holds its own record alone, and then none or its own. A store that folds or cuts the name of
			an index shows the entries of another.`},
		{Guarantee: "I12", Name: "owners-and-ids-of-any-byte-come-back", Run: oddOwners, Doc: `
			Awkward names serve as owner, reactor, grant id, reason, batch id and event kind of one grant after the
			other. Each comes back unchanged in lease, run, error and journal, a batch id is a replay of itself
			alone, and the grant before is ErrFenced. A store that normalizes such names mixes two up.`},
	}
}

// longName returns a name of n bytes of every value, which an engine that cuts names, escapes them
// or compares them as text would change. Two names with different last bytes differ only there.
func longName(n int, last byte) string {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(255 - i)
	}
	b[n-1] = last
	return string(b)
}

// payload returns n bytes without a short period.
func payload(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + i>>8*13 + i>>16*31)
	}
	return b
}

// overLimit is input that the store must refuse.
type overLimit struct {
	what  string
	kind  error
	field string
	// limit must appear in the error's message.
	limit string
	try   func() error
}

// refuseAll makes every attempt and fails the case unless each is refused with its field and limit,
// and the store is unchanged.
func refuseAll(t harness.T, e *harness.Env, id runstore.RunID, tries []overLimit) {
	t.Helper()
	state := func() string {
		text := kit.Dump(t, e.Store, id, "queue", runstore.IndexRuns, runstore.IndexRunnable)
		for entry, err := range runstore.Entries(t.Context(), e.Store, runstore.IndexQuery{Index: runstore.IndexRuns, Until: runstore.EndOfTime}) {
			if err != nil {
				t.Fatalf("scan: %v", err)
			}
			text += fmt.Sprintf("run %q token=%v until %v\n", entry.Run, entry.Head.Token, entry.Head.ExpiresAt)
		}
		return text
	}
	before := state()
	for _, b := range tries {
		err := b.try()
		var limit *runstore.InputError
		if !errors.As(err, &limit) || !errors.Is(err, b.kind) {
			t.Errorf("%s: got error %v, want %v as *InputError", b.what, shortError(err), b.kind)
			continue
		}
		if limit.Field != b.field || !strings.Contains(limit.Problem, b.limit) {
			t.Errorf("%s: the error names %q: %s; want the field %q and the limit %q", b.what, limit.Field, limit.Problem, b.field, b.limit)
		}
		if message := err.Error(); strings.Contains(message, "\n") || len(message) > 600 {
			t.Errorf("%s: the message has %d bytes or more than one line: %s", b.what, len(message), shortError(err))
		}
		if runstore.OutcomeOf(err) != runstore.NotApplied {
			t.Errorf("%s: the outcome is %v, want not applied", b.what, runstore.OutcomeOf(err))
		}
	}
	kit.CheckUnchanged(t, "refused input", before, state())
}

// shortError returns a short text of an error, so that messages about large input stay readable.
func shortError(err error) string {
	if err == nil {
		return "none"
	}
	if s := err.Error(); len(s) > 200 {
		return s[:200] + "…"
	}
	return err.Error()
}

// commitFunc returns a function that commits a batch under lease, filled by fill, and returns only
// the error.
func commitFunc(t harness.T, s runstore.RunStore, lease runstore.Lease, fill func(b *runstore.Batch)) func() error {
	return func() error {
		b := runstore.NewBatch(lease.Run, lease.Fence())
		fill(&b)
		_, err := s.Commit(t.Context(), b)
		return err
	}
}

// seedDrivenRun creates a run that holds some of every kind of state, and returns its live lease.
func seedDrivenRun(t harness.T, e *harness.Env, id runstore.RunID) runstore.Lease {
	t.Helper()
	e.Create(t, id)
	lease := e.Acquire(t, e.Store, id, "holder")
	b := kit.Appending(lease, "begun")
	b.Put("record", []byte("one"), runstore.Place{Index: "queue", At: runstore.After(0)})
	kit.MustApply(t, e.Store, "the first batch", b)
	return lease
}

func longestNames(t harness.T, e *harness.Env) {
	for _, last := range []byte{'a', 'b'} {
		id := runstore.RunID(longName(runstore.MaxRunID, last))
		if run := e.Create(t, id); run.ID != id || run.LastSeq != 0 {
			t.Errorf("created %q, seq %d; want %q, 0", run.ID, run.LastSeq, id)
		}
		req := kit.Acquiring(id, runstore.Owner(longName(runstore.MaxOwner, last)), harness.TTL)
		req.Reactor = runstore.Reactor(longName(runstore.MaxOwner, last+1))
		req.Grant = runstore.GrantID(longName(runstore.MaxGrantID, last))
		first := kit.MustAcquire(t, e.Store, req)
		if first.Owner != req.Owner || first.Reactor != req.Reactor || first.Grant != req.Grant {
			t.Errorf("asked for %+v, got %+v", req.LeaseSpec, first)
		}
		req.Preempt = longName(runstore.MaxOwner, last)
		req.Grant = runstore.GrantID(longName(runstore.MaxGrantID, last+1))
		lease := kit.MustAcquire(t, e.Store, req)
		run := e.Get(t, id)
		if want := (runstore.Preempted{From: first.Owner, Reason: req.Preempt}); run.Holder.Preempted != want || run.Holder.Owner != req.Owner || run.Holder.Reactor != req.Reactor {
			t.Errorf("the run shows the holder %+v, want %+v and preempted %+v", run.Holder, req.LeaseSpec, want)
		}
		kit.CheckFenced(t, "commit under a grant whose id differs in the last byte", commitOnly(t, e.Store, first), first, run)

		b := runstore.NewBatch(id, lease.Fence())
		b.ID = runstore.BatchID(longName(runstore.MaxGrantID, last))
		kind := longName(runstore.MaxKind, last)
		b.Append(kind, nil)
		index := runstore.IndexName(longName(runstore.MaxIndexName, last))
		keys := []runstore.RecordKey{runstore.RecordKey(longName(runstore.MaxRecordKey, 'a')), runstore.RecordKey(longName(runstore.MaxRecordKey, 'b'))}
		for _, key := range keys {
			b.Put(key, []byte(key[1023:]), runstore.Place{Index: index, At: runstore.After(0)})
		}
		kit.MustApply(t, e.Store, "a batch of the longest names", b)
		if done := kit.MustApply(t, e.Store, "its repeat", b); !done.Replayed {
			t.Errorf("a batch of a long id was not recognised")
		}
		other := kit.Appending(lease, "other")
		other.ID = runstore.BatchID(longName(runstore.MaxGrantID, last+1))
		if done := kit.MustApply(t, e.Store, "a batch whose id differs in the last byte", other); done.Replayed {
			t.Errorf("a batch was taken for one whose id differs in the last byte")
		}
		events := kit.Journal(t, e.Store, id)
		if len(events) != 2 || events[0].Kind != kind || events[0].Owner != lease.Owner {
			t.Errorf("the journal is %+v, want 2 events, the first of kind %q by %q", events, kind, lease.Owner)
		}
		for _, key := range keys {
			records, err := e.Store.ReadRecords(t.Context(), id, runstore.RecordQuery{Keys: []runstore.RecordKey{key}})
			if err != nil || len(records) != 1 || records[0].Key != key || string(records[0].Value) != string(key[1023:]) {
				t.Errorf("record %q…: got %d records, error %v", key[:8], len(records), err)
			}
		}
		page, err := e.Store.ReadRecords(t.Context(), id, runstore.RecordQuery{Prefix: keys[0][:1023], After: keys[0], Limit: 10})
		if err != nil || len(page) != 1 || page[0].Key != keys[1] {
			t.Errorf("the records after the longest key: got %d, error %v; want the other one", len(page), err)
		}
		found := 0
		for entry, err := range runstore.Entries(t.Context(), e.Store, runstore.IndexQuery{Index: index, Until: runstore.EndOfTime}) {
			if err != nil || entry.Run != id {
				t.Fatalf("the longest index: run %q, error %v", entry.Run, err)
			}
			found++
		}
		if found != 2 {
			t.Errorf("the longest index has %d entries, want 2", found)
		}
	}
	revoke := runstore.NewBatch(runstore.RunID(longName(runstore.MaxRunID, 'a')), runstore.Unguarded(longName(runstore.MaxOwner, 'a')))
	revoke.Release = true
	kit.MustApply(t, e.Store, "a batch with the longest reason", revoke)
}

func namesBeyond(t harness.T, e *harness.Env) {
	lease := seedDrivenRun(t, e, "run")
	ctx := t.Context()
	tooLong := func(limit int) string { return strings.Repeat("x", limit+1) }
	var tries []overLimit
	add := func(what, field string, limit int, optional bool, f func(name string) error) {
		tries = append(tries, overLimit{what + " one too long", runstore.ErrTooLarge, field, fmt.Sprint(limit),
			func() error { return f(tooLong(limit)) }})
		if !optional {
			tries = append(tries, overLimit{what + " empty", runstore.ErrInvalid, field, fmt.Sprint(limit), func() error { return f("") }})
		}
	}
	runID := func(what string, f func(id runstore.RunID) error) {
		add("the run id of "+what, "run id", runstore.MaxRunID, false, func(name string) error { return f(runstore.RunID(name)) })
	}
	runID("a create", func(id runstore.RunID) error {
		_, err := e.Store.CreateRun(ctx, runstore.RunSpec{ID: id})
		return err
	})
	runID("a get", func(id runstore.RunID) error { _, err := e.Store.GetRun(ctx, id); return err })
	runID("an acquire", func(id runstore.RunID) error {
		_, err := e.Store.AcquireLease(ctx, kit.Acquiring(id, "a", harness.TTL))
		return err
	})
	runID("a commit", func(id runstore.RunID) error {
		_, err := e.Store.Commit(ctx, runstore.NewBatch(id, runstore.AtSeq(1)))
		return err
	})
	runID("a renewal", func(id runstore.RunID) error { l := lease; l.Run = id; return kit.Renew(t, e.Store, l, harness.TTL) })
	runID("a release", func(id runstore.RunID) error { l := lease; l.Run = id; return kit.Release(t, e.Store, l) })
	runID("a journal", func(id runstore.RunID) error { _, err := e.Store.ReadJournal(ctx, id, 1, 1); return err })
	runID("records", func(id runstore.RunID) error {
		_, err := e.Store.ReadRecords(ctx, id, runstore.RecordQuery{Limit: 1})
		return err
	})
	spec := func(field string, limit int, optional bool, set func(*runstore.LeaseSpec, string)) {
		add(field+" of an acquire", field, limit, optional, func(name string) error {
			req := kit.Preempting("run", "a", "test")
			set(&req.LeaseSpec, name)
			_, err := e.Store.AcquireLease(ctx, req)
			return err
		})
		add(field+" of a create", field, limit, optional, func(name string) error {
			create := kit.WithLease("other", "a")
			set(create.Lease, name)
			_, err := e.Store.CreateRun(ctx, create)
			return err
		})
	}
	spec("owner", runstore.MaxOwner, false, func(s *runstore.LeaseSpec, name string) { s.Owner = runstore.Owner(name) })
	spec("reactor", runstore.MaxOwner, true, func(s *runstore.LeaseSpec, name string) { s.Reactor = runstore.Reactor(name) })
	spec("grant", runstore.MaxGrantID, true, func(s *runstore.LeaseSpec, name string) { s.Grant = runstore.GrantID(name) })
	add("the reason of a preempt", "preempt", runstore.MaxOwner, true, func(name string) error {
		_, err := e.Store.AcquireLease(ctx, kit.Preempting("run", "a", name))
		return err
	})
	add("the reason for no guard", "unguarded", runstore.MaxOwner, true, func(name string) error {
		_, err := e.Store.Commit(ctx, runstore.NewBatch("run", runstore.Unguarded(name)))
		return err
	})
	fence := func(what string, limit int, set func(l *runstore.Lease, name string)) {
		add("the "+what, what, limit, false, func(name string) error {
			l := lease
			set(&l, name)
			return commitOnly(t, e.Store, l)
		})
		add("the "+what+" of a renewal", what, limit, false, func(name string) error {
			l := lease
			set(&l, name)
			return kit.Renew(t, e.Store, l, harness.TTL)
		})
	}
	fence("fence owner", runstore.MaxOwner, func(l *runstore.Lease, name string) { l.Owner = runstore.Owner(name) })
	fence("fence grant", runstore.MaxGrantID, func(l *runstore.Lease, name string) { l.Grant = runstore.GrantID(name) })
	batch := func(what, field string, limit int, optional bool, fill func(b *runstore.Batch, name string)) {
		add(what, field, limit, optional, func(name string) error {
			return commitFunc(t, e.Store, lease, func(b *runstore.Batch) { fill(b, name) })()
		})
	}
	batch("a batch id", "batch id", runstore.MaxGrantID, true, func(b *runstore.Batch, name string) { b.ID = runstore.BatchID(name) })
	batch("an event's kind", "events[1].kind", runstore.MaxKind, false, func(b *runstore.Batch, name string) {
		b.Append("good", nil)
		b.Append(name, nil)
	})
	batch("a record key", "records[1].key", runstore.MaxRecordKey, false, func(b *runstore.Batch, name string) {
		b.Put("good", nil)
		b.Put(runstore.RecordKey(name), nil)
	})
	batch("the key of a deletion", "records[0].key", runstore.MaxRecordKey, false, func(b *runstore.Batch, name string) {
		b.Delete(runstore.RecordKey(name))
	})
	batch("an index name", "records[0].index[1]", runstore.MaxIndexName, false, func(b *runstore.Batch, name string) {
		b.Put("good", nil, runstore.Place{Index: "queue", At: runstore.After(0)}, runstore.Place{Index: runstore.IndexName(name), At: runstore.After(0)})
	})
	batch("the key of a guard", "guards: versions[1]", runstore.MaxRecordKey, false, func(b *runstore.Batch, name string) {
		b.Require(runstore.AtVersion("good", 0), runstore.AtVersion(runstore.RecordKey(name), 0))
		b.Append("test", nil)
	})
	add("a key to read", "keys[1]", runstore.MaxRecordKey, false, func(name string) error {
		_, err := e.Store.ReadRecords(ctx, "run", runstore.RecordQuery{Keys: []runstore.RecordKey{"good", runstore.RecordKey(name)}})
		return err
	})
	add("a prefix", "prefix", runstore.MaxRecordKey, true, func(name string) error {
		_, err := e.Store.ReadRecords(ctx, "run", runstore.RecordQuery{Prefix: runstore.RecordKey(name), Limit: 1})
		return err
	})
	add("a key to resume after", "after", runstore.MaxRecordKey, true, func(name string) error {
		_, err := e.Store.ReadRecords(ctx, "run", runstore.RecordQuery{After: runstore.RecordKey(name), Limit: 1})
		return err
	})
	add("an index to scan", "index", runstore.MaxIndexName, false, func(name string) error {
		_, err := e.Store.ScanIndex(ctx, runstore.IndexQuery{Index: runstore.IndexName(name), Limit: 1})
		return err
	})
	if epochs, ok := runstore.As[runstore.EpochManager](e.Store); ok {
		add("the reason for an epoch", "reason", runstore.MaxOwner, false, func(name string) error {
			_, err := epochs.RaiseEpoch(ctx, name)
			return err
		})
	}
	refuseAll(t, e, "run", tries)
	e.Append(t, e.Store, lease, "the run is usable")
}

func largestPayloads(t harness.T, e *harness.Env) {
	lease := seedDrivenRun(t, e, "run")
	event, value := payload(runstore.MaxEventData), payload(runstore.MaxRecordValue)
	// A batch of exactly the largest sum: one full value, and events for the rest.
	fill := func(b *runstore.Batch, more int) {
		b.Put("k", value)
		for range 3 {
			b.Append("e", event)
		}
		b.Append("e", event[:runstore.MaxBatchBytes-runstore.MaxRecordValue-3*runstore.MaxEventData-5+more])
	}
	refuseAll(t, e, "run", []overLimit{{"a batch one byte too large", runstore.ErrTooLarge, "batch", fmt.Sprint(runstore.MaxBatchBytes),
		commitFunc(t, e.Store, lease, func(b *runstore.Batch) { fill(b, 1) })}})

	b := runstore.NewBatch("run", lease.Fence())
	b.Append("large", event)
	kit.MustApply(t, e.Store, "the largest event", b)
	b = runstore.NewBatch("run", lease.Fence())
	b.Put("large", value)
	kit.MustApply(t, e.Store, "the largest record", b)
	b = runstore.NewBatch("run", lease.Fence())
	fill(&b, 0)
	done := kit.MustApply(t, e.Store, "the largest batch", b)

	events := kit.Journal(t, e.Store, "run")
	if len(events) != 6 || events[5].Seq != done.LastSeq {
		t.Fatalf("%d events, want 6", len(events))
	}
	for i, n := range []int{len(event), len(event), len(event), len(event), len(event) - 5} {
		if !bytes.Equal(events[i+1].Data, event[:n]) {
			t.Errorf("event %d: %d bytes came back changed, want the %d that were written", i+2, len(events[i+1].Data), n)
		}
	}
	for _, key := range []runstore.RecordKey{"large", "k"} {
		records, err := e.Store.ReadRecords(t.Context(), "run", runstore.RecordQuery{Keys: []runstore.RecordKey{key}})
		if err != nil || len(records) != 1 {
			t.Fatalf("record %q: %d found, error %v", key, len(records), err)
		}
		if !bytes.Equal(records[0].Value, value) {
			t.Errorf("record %q: %d bytes came back changed, want the %d that were written", key, len(records[0].Value), len(value))
		}
	}
}

func payloadsBeyond(t harness.T, e *harness.Env) {
	lease := seedDrivenRun(t, e, "run")
	event, value := make([]byte, runstore.MaxEventData+1), make([]byte, runstore.MaxRecordValue+1)
	writes := []struct {
		what, field string
		limit       int
		fill        func(w *runstore.Writes)
	}{
		{"an event", "events[1].data", runstore.MaxEventData, func(w *runstore.Writes) {
			w.Append("good", nil)
			w.Append("large", event)
		}},
		{"a record", "records[1].value", runstore.MaxRecordValue, func(w *runstore.Writes) {
			w.Put("good", nil)
			w.Put("large", value)
		}},
		{"a batch", "batch", runstore.MaxBatchBytes, func(w *runstore.Writes) {
			w.Put("a", value[1:])
			w.Put("b", value[1:])
		}},
	}
	var tries []overLimit
	for _, w := range writes {
		add := func(of string, f func() error) {
			tries = append(tries, overLimit{w.what + " too large, " + of, runstore.ErrTooLarge, w.field, fmt.Sprint(w.limit), f})
		}
		add("in a commit", commitFunc(t, e.Store, lease, func(b *runstore.Batch) { w.fill(&b.Writes) }))
		add("in a create", func() error {
			spec := kit.WithLease("other", "a")
			w.fill(&spec.Writes)
			_, err := e.Store.CreateRun(t.Context(), spec)
			return err
		})
		add("in an acquire", func() error {
			req := kit.Preempting("run", "a", "test")
			w.fill(&req.Writes)
			_, err := e.Store.AcquireLease(t.Context(), req)
			return err
		})
		add("in a release", func() error {
			req := runstore.ReleaseRequest{Fence: lease.Fence()}
			w.fill(&req.Writes)
			_, err := e.Store.ReleaseLease(t.Context(), req)
			return err
		})
	}
	refuseAll(t, e, "run", tries)
	e.Append(t, e.Store, lease, "the run is usable")
}
