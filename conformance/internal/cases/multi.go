package cases

import (
	"errors"
	"fmt"
	"slices"

	"github.com/tapestore/tapestore/conformance/harness"
	"github.com/tapestore/tapestore/conformance/internal/kit"
	"github.com/tapestore/tapestore/runstore"
)

// Multi returns the cases that prove I4 and I8 for batches over several runs.
func Multi() []harness.Case {
	multi := []harness.Need{harness.NeedMulti}
	return []harness.Case{
		{Guarantee: "I4", Name: "a-commit-over-several-runs-applies-whole", Needs: multi, Run: multiWhole, Doc: `
			One CommitMulti carries a batch of every kind of write for each of three runs. Each run then has its
			events, records, status, runnable time and queue entries, with the seqs and versions returned, and all
			results carry one time; the leases stay good. A second one releases one run, purges another and appends
			to the third. A store that drops part of one run's batch fails.`},
		{Guarantee: "I4", Name: "a-failing-guard-leaves-nothing-on-any-run", Needs: multi, Run: multiRefused, Doc: `
			A CommitMulti over three runs fails by a fence, a version, a missing run, a run named twice or no batch
			at all, first, last or in the middle. The error is that of the first batch that fails, and every run and
			index stays as it was; the good batches then apply in another order. A store that commits run by run
			keeps the ones before.`},
		{Guarantee: "I4", Name: "concurrent-commits-over-the-same-runs-keep-their-sum", Needs: multi, Run: multiTransfers, Doc: `
			Four handles move units between four runs at once, each naming its two runs in an order of its own and
			repeating after ErrConflict. The sum of units stays, and every transfer is in exactly two journals. A
			store that deadlocks on the order of runs, or applies one half of a transfer, fails.`},
		{Guarantee: "I8", Name: "a-repeat-over-several-runs-gets-the-first-results", Needs: multi, Run: multiRepeat, Doc: `
			A CommitMulti with one id on each of three runs is repeated after the leases are released: by another
			handle, in another order, and one run's part by Commit alone. Each repeat returns the first results,
			marked as replayed, and changes nothing. A store that judges the fences of a repeat again, or applies it,
			fails.`},
		{Guarantee: "I8", Name: "a-repeat-over-several-runs-applies-all-or-nothing", Needs: multi, Run: multiRepeatWhole, Doc: `
			A CommitMulti is repeated when one run was made anew, one may have forgotten the id, and one remembers;
			then when one is purged. The repeat is recognized as a whole and changes nothing. A commit that shares
			only a batch with the first is none of its repeats, and its new batches apply. A store that recognizes
			repeats run by run applies half a commit again.`},
	}
}

func commitMulti(t harness.T, s runstore.RunStore, batches ...runstore.Batch) ([]runstore.Committed, error) {
	return kit.Capability[runstore.MultiCommitter](s).CommitMulti(t.Context(), batches)
}

// threeRuns seeds three runs and returns their leases and, for each run, a batch of every kind of
// write.
func threeRuns(t harness.T, e *harness.Env, tag string) (leases []runstore.Lease, batches []runstore.Batch) {
	t.Helper()
	for _, id := range []runstore.RunID{"one", "two", "three"} {
		lease := kit.SeedFixture(t, e, id)
		b := runstore.NewBatch(id, lease.Fence(), runstore.AtVersion("a", 1), runstore.AtSeq(2), runstore.InStatus(1))
		kit.WriteEverything(&b.Writes, tag, 5)
		leases, batches = append(leases, lease), append(batches, b)
	}
	return leases, batches
}

func dumps(t harness.T, s runstore.RunStore) string {
	t.Helper()
	return kit.DumpAll(t, s, []runstore.RunID{"one", "two", "three"}, kit.AllIndexes...)
}

func multiWhole(t harness.T, e *harness.Env) {
	leases, batches := threeRuns(t, e, "multi")
	done, err := commitMulti(t, e.Store, batches...)
	if err != nil || len(done) != len(batches) {
		t.Fatalf("%d results, %v; want %d", len(done), err, len(batches))
	}
	other := e.Reopen(t)
	for i, b := range batches {
		kit.Equal(t, "seqs", [2]runstore.Seq{done[i].FirstSeq, done[i].LastSeq}, [2]runstore.Seq{2, 3})
		kit.Equal(t, "versions", done[i].Versions, []runstore.Version{2, 2, 2, 0})
		kit.Equal(t, "time", done[i].Time, done[0].Time)
		kit.Equal(t, "journal", kit.JournalText(kit.Journal(t, other, b.Run())), "begin@1 multi/first@1 multi/second@1")
		run := e.Get(t, b.Run())
		kit.Equal(t, "status", run.Status, 5)
		kit.Equal(t, "runnable at", run.RunnableAt, done[i].Time)
		kit.Equal(t, "summary", string(run.Summary.Value), "multi")
		e.Append(t, other, leases[i], "alone again")
	}
	kit.Equal(t, "index entries", len(kit.Queue(t, other, "queue-b")), 3)
	kit.FeedOf(t, e, other, 3+6+3)

	released, purged := kit.Appending(leases[0], "last"), runstore.NewBatch("two", leases[1].Fence())
	released.Release, purged.Purge = true, true
	if _, err := commitMulti(t, e.Store, released, purged, kit.Appending(leases[2], "goes on")); err != nil {
		t.Fatalf("a release, a purge and an append: %v", err)
	}
	run, err := other.GetRun(t.Context(), "one")
	if err != nil || run.Holder != (runstore.Holder{}) || run.Token != leases[0].Token || run.LastSeq != 5 {
		t.Errorf("the released run shows holder %s, token %v, seq %d, error %v; want no holder, %v, 5",
			kit.HolderText(run.Holder), run.Token, run.LastSeq, err, leases[0].Token)
	}
	_, err = other.GetRun(t.Context(), "two")
	harness.Refused(t, "the purged run", err, runstore.ErrNotFound)
	e.Append(t, other, leases[2], "and on")
	e.Acquire(t, other, "one", "next")
}

func multiRefused(t harness.T, e *harness.Env) {
	leases, batches := threeRuns(t, e, "refused")
	kit.MustRelease(t, e.Store, leases[1])
	e.Acquire(t, e.Store, "two", "second")
	// The fence of the second of the three batches has ended.
	before := dumps(t, e.Store)
	with := func(i int, b runstore.Batch) []runstore.Batch {
		good := runstore.NewBatch("two", runstore.AtSeq(2))
		kit.WriteEverything(&good.Writes, "refused", 5)
		changed := []runstore.Batch{batches[0], good, batches[2]}
		changed[i] = b
		return changed
	}
	conflicting := func(id runstore.RunID) runstore.Batch {
		b := runstore.NewBatch(id, runstore.AtVersion("a", 1), runstore.AtVersion("gone", 7))
		kit.WriteEverything(&b.Writes, "refused", 5)
		return b
	}
	missing := runstore.NewBatch("missing", runstore.Unguarded("test"))
	missing.Append("event", nil)
	for _, test := range []struct {
		name    string
		batches []runstore.Batch
		want    error
	}{
		{"a fence in the middle", batches, runstore.ErrFenced},
		{"a version in the first", with(0, conflicting("one")), runstore.ErrConflict},
		{"a version in the last", with(2, conflicting("three")), runstore.ErrConflict},
		{"a missing run", with(2, missing), runstore.ErrNotFound},
		{"a run named twice", append(with(2, batches[2]), batches[0]), runstore.ErrInvalid},
		{"the first that fails tells the error", []runstore.Batch{conflicting("one"), batches[1], missing}, runstore.ErrConflict},
		{"no batches", nil, runstore.ErrInvalid},
	} {
		_, err := commitMulti(t, e.Store, test.batches...)
		harness.Refused(t, test.name, err, test.want)
		kit.CheckUnchanged(t, "a commit refused for "+test.name, before, dumps(t, e.Store))
	}
	kit.FeedOf(t, e, e.Store, 3)
	// The runs are as usable as before.
	if _, err := commitMulti(t, e.Reopen(t), batches[2], batches[0]); err != nil {
		t.Errorf("the good batches, in another order: %v", err)
	}
}

func multiTransfers(t harness.T, e *harness.Env) {
	const runs, writers, units = 4, 4, 100
	each := e.Scaled(t, "commits of each writer", 5, 12)
	ctx := t.Context()
	random := kit.Seeded(t)
	id := func(i int) runstore.RunID { return runstore.RunID(fmt.Sprint("account-", i)) }
	for i := range runs {
		e.Create(t, id(i))
		kit.Put(t, e.Store, id(i), "units", 0, fmt.Sprint(units))
	}
	stores := kit.OpenHandles(t, e, writers)
	kit.RunConcurrently(t, writers, func(i int) error {
		pick := random(i)
		for n := 0; n < each; {
			var batches []runstore.Batch
			for k, account := range pick.Perm(runs)[:2] {
				found, err := stores[i].ReadRecords(ctx, id(account), runstore.RecordQuery{Keys: []runstore.RecordKey{"units"}})
				if err != nil {
					return err
				}
				var has int
				if _, err := fmt.Sscan(string(found[0].Value), &has); err != nil {
					return err
				}
				b := runstore.NewBatch(id(account), runstore.AtVersion("units", found[0].Version))
				b.Append("transfer", fmt.Appendf(nil, "%d/%d", i, n))
				b.Put("units", fmt.Append(nil, has+1-2*k))
				batches = append(batches, b)
			}
			switch _, err := commitMulti(t, stores[i], batches...); {
			case err == nil:
				n++
			case !errors.Is(err, runstore.ErrConflict):
				return err
			}
		}
		return nil
	})
	sum, transfers := 0, map[string]int{}
	for i := range runs {
		var has int
		if _, err := fmt.Sscan(string(kit.Record(t, e.Store, id(i), "units").Value), &has); err != nil {
			t.Fatalf("units: %v", err)
		}
		sum += has
		for _, event := range kit.Journal(t, e.Store, id(i)) {
			transfers[string(event.Data)]++
		}
	}
	kit.Equal(t, "sum of the units", sum, runs*units)
	kit.Equal(t, "transfers", len(transfers), writers*each)
	for name, n := range transfers {
		kit.Equal(t, "events of transfer "+name, n, 2)
	}
}

func multiRepeat(t harness.T, e *harness.Env) {
	leases, batches := threeRuns(t, e, "multi")
	for i := range batches {
		batches[i].ID = "the same id on each run"
	}
	first, err := commitMulti(t, e.Store, batches...)
	if err != nil {
		t.Fatalf("commit: %v", err)
	}
	for _, lease := range leases {
		kit.MustRelease(t, e.Store, lease)
	}
	before := dumps(t, e.Store)
	again, err := commitMulti(t, e.Reopen(t), batches...)
	if err != nil {
		t.Fatalf("repeat: %v", err)
	}
	for i := range first {
		want := first[i]
		want.Replayed = true
		kit.Equal(t, fmt.Sprintf("result %d of the repeat", i), again[i], want)
		// One run's part of the commit, repeated alone, is the same batch.
		alone, err := e.Store.Commit(t.Context(), batches[i])
		if err != nil {
			t.Errorf("part %d repeated alone: %v", i, err)
		}
		kit.Equal(t, fmt.Sprintf("part %d repeated alone", i), alone, want)
	}
	slices.Reverse(batches)
	if _, err := commitMulti(t, e.Store, batches...); err != nil {
		t.Errorf("repeat in another order: %v", err)
	}
	kit.CheckUnchanged(t, "repeats", before, dumps(t, e.Store))
}
