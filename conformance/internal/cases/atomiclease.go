package cases

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/tapestore/tapestore/conformance/harness"
	"github.com/tapestore/tapestore/conformance/internal/kit"
	"github.com/tapestore/tapestore/runstore"
)

func acquireWhole(t harness.T, e *harness.Env) {
	ctx := t.Context()
	first := kit.SeedFixture(t, e, "run")
	other := e.Reopen(t)
	request := func(guards ...runstore.Guard) runstore.AcquireRequest {
		req := kit.Acquiring("run", "second", harness.TTL)
		req.Guards = guards
		kit.WriteEverything(&req.Writes, "second", 5)
		return req
	}
	refuse := func(what string, req runstore.AcquireRequest, want error) {
		t.Helper()
		before := kit.Dump(t, other, "run", kit.AllIndexes...)
		_, err := e.Store.AcquireLease(ctx, req)
		harness.Refused(t, what, err, want)
		kit.CheckUnchanged(t, what, before, kit.Dump(t, other, "run", kit.AllIndexes...))
	}
	refuse("acquiring a held lease", request(), runstore.ErrLeaseHeld)
	preempt := request(runstore.AtVersion("a", 1), runstore.AtSeq(3))
	preempt.Preempt = "test"
	refuse("preempting with a failing guard", preempt, runstore.ErrConflict)
	e.Append(t, e.Store, first, "the holder goes on")

	if _, err := e.Store.ReleaseLease(ctx, runstore.ReleaseRequest{Fence: first.Fence()}); err != nil {
		t.Fatalf("release: %v", err)
	}
	refuse("acquiring at a wrong version", request(runstore.AtVersion("a", 1), runstore.AtVersion("b", 2)), runstore.ErrConflict)
	refuse("acquiring at a wrong seq", request(runstore.AtSeq(2)), runstore.ErrConflict)
	refuse("acquiring in a wrong status", request(runstore.InStatus(2, 3)), runstore.ErrConflict)

	req := request(runstore.AtVersion("a", 1), runstore.AtSeq(3), runstore.InStatus(1))
	lease, err := e.Store.AcquireLease(ctx, req)
	if err != nil {
		t.Fatalf("acquire: %v", err)
	}
	kit.Equal(t, "token", lease.Token, first.Token+1)
	run, err := other.GetRun(ctx, "run")
	if err != nil {
		t.Fatalf("get run: %v", err)
	}
	kit.Equal(t, "holder and status", fmt.Sprintf("%s %d %d %s", run.Holder.Owner, run.Status, run.LastSeq, run.Summary.Value), "second 5 4 second")
	for _, event := range kit.MustCollect(t, "journal", runstore.Journal(ctx, other, "run", 3)) {
		if event.Token != lease.Token || event.Owner != "second" {
			t.Errorf("event %d was written with the grant of %q under %v, but carries %q under %v", event.Seq, "second", lease.Token, event.Owner, event.Token)
		}
	}
	kit.Equal(t, "record", string(kit.Record(t, other, "run", "a").Value), "second")
	kit.Equal(t, "entries", len(kit.Queue(t, other, "queue-b")), 1)
}

func releaseWhole(t harness.T, e *harness.Env) {
	ctx := t.Context()
	old := kit.SeedFixture(t, e, "run")
	req := kit.Acquiring("run", "second", harness.TTL)
	req.Preempt = "test"
	lease, err := e.Store.AcquireLease(ctx, req)
	if err != nil {
		t.Fatalf("preempt: %v", err)
	}
	other := e.Reopen(t)
	before := kit.Dump(t, other, "run", kit.AllIndexes...)
	release := runstore.ReleaseRequest{Fence: old.Fence()}
	kit.WriteEverything(&release.Writes, "end", 5)
	_, err = e.Store.ReleaseLease(ctx, release)
	harness.Refused(t, "releasing under an ended grant", err, runstore.ErrFenced)
	kit.CheckUnchanged(t, "releasing under an ended grant", before, kit.Dump(t, other, "run", kit.AllIndexes...))

	release.Fence = lease.Fence()
	done, err := e.Store.ReleaseLease(ctx, release)
	if err != nil {
		t.Fatalf("release: %v", err)
	}
	kit.Equal(t, "seqs", [2]runstore.Seq{done.FirstSeq, done.LastSeq}, [2]runstore.Seq{2, 3})
	kit.Equal(t, "versions", done.Versions, []runstore.Version{2, 2, 2, 0})
	run, err := other.GetRun(ctx, "run")
	if err != nil {
		t.Fatalf("get run: %v", err)
	}
	kit.Equal(t, "holder after the release", run.Holder, runstore.Holder{})
	kit.Equal(t, "token after the release", run.Token, lease.Token)
	kit.Equal(t, "status", run.Status, 5)
	for _, event := range kit.MustCollect(t, "journal", runstore.Journal(ctx, other, "run", 2)) {
		kit.Equal(t, "token of an event of the release", event.Token, lease.Token)
	}
	if entries := kit.Queue(t, other, runstore.IndexRunnable); len(entries) != 1 {
		t.Errorf("%d runnable runs after a release that made the run runnable, want 1", len(entries))
	}
}

func purgeWhole(t harness.T, e *harness.Env) {
	ctx := t.Context()
	lease := kit.SeedFixture(t, e, "run")
	keep := kit.SeedFixture(t, e, "neighbour")
	id := runstore.NewBatchID()
	for _, l := range []runstore.Lease{lease, keep} {
		b := runstore.NewBatch(l.Run, l.Fence())
		b.ID = id
		kit.WriteEverything(&b.Writes, string(l.Run), 5)
		kit.MustCommit(t, e.Store, b)
	}
	other := e.Reopen(t)
	before := kit.Dump(t, other, "neighbour", kit.AllIndexes...)
	feed := kit.FeedOf(t, e, other, 6)

	b := runstore.NewBatch("run", lease.Fence())
	b.Purge = true
	kit.MustCommit(t, e.Store, b)

	q := runstore.RecordQuery{Limit: 1}
	_, err := other.GetRun(ctx, "run")
	harness.Refused(t, "get run after the purge", err, runstore.ErrNotFound)
	_, err = other.ReadJournal(ctx, "run", 1, 1)
	harness.Refused(t, "read journal after the purge", err, runstore.ErrNotFound)
	_, err = other.ReadRecords(ctx, "run", q)
	harness.Refused(t, "read records after the purge", err, runstore.ErrNotFound)
	for _, name := range kit.AllIndexes {
		for _, entry := range kit.Queue(t, other, name) {
			if entry.Run == "run" {
				t.Errorf("index %q still holds %+v of the purged run", name, entry)
			}
		}
	}
	kit.CheckUnchanged(t, "purging its neighbour", before, kit.Dump(t, other, "neighbour", kit.AllIndexes...))
	rest := slices.DeleteFunc(feed, func(e runstore.FeedEvent) bool { return e.Run == "run" })
	kit.Equal(t, "feed after the purge", kit.MustCollect(t, "feed", kit.FeedAfter(ctx, other, 0, 2)), rest)
	e.Append(t, other, keep, "the neighbour goes on")

	again := e.Create(t, "run")
	kit.Equal(t, "last seq of the run made anew", again.LastSeq, 0)
	kit.Equal(t, "token of the run made anew", again.Token, lease.Token)
	kit.Equal(t, "holder of the run made anew", again.Holder, runstore.Holder{})
	kit.Equal(t, "status of the run made anew", again.Status, runstore.Status(0))
	kit.Equal(t, "time from which the run made anew wants a driver", again.RunnableAt, time.Time{})
	kit.Equal(t, "summary of the run made anew", again.Summary, runstore.Record{})
	kit.Equal(t, "the run made anew as it is read", e.Get(t, "run"), again)
	kit.Equal(t, "journal of the run made anew", len(kit.MustCollect(t, "journal", runstore.Journal(ctx, other, "run", 1))), 0)
	kit.Equal(t, "records of the run made anew", len(kit.MustCollect(t, "records", runstore.Records(ctx, other, "run", ""))), 0)
	// The run made anew must apply a batch of an id that the purged run used; otherwise the batch
	// is lost.
	first := unguarded("run", id)
	first.Append("test", []byte("of the new life"))
	done := kit.MustCommit(t, other, first)
	kit.Equal(t, "a batch of the new life with an id of the old one", [2]any{done.FirstSeq, done.Replayed}, [2]any{runstore.Seq(1), false})
}

func failsAlone(t harness.T, e *harness.Env) {
	const writers = 12
	rounds := e.Scaled(t, "rounds", 4, 8)
	ctx := t.Context()
	shared := []runstore.RunStore{e.Store, e.Reopen(t)}
	e.Create(t, "shared")
	ended := e.Acquire(t, e.Store, "shared", "ended")
	if _, err := e.Store.ReleaseLease(ctx, runstore.ReleaseRequest{Fence: ended.Fence()}); err != nil {
		t.Fatalf("release: %v", err)
	}
	for i := range writers {
		e.Create(t, runstore.RunID(fmt.Sprintf("own-%d", i)))
	}
	for round := range rounds {
		kit.RunConcurrently(t, writers, func(i int) error {
			key := runstore.RecordKey(fmt.Sprintf("record-%d", i))
			run := runstore.RunID("shared")
			if (i+round)%2 == 0 {
				run = runstore.RunID(fmt.Sprintf("own-%d", i))
			}
			good := runstore.NewBatch(run, runstore.Unguarded("test"))
			bad, want := good, error(nil)
			switch (i + round) % 6 {
			case 1:
				bad, want = runstore.NewBatch("shared", ended.Fence()), runstore.ErrFenced
			case 3:
				bad, want = runstore.NewBatch(run, runstore.AtVersion(key, 99)), runstore.ErrConflict
			case 4:
				bad, want = runstore.NewBatch("missing", runstore.Unguarded("test")), runstore.ErrNotFound
			}
			name := fmt.Sprintf("%d/%d", round, i)
			bad.Append("event", []byte(name))
			bad.Append("event", []byte(name))
			bad.Put(key, []byte(name), runstore.Place{Index: "all", At: runstore.After(0)})
			_, err := shared[i%2].Commit(ctx, bad)
			if want == nil && err != nil || !errors.Is(err, want) {
				return fmt.Errorf("batch %s: got error %v, want %v", name, err, want)
			}
			return nil
		})
	}
	// The journals hold the good batches, each whole, and no other events.
	events, records := 0, 0
	for i := -1; i < writers; i++ {
		id := runstore.RunID("shared")
		if i >= 0 {
			id = runstore.RunID(fmt.Sprintf("own-%d", i))
		}
		journal := kit.MustCollect(t, "journal", runstore.Journal(ctx, e.Store, id, 1))
		events += len(journal)
		for n, event := range journal {
			if event.Seq != runstore.Seq(n+1) || string(event.Data) != string(journal[n/2*2].Data) {
				t.Errorf("run %q: event %d is %q beside %q", id, event.Seq, event.Data, journal[n/2*2].Data)
			}
			var round, writer int
			if _, err := fmt.Sscanf(string(event.Data), "%d/%d", &round, &writer); err != nil {
				t.Fatalf("event %q: %v", event.Data, err)
			}
			if bad := (writer + round) % 6; bad == 1 || bad == 3 || bad == 4 {
				t.Errorf("run %q holds an event of batch %s, which was refused", id, event.Data)
			}
		}
		records += len(kit.MustCollect(t, "records", runstore.Records(ctx, e.Store, id, "")))
	}
	kit.Equal(t, "events", events, writers*rounds/2*2)
	kit.Equal(t, "index entries for as many records", len(kit.Queue(t, e.Store, "all")), records)
}
