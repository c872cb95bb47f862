package cases

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/tapestore/tapestore/conformance/harness"
	"github.com/tapestore/tapestore/conformance/internal/kit"
	"github.com/tapestore/tapestore/runstore"
)

// Atomic returns the cases that prove I4: a batch is applied whole or not at all.
func Atomic() []harness.Case {
	return []harness.Case{
		{Guarantee: "I4", Name: "a-batch-applies-whole", Run: batchAppliesWhole, Doc: `
			One batch carries all kinds of guards and writes: two events, records in two queues, the summary, a
			deletion, a status and a runnable time. All of it is visible to another handle, with dense seqs, the
			versions that Commit returned, and a time on the store clock. A store that applies the events and drops
			part of the records or places fails.`},
		{Guarantee: "I4", Name: "a-failing-guard-leaves-nothing", Run: failingGuard, Doc: `
			Fifteen batches with one guard or fence that fails, alone or among others that hold, try to write,
			release and purge. Each is ErrConflict or ErrFenced and leaves the run and its indexes as they were; the
			next good batch gets the next seq and versions. A store that checks only the first guard, or writes
			before it checks, fails.`},
		{Guarantee: "I4", Name: "readers-never-see-half-a-batch", Run: neverHalf, Doc: `
			One handle commits batches that change two records, the summary and two events together, while three
			handles read. Every single read shows a state between two batches: equal records, a summary that fits the
			last seq, an even number of events. A store that writes a batch in two steps, or answers one read from
			two states, fails.`},
		{Guarantee: "I4", Name: "creation-with-writes-is-one-step", Run: createWhole, Doc: `
			An oversized creation is ErrTooLarge and leaves no run. Then six handles create one run, each with a
			lease, an event, a record and a summary. One creates it; all are shown the same run with the winner's
			lease, event, record and summary, and a later create changes nothing. A store that applies a loser's
			writes, or returns the run before its lease is granted or without its summary, fails.`},
		{Guarantee: "I4", Name: "readers-never-see-half-a-creation", Run: createNeverHalf, Doc: `
			One handle creates runs with a lease, an event and a summary, while another reads each run and scans the
			index of runs. A run that either read returns already has its lease, its event and its summary. A store
			that inserts the run first and grants or writes afterwards shows a run without them.`},
		{Guarantee: "I4", Name: "acquire-with-writes-is-one-step", Run: acquireWhole, Doc: `
			An acquire carries writes of every kind. While the lease is held, or a version, seq or status guard
			fails, the acquire leaves run and indexes as they were; otherwise grant and writes appear together, under
			the new token. A store that grants and writes in two steps leaves the writes of a refused acquire, or a
			grant without its writes.`},
		{Guarantee: "I4", Name: "release-with-writes-is-one-step", Run: releaseWhole, Doc: `
			A release carries writes of every kind. Under an ended grant it is ErrFenced and leaves run and indexes
			as they were; under the current grant the lease is free, the writes are made under its token, and the run
			is runnable. A store that frees the lease and writes in two steps loses one of the two, or writes for an
			old holder.`},
		{Guarantee: "I4", Name: "purge-removes-a-run-whole", Run: purgeWhole, Doc: `
			A holder purges a run beside a neighbour with the same keys and batch id. Reads are ErrNotFound, no index
			and no page of the feed holds the run, and the neighbour is untouched. The run made anew is empty, keeps
			the token, and applies a batch whose id the former run used. A store that leaves results, entries or
			events behind fails.`},
		{Guarantee: "I4", Name: "a-purge-that-is-cut-short-leaves-nothing", Run: purgeCutShort, Doc: `
			A handle purges a run of many events and records, and is closed meanwhile, or its context ends. The run
			is either unchanged or gone, as the error allows. After a second purge, indexes and feed hold nothing of
			it, and the run made anew starts empty at seq 1. A store that deletes in steps, and counts the leftovers
			into the new run, fails.`},
		{Guarantee: "I4", Name: "a-bad-batch-among-good-ones-fails-alone", Run: failsAlone, Doc: `
			Twelve writers on two handles commit good and bad batches at once, to a shared run and to runs of their
			own; bad ones have an ended fence, a wrong version or a missing run. Each bad batch gets its own error;
			every good one is whole in its journal and its queue. A store whose group commit fails or applies all
			batches together fails.`},
	}
}

func batchAppliesWhole(t harness.T, e *harness.Env) {
	lease := kit.SeedFixture(t, e, "run")
	before := e.Now(t)
	b := runstore.NewBatch("run", lease.Fence(), runstore.AtVersion("a", 1), runstore.AtVersion("gone", 1),
		runstore.AtVersion("absent", 0), runstore.AtSeq(2), runstore.InStatus(7, 1))
	kit.WriteEverything(&b.Writes, "new", 5)
	done := kit.MustCommit(t, e.Store, b)
	after := e.Now(t)

	kit.Equal(t, "first seq", done.FirstSeq, 2)
	kit.Equal(t, "last seq", done.LastSeq, 3)
	kit.Equal(t, "versions", done.Versions, []runstore.Version{2, 2, 2, 0})
	kit.Equal(t, "replayed", done.Replayed, false)
	if done.Time.Before(before) || done.Time.After(after) {
		t.Errorf("commit time %v is not between %v and %v on the store clock", done.Time, before, after)
	}

	s := e.Reopen(t)
	run, err := s.GetRun(t.Context(), "run")
	if err != nil {
		t.Fatalf("get run: %v", err)
	}
	kit.Equal(t, "status", run.Status, 5)
	kit.Equal(t, "last seq of the run", run.LastSeq, 3)
	kit.Equal(t, "runnable at", run.RunnableAt, done.Time)
	kit.Equal(t, "summary", string(run.Summary.Value), "new")
	events := kit.MustCollect(t, "journal", runstore.Journal(t.Context(), s, "run", 2))
	if len(events) != 2 {
		t.Fatalf("%d events from seq 2, want 2", len(events))
	}
	for i, want := range []string{"first", "second"} {
		kit.Equal(t, "event", [3]string{fmt.Sprint(events[i].Seq), events[i].Kind, string(events[i].Data)},
			[3]string{fmt.Sprint(2 + i), want, "new/" + want})
	}
	var keys []string
	for _, r := range kit.MustCollect(t, "records", runstore.Records(t.Context(), s, "run", "")) {
		keys = append(keys, fmt.Sprintf("%s=%s v%d", r.Key, r.Value, r.Version))
	}
	kit.Equal(t, "records", keys, []string{"a=new v2", "b=new v2", "run=new v2"})
	for _, name := range []runstore.IndexName{"queue-a", "queue-b"} {
		entries := kit.Queue(t, s, name)
		if len(entries) != 1 || entries[0].Record.Key != "a" || entries[0].Record.Version != 2 {
			t.Errorf("index %q holds %+v, want record a at version 2 alone", name, entries)
		}
	}
	feed := kit.FeedOf(t, e, s, 3)
	kit.Equal(t, "last event of the feed", string(feed[2].Data), "new/second")
}

func failingGuard(t harness.T, e *harness.Env) {
	ended := kit.SeedFixture(t, e, "run")
	if _, err := e.Store.ReleaseLease(t.Context(), runstore.ReleaseRequest{Fence: ended.Fence()}); err != nil {
		t.Fatalf("release: %v", err)
	}
	lease := e.Acquire(t, e.Store, "run", "owner")
	other := e.Reopen(t)
	good := func(key runstore.RecordKey) runstore.Guard { return runstore.AtVersion(key, 1) }
	type guards = []runstore.Guard
	tests := []struct {
		name   string
		guards guards
		want   error
	}{
		{"an ended fence", guards{ended.Fence()}, runstore.ErrFenced},
		{"an ended fence, all else holds", guards{good("a"), runstore.AtSeq(2), runstore.InStatus(1), ended.Fence()}, runstore.ErrFenced},
		{"an ended fence, nothing holds", guards{ended.Fence(), runstore.AtVersion("a", 9), runstore.AtSeq(9), runstore.InStatus(9)}, runstore.ErrFenced},
		{"a version", guards{runstore.AtVersion("a", 2)}, runstore.ErrConflict},
		{"a version of the past", guards{runstore.AtVersion("a", 0)}, runstore.ErrConflict},
		{"a version of an absent record", guards{runstore.AtVersion("absent", 1)}, runstore.ErrConflict},
		{"the first version of several", guards{runstore.AtVersion("a", 9), good("b"), good("gone")}, runstore.ErrConflict},
		{"the last version of several", guards{good("a"), good("b"), runstore.AtVersion("absent", 0), runstore.AtVersion("gone", 9)}, runstore.ErrConflict},
		{"a version under a good fence", guards{lease.Fence(), runstore.AtVersion("a", 9)}, runstore.ErrConflict},
		{"a seq behind", guards{runstore.AtSeq(1)}, runstore.ErrConflict},
		{"a seq ahead", guards{runstore.AtSeq(3)}, runstore.ErrConflict},
		{"a seq under a good fence", guards{lease.Fence(), good("a"), runstore.AtSeq(1)}, runstore.ErrConflict},
		{"a status", guards{runstore.InStatus(2)}, runstore.ErrConflict},
		{"all of several statuses", guards{runstore.InStatus(2, 3, 4)}, runstore.ErrConflict},
		{"a status under a good fence", guards{lease.Fence(), good("a"), runstore.AtSeq(2), runstore.InStatus(0)}, runstore.ErrConflict},
	}
	before := kit.Dump(t, other, "run", kit.AllIndexes...)
	for i, test := range tests {
		s := []runstore.RunStore{e.Store, other}[i%2]
		b := runstore.NewBatch("run", test.guards[0], test.guards[1:]...)
		kit.WriteEverything(&b.Writes, "refused", 5)
		_, err := s.Commit(t.Context(), b)
		harness.Refused(t, test.name, err, test.want)
		kit.CheckUnchanged(t, "a batch refused for "+test.name, before, kit.Dump(t, other, "run", kit.AllIndexes...))

		end := runstore.NewBatch("run", test.guards[0], test.guards[1:]...)
		end.Release = true
		_, err = s.Commit(t.Context(), end)
		harness.Refused(t, test.name+", releasing", err, test.want)
		end.Release, end.Purge = false, true
		_, err = s.Commit(t.Context(), end)
		harness.Refused(t, test.name+", purging", err, test.want)
		kit.CheckUnchanged(t, "an end refused for "+test.name, before, kit.Dump(t, other, "run", kit.AllIndexes...))
	}
	// A refused batch has not consumed a seq, a version or a position of the feed either.
	b := runstore.NewBatch("run", lease.Fence(), good("a"), runstore.AtSeq(2))
	kit.WriteEverything(&b.Writes, "applied", 5)
	done := kit.MustCommit(t, other, b)
	kit.Equal(t, "versions after the refusals", done.Versions, []runstore.Version{2, 2, 2, 0})
	kit.FeedOf(t, e, e.Store, 3)
}

func neverHalf(t harness.T, e *harness.Env) {
	batches := e.Scaled(t, "batches", 20, 80)
	e.Create(t, "run")
	lease := e.Acquire(t, e.Store, "run", "owner")
	ctx := t.Context()
	write := func() error {
		for n := 1; n <= batches; n++ {
			mark := fmt.Appendf(nil, "%d", n)
			b := runstore.NewBatch("run", lease.Fence())
			b.Append("first", mark)
			b.Append("second", mark)
			b.Put("a", mark)
			b.Put("z", mark)
			b.Put(runstore.SummaryKey, mark)
			if _, err := e.Store.Commit(ctx, b); err != nil {
				return fmt.Errorf("batch %d: %w", n, err)
			}
		}
		return nil
	}
	one, two, three := e.Reopen(t), e.Reopen(t), e.Reopen(t)
	pair := func(q runstore.RecordQuery) error {
		records, err := one.ReadRecords(ctx, "run", q)
		if err != nil || len(records) == 0 {
			return err
		}
		first, last := records[0], records[len(records)-1]
		if first.Key != "a" || last.Key != "z" || !bytes.Equal(first.Value, last.Value) || first.Version != last.Version || first.Updated != last.Updated {
			return fmt.Errorf("one read found %+v beside %+v", first, last)
		}
		return nil
	}
	kit.During(t, write,
		func() error { return pair(runstore.RecordQuery{Keys: []runstore.RecordKey{"z", "a"}}) },
		func() error { return pair(runstore.RecordQuery{Limit: runstore.MaxPage}) },
		func() error {
			run, err := two.GetRun(ctx, "run")
			if err == nil && (run.LastSeq != 2*runstore.Seq(run.Summary.Version) || run.Summary.Updated.Seq != max(0, run.LastSeq-1)) {
				err = fmt.Errorf("last seq %d beside summary %+v", run.LastSeq, run.Summary)
			}
			return err
		},
		func() error {
			events, err := three.ReadJournal(ctx, "run", 1, runstore.MaxPage)
			if err == nil && len(events)%2 != 0 {
				err = fmt.Errorf("the journal ends in the middle of a batch, at seq %d", len(events))
			}
			return err
		},
	)
	kit.Equal(t, "last seq", e.Get(t, "run").LastSeq, runstore.Seq(2*batches))
}

func createWhole(t harness.T, e *harness.Env) {
	const contenders = 6
	ctx := t.Context()
	spec := func(name string) runstore.RunSpec {
		s := runstore.RunSpec{ID: "run", Status: 3, Runnable: runstore.After(0),
			Lease: &runstore.LeaseSpec{Owner: runstore.Owner(name), TTL: harness.TTL, Grant: runstore.NewGrantID()}}
		s.Writes.Append("begin", []byte(name))
		s.Writes.Put("made", []byte(name), runstore.Place{Index: "queue-a", At: runstore.After(0)})
		s.Writes.Put(runstore.SummaryKey, []byte(name))
		return s
	}
	bad := spec("bad")
	bad.Writes.Append("large", make([]byte, runstore.MaxEventData+1))
	_, err := e.Store.CreateRun(ctx, bad)
	harness.Refused(t, "an oversized creation", err, runstore.ErrTooLarge)
	_, err = e.Store.GetRun(ctx, "run")
	harness.Refused(t, "reading what was refused", err, runstore.ErrNotFound)

	stores := kit.OpenHandles(t, e, contenders)
	results := make([]runstore.Created, contenders)
	kit.RunConcurrently(t, contenders, func(i int) (err error) {
		results[i], err = stores[i].CreateRun(ctx, spec(fmt.Sprint("contender-", i)))
		return err
	})
	var winner runstore.Created
	winners := 0
	for i, r := range results {
		if r.New {
			winner = r
			winners++
		} else if r.Lease != (runstore.Lease{}) {
			t.Errorf("contender %d did not create the run and got lease %+v", i, r.Lease)
		}
	}
	if winners != 1 {
		t.Fatalf("%d contenders created the run, want 1", winners)
	}
	run := e.Get(t, "run")
	for i, r := range results {
		kit.Equal(t, fmt.Sprintf("run as contender %d was told", i), r.Run, run)
	}
	name := string(winner.Lease.Owner)
	kit.Equal(t, "holder", run.Holder.Owner, winner.Lease.Owner)
	kit.Equal(t, "token", [2]runstore.Token{run.Token, winner.Lease.Token}, [2]runstore.Token{1, 1})
	kit.Equal(t, "status", run.Status, 3)
	kit.Equal(t, "summary", string(run.Summary.Value), name)
	events := kit.MustCollect(t, "journal", runstore.Journal(ctx, e.Store, "run", 1))
	if len(events) != 1 || string(events[0].Data) != name || events[0].Token != 1 || events[0].Owner != winner.Lease.Owner {
		t.Errorf("journal is %+v, want the event of %q under token 1 alone", events, name)
	}
	kit.Equal(t, "record", string(kit.Record(t, e.Store, "run", "made").Value), name)
	kit.Equal(t, "entries", len(kit.Queue(t, e.Store, "queue-a")), 1)

	before := kit.Dump(t, e.Store, "run", kit.AllIndexes...)
	late, err := stores[0].CreateRun(ctx, spec("late"))
	if err != nil || late.New {
		t.Errorf("creating what exists: new %t, %v; want the run as it stands", late.New, err)
	}
	kit.Equal(t, "run as the late creation was told", late.Run, run)
	kit.CheckUnchanged(t, "creating what exists", before, kit.Dump(t, e.Store, "run", kit.AllIndexes...))
	// The lease that was granted by the creation is a lease like any other.
	e.Append(t, e.Store, winner.Lease, "more")
}

func createNeverHalf(t harness.T, e *harness.Env) {
	runs := e.Scaled(t, "runs", 12, 40)
	ctx := t.Context()
	id := func(i int) runstore.RunID { return runstore.RunID(fmt.Sprintf("run-%d", i)) }
	create := func() error {
		for i := range runs {
			spec := runstore.RunSpec{ID: id(i), Lease: &runstore.LeaseSpec{Owner: "owner", TTL: harness.TTL}}
			spec.Writes.Append("begin", []byte("begin"))
			spec.Writes.Put(runstore.SummaryKey, []byte("summary"))
			if _, err := e.Store.CreateRun(ctx, spec); err != nil {
				return err
			}
		}
		return nil
	}
	other := e.Reopen(t)
	whole := func(run runstore.Run) error {
		if run.LastSeq != 1 || run.Token != 1 || run.Holder.Owner != "owner" || run.Summary.Version != 1 {
			return fmt.Errorf("half a creation: %+v", run)
		}
		return nil
	}
	next := 0
	kit.During(t, create,
		func() error {
			run, err := other.GetRun(ctx, id(next))
			if errors.Is(err, runstore.ErrNotFound) {
				return nil
			}
			next = min(next+1, runs-1)
			return errors.Join(err, whole(run))
		},
		func() error {
			entries, err := other.ScanIndex(ctx, runstore.IndexQuery{Index: runstore.IndexRuns, Limit: runstore.MaxPage})
			for _, entry := range entries {
				err = errors.Join(err, whole(entry.Head))
			}
			return err
		},
	)
}
