package cases

import (
	"errors"
	"fmt"

	"github.com/tapestore/tapestore/conformance/harness"
	"github.com/tapestore/tapestore/conformance/internal/kit"
	"github.com/tapestore/tapestore/runstore"
)

// Once returns the cases that prove I8: a caller that repeats a batch with the same id gets the
// first result.
func Once() []harness.Case {
	return []harness.Case{
		{Guarantee: "I8", Name: "a-repeat-gets-the-first-result", Run: repeatGetsFirst, Doc: `
			A caller repeats batches with ids, at once and after other commits, through several handles: a full one,
			one without events, and one under an id of arbitrary bytes. Each repeat returns the first seqs, versions
			and time, marked as replayed, and changes nothing; a batch without an id applies each time. A store that
			forgets the id applies the batch again.`},
		{Guarantee: "I8", Name: "a-repeat-holds-though-its-guards-no-longer-do", Run: repeatWithoutGuards, Doc: `
			A caller repeats a batch when its version, seq and status guards fail, after the release, and under
			another holder's lease. Each repeat returns the first result; the same batch under a new id or none is
			ErrFenced. A store that judges the guards before it looks for the id reports an applied batch as refused.`},
		{Guarantee: "I8", Name: "many-batches-are-remembered", Run: remembered, Doc: `
			A run gets as many other batches with ids as it must remember, between batches without ids; then the first
			is repeated through two handles. The repeat returns the first result and changes nothing. A store that
			remembers fewer batches, or that counts batches without ids, applies the repeat again.`},
		{Guarantee: "I8", Name: "batch-id-outlives-an-epoch", Needs: []harness.Need{harness.NeedEpoch}, Run: repeatAfterEpoch, Doc: `
			Batches with ids are committed with and without a fence, the epoch is raised twice, and they are repeated
			through three handles, before and after a grant of the new epoch. Each repeat returns the first result and
			changes nothing. A store that drops the ids with the old epoch applies, or refuses, what was applied.`},
		{Guarantee: "I8", Name: "a-batch-id-belongs-to-its-run", Run: idBelongsToRun, Doc: `
			Batches of one id are committed to two runs. Each applies to its own run, and then a repeat on a run returns
			that run's result. A store that looks an id up without its run takes the second batch for a repeat of the
			first, and does not apply it, or returns the result of the other run for a repeat.`},
		{Guarantee: "I8", Name: "a-purge-under-a-remembered-id-is-a-repeat", Run: purgeRepeats, Doc: `
			A batch with an id is committed, and then a purge of the run under the same id, through two handles. The
			purge returns the first result and changes nothing; under a new id it removes the run. A store that looks
			no id up for a purge deletes a run for a request that it must take for a repeat.`},
		{Guarantee: "I8", Name: "a-refused-batch-is-not-remembered", Run: refusedNotRemembered, Doc: `
			A batch with an id is ErrConflict twice, another write makes its guard hold, and the caller commits it
			again. The batch applies and is not marked as replayed; a further repeat is. A store that records an id
			before the guards hold returns a result for a batch that was never applied.`},
		{Guarantee: "I8", Name: "concurrent-repeats-apply-once", Run: concurrentRepeats, Doc: `
			Six copies of one batch with an id are committed at the same moment through three handles, round after
			round. All six return one result, at most one of them as the first, and the events are stored once. A
			store that looks the id up outside the step that writes applies two copies, or refuses one for its
			guards.`},
		{Guarantee: "I8", Name: "a-lost-reply-is-resolved-by-repeating", Run: lostReplies, Doc: `
			A create, commit, renewal, release and acquire are each lost once, as a request and as a reply, and the
			caller repeats them unchanged. Each repeat succeeds, and the run ends byte for byte like one for which
			nothing was lost. A store that does not recognize one of these five by its id applies it twice or refuses
			its own caller.`},
		{Guarantee: "I8", Name: "a-grant-is-recognised-by-its-id", Run: grantRecognised, Doc: `
			A caller repeats an acquire with writes through another handle after a commit, and after the release. The
			first repeat returns the grant, whose fence still commits; the late one returns the first result as
			ended, and the lease stays free. A store that ignores the grant id refuses its own holder, or leases the
			run to a holder that has left.`},
	}
}

// repeats commits b again on each store and fails the case unless each result is the first one and
// the run does not change.
func repeats(t harness.T, what string, b runstore.Batch, first runstore.Committed, stores ...runstore.RunStore) {
	t.Helper()
	want := first
	want.Replayed = true
	before := kit.Dump(t, stores[0], b.Run(), kit.AllIndexes...)
	for i, s := range stores {
		got, err := s.Commit(t.Context(), b)
		if err != nil {
			t.Errorf("%s, on handle %d: %v", what, i, err)
			continue
		}
		if len(got.Versions) == 0 && len(want.Versions) == 0 {
			got.Versions = want.Versions
		}
		kit.Equal(t, fmt.Sprintf("%s, on handle %d", what, i), got, want)
	}
	kit.CheckUnchanged(t, what, before, kit.Dump(t, stores[0], b.Run(), kit.AllIndexes...))
}

func repeatGetsFirst(t harness.T, e *harness.Env) {
	lease := kit.SeedFixture(t, e, "run")
	other := e.Reopen(t)
	full := runstore.NewBatch("run", lease.Fence())
	full.ID = runstore.NewBatchID()
	kit.WriteEverything(&full.Writes, "new", 5)
	first := kit.MustCommit(t, e.Store, full)
	kit.Equal(t, "replayed, at first", first.Replayed, false)
	repeats(t, "a repeat at once", full, first, e.Store, other, other)

	silent := runstore.NewBatch("run", runstore.Unguarded("test"))
	silent.ID = runstore.NewBatchID()
	silent.Put("k", []byte("value"))
	silentFirst := kit.MustCommit(t, other, silent)
	signal := runstore.NewBatch("run", runstore.Unguarded("a signal"))
	signal.ID = runstore.BatchID("any bytes: \x00\xff 'quote' % ü")
	signal.Append("signal", []byte("once"))
	signalFirst := kit.MustCommit(t, other, signal)
	e.Advance(t, runstore.TimePrecision)
	e.Append(t, e.Store, lease, "later")
	kit.Put(t, e.Store, "run", "k", silentFirst.Versions[0], "later")
	repeats(t, "a repeat of a batch without events, after others", silent, silentFirst, e.Store, other)
	repeats(t, "a repeat of a signal, after others", signal, signalFirst, e.Store, other)
	repeats(t, "a repeat of the first batch, after others", full, first, e.Reopen(t), other)

	// A batch without an id is a new batch each time.
	plain := runstore.NewBatch("run", runstore.Unguarded("test"))
	plain.Append("event", nil)
	kit.Equal(t, "next seq", kit.MustCommit(t, e.Store, plain).FirstSeq+1, kit.MustCommit(t, e.Store, plain).FirstSeq)
}

func repeatWithoutGuards(t harness.T, e *harness.Env) {
	ctx := t.Context()
	lease := kit.SeedFixture(t, e, "run")
	other := e.Reopen(t)
	b := runstore.NewBatch("run", lease.Fence(), runstore.AtVersion("a", 1), runstore.AtSeq(2), runstore.InStatus(1))
	b.ID = runstore.NewBatchID()
	kit.WriteEverything(&b.Writes, "new", 5)
	first := kit.MustCommit(t, e.Store, b)
	repeats(t, "a repeat when version, seq and status have moved", b, first, e.Store, other)

	end := runstore.NewBatch("run", lease.Fence())
	end.ID = runstore.NewBatchID()
	end.Append("end", nil)
	end.Release = true
	ended := kit.MustCommit(t, e.Store, end)
	repeats(t, "a repeat of a release", end, ended, e.Store, other)
	repeats(t, "a repeat when the lease was released", b, first, e.Store, other)

	second := e.Acquire(t, other, "run", "second")
	e.Append(t, other, second, "second")
	repeats(t, "a repeat when somebody else has the lease", b, first, e.Store, other)
	// The remembered result grants no authority: a new batch is refused.
	b.ID = runstore.NewBatchID()
	_, err := e.Store.Commit(ctx, b)
	harness.Refused(t, "the same batch under a new id", err, runstore.ErrFenced)
	b.ID = ""
	_, err = e.Store.Commit(ctx, b)
	harness.Refused(t, "the same batch without an id", err, runstore.ErrFenced)
}

func repeatAfterEpoch(t harness.T, e *harness.Env) {
	lease := kit.SeedFixture(t, e, "run")
	other := e.Reopen(t)
	fenced := runstore.NewBatch("run", lease.Fence())
	fenced.ID = runstore.NewBatchID()
	kit.WriteEverything(&fenced.Writes, "new", 5)
	first := kit.MustCommit(t, e.Store, fenced)
	signal := runstore.NewBatch("run", runstore.Unguarded("a signal"))
	signal.ID = runstore.NewBatchID()
	signal.Append("signal", nil)
	signal.Put("signal", nil)
	signalFirst := kit.MustCommit(t, other, signal)
	repeated := func(when string, stores ...runstore.RunStore) {
		t.Helper()
		repeats(t, when+": a repeat of a batch under the old fence", fenced, first, stores...)
		repeats(t, when+": a repeat of a signal", signal, signalFirst, stores...)
	}
	e.RaiseEpoch(t, e.Store, "test")
	e.RaiseEpoch(t, e.Store, "once more")
	late := e.Reopen(t)
	repeated("in the new epoch", late, other, e.Store)
	e.Append(t, late, e.Acquire(t, late, "run", "next"), "next")
	repeated("under a grant of the new epoch", e.Store, late, other)
}

func remembered(t harness.T, e *harness.Env) {
	lease := kit.SeedFixture(t, e, "run")
	first := runstore.NewBatch("run", lease.Fence())
	first.ID = runstore.NewBatchID()
	kit.WriteEverything(&first.Writes, "first", 5)
	done := kit.MustCommit(t, e.Store, first)
	for n := range runstore.RememberedBatches - 1 {
		b := runstore.NewBatch("run", runstore.Unguarded("test"))
		b.ID = runstore.BatchID(fmt.Sprintf("batch-%d", n))
		b.Append("event", nil)
		kit.MustCommit(t, e.Store, b)
		// Batches without an id take no place in the memory, and neither do batches of other runs.
		e.Append(t, e.Store, lease, "more")
	}
	repeats(t, fmt.Sprintf("a repeat after %d other batches", runstore.RememberedBatches-1), first, done, e.Store, e.Reopen(t))
}

func idBelongsToRun(t harness.T, e *harness.Env) {
	var batches []runstore.Batch
	var first []runstore.Committed
	for i, id := range []runstore.RunID{"one", "two"} {
		e.Create(t, id)
		b := runstore.NewBatch(id, runstore.AtSeq(1))
		b.ID = "same"
		for range i + 1 { // so the results differ
			b.Append("event", []byte(id))
		}
		done := kit.MustCommit(t, e.Store, b)
		kit.Equal(t, fmt.Sprintf("replayed, on run %q", id), done.Replayed, false)
		kit.Equal(t, fmt.Sprintf("last seq of run %q", id), done.LastSeq, runstore.Seq(i+1))
		batches, first = append(batches, b), append(first, done)
	}
	for i, b := range batches {
		repeats(t, fmt.Sprintf("a repeat on run %q", b.Run()), b, first[i], e.Store)
	}
	kit.Equal(t, "journal of the second run", kit.JournalText(kit.Journal(t, e.Store, "two")), "two@0 two@0")
}

func purgeRepeats(t harness.T, e *harness.Env) {
	lease := kit.SeedFixture(t, e, "run")
	b := runstore.NewBatch("run", lease.Fence())
	b.ID = runstore.NewBatchID()
	b.Append("event", []byte("event"))
	first := kit.MustCommit(t, e.Store, b)
	purge := runstore.NewBatch("run", lease.Fence())
	purge.ID, purge.Purge = b.ID, true
	repeats(t, "a purge under the id of a batch", purge, first, e.Store, e.Reopen(t))
	purge.ID = runstore.NewBatchID()
	kit.MustCommit(t, e.Store, purge)
	_, err := e.Store.GetRun(t.Context(), "run")
	harness.Refused(t, "get after a purge under a new id", err, runstore.ErrNotFound)
}

func refusedNotRemembered(t harness.T, e *harness.Env) {
	lease := kit.SeedFixture(t, e, "run")
	b := runstore.NewBatch("run", lease.Fence(), runstore.AtVersion("a", 2))
	b.ID = runstore.NewBatchID()
	b.Append("event", []byte("event"))
	for range 2 {
		_, err := e.Store.Commit(t.Context(), b)
		harness.Refused(t, "a batch whose guard does not hold", err, runstore.ErrConflict)
	}
	kit.Put(t, e.Store, "run", "a", 1, "new")
	first := kit.MustCommit(t, e.Reopen(t), b)
	kit.Equal(t, "replayed", first.Replayed, false)
	repeats(t, "a repeat", b, first, e.Store)
}

func concurrentRepeats(t harness.T, e *harness.Env) {
	const contenders, rounds = 6, 6
	kit.SeedFixture(t, e, "run")
	stores := kit.OpenHandles(t, e, 3)
	for round := range rounds {
		next := e.Get(t, "run").LastSeq + 1
		b := runstore.NewBatch("run", runstore.AtSeq(next))
		b.ID = runstore.NewBatchID()
		kit.WriteEverything(&b.Writes, fmt.Sprint("round-", round), 5)
		results := make([]runstore.Committed, contenders)
		kit.RunConcurrently(t, contenders, func(i int) (err error) {
			results[i], err = stores[i%len(stores)].Commit(t.Context(), b)
			return err
		})
		originals := 0
		for i := range results {
			if !results[i].Replayed {
				originals++
			}
			results[i].Replayed = false
			kit.Equal(t, fmt.Sprintf("round %d: result %d beside result 0", round, i), results[i], results[0])
		}
		// The store may have lost the reply of the applied copy itself and recovered the result by
		// a repeat. At most one copy may return it as the first.
		if originals > 1 {
			t.Errorf("round %d: %d copies of a batch say that they were the first", round, originals)
		}
		kit.Equal(t, "last seq", e.Get(t, "run").LastSeq, next+1)
	}
	kit.FeedOf(t, e, e.Store, 1+2*rounds)
}

func lostReplies(t harness.T, e *harness.Env) {
	ctx := t.Context()
	scenario := func(id runstore.RunID, first kit.Loss) string {
		var losses []kit.Loss
		s := kit.Lossy{RunStore: e.Store, Next: func() kit.Loss {
			next := losses[0]
			losses = losses[1:]
			return next
		}}
		// repeatIfLost makes a write, and repeats it unchanged if it was lost.
		repeatIfLost := func(what string, write func() error) {
			t.Helper()
			losses = []kit.Loss{first, kit.NothingLost}
			err := write()
			if first != kit.NothingLost {
				if !errors.Is(err, runstore.ErrUnknownOutcome) {
					t.Fatalf("%s: %v, want an unknown outcome", what, err)
				}
				err = write()
			}
			if err != nil {
				t.Fatalf("%s, with loss %d: %v", what, first, err)
			}
		}
		spec := runstore.RunSpec{ID: id, Status: 1, Lease: &runstore.LeaseSpec{Owner: "first", TTL: harness.TTL, Grant: runstore.NewGrantID()}}
		spec.Writes.Append("begin", nil)
		spec.Writes.Put("gone", nil, runstore.Place{Index: "queue-a", At: runstore.After(0)})
		var lease runstore.Lease
		repeatIfLost("create", func() error {
			created, err := s.CreateRun(ctx, spec)
			if err == nil && (!created.New || created.Run.ID != id || created.Run.LastSeq != 1) {
				err = fmt.Errorf("created %+v, want the run as new", created)
			}
			lease = created.Lease
			return err
		})
		b := runstore.NewBatch(id, lease.Fence(), runstore.AtVersion("gone", 1), runstore.AtSeq(2))
		b.ID = runstore.NewBatchID()
		kit.WriteEverything(&b.Writes, "batch", 2)
		repeatIfLost("commit", func() error {
			done, err := s.Commit(ctx, b)
			if err == nil && (done.FirstSeq != 2 || done.LastSeq != 3) {
				err = fmt.Errorf("committed %+v, want seqs 2 and 3", done)
			}
			return err
		})
		repeatIfLost("renew", func() error {
			renewed, err := s.RenewLease(ctx, runstore.RenewRequest{Fence: lease.Fence(), TTL: harness.TTL})
			if err == nil && (renewed.Token != lease.Token || renewed.Grant != lease.Grant || renewed.ExpiresAt.Before(lease.ExpiresAt)) {
				err = fmt.Errorf("renewed %+v to %+v", lease, renewed)
			}
			return err
		})
		end := runstore.ReleaseRequest{Fence: lease.Fence()}
		end.Writes.Append("end", nil)
		end.Writes.Put("last", []byte("word"), runstore.Place{Index: "queue-b", At: runstore.After(0)})
		repeatIfLost("release", func() error {
			done, err := s.ReleaseLease(ctx, end)
			if err == nil && done.LastSeq != 4 {
				err = fmt.Errorf("released %+v, want last seq 4", done)
			}
			return err
		})
		req := kit.Acquiring(id, "second", harness.TTL)
		req.Guards = []runstore.Guard{runstore.AtSeq(5), runstore.InStatus(2)}
		status := runstore.Status(3)
		req.Writes.Append("takeover", nil)
		req.Writes.Status = &status
		repeatIfLost("acquire", func() error {
			second, err := s.AcquireLease(ctx, req)
			if err == nil && (second.Token != lease.Token+1 || second.Grant != req.Grant) {
				err = fmt.Errorf("got lease %+v, want grant %q under token %v", second, req.Grant, lease.Token+1)
			}
			return err
		})
		return kit.Dump(t, e.Store, id, kit.AllIndexes...)
	}
	want := scenario("nothing", kit.NothingLost)
	kit.Equal(t, "the run whose requests were lost", scenario("requests", kit.RequestLost), want)
	kit.Equal(t, "the run whose replies were lost", scenario("replies", kit.ReplyLost), want)
	kit.FeedOf(t, e, e.Store, 3*5)
}

func grantRecognised(t harness.T, e *harness.Env) {
	ctx := t.Context()
	e.Create(t, "run")
	other := e.Reopen(t)
	req := kit.Acquiring("run", "owner", harness.TTL)
	req.Writes.Append("begin", nil)
	lease, err := e.Store.AcquireLease(ctx, req)
	if err != nil {
		t.Fatalf("acquire: %v", err)
	}
	e.Append(t, e.Store, lease.Lease, "more")
	before := kit.Dump(t, e.Store, "run", kit.AllIndexes...)
	again, err := other.AcquireLease(ctx, req)
	if err != nil || again.Fence() != lease.Fence() {
		t.Errorf("repeat of the request: %+v, %v; want the grant %+v", again, err, lease)
	}
	kit.CheckUnchanged(t, "repeating a request for a lease", before, kit.Dump(t, e.Store, "run", kit.AllIndexes...))
	e.Append(t, other, again.Lease, "still the holder")

	kit.MustRelease(t, e.Store, lease.Lease)
	before = kit.Dump(t, e.Store, "run", kit.AllIndexes...)
	if _, err := e.Store.ReleaseLease(ctx, runstore.ReleaseRequest{Fence: lease.Fence()}); err != nil {
		t.Errorf("releasing again: %v", err)
	}
	// A late copy of the request must not acquire the lease for a holder that has left.
	late, err := other.AcquireLease(ctx, req)
	if err != nil || !late.Ended {
		t.Errorf("a late copy of the request: ended %t, error %v; want the first result, ended", late.Ended, err)
	}
	kit.CheckUnchanged(t, "a late copy of the request", before, kit.Dump(t, e.Store, "run", kit.AllIndexes...))
}
