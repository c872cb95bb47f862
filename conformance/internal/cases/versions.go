package cases

import (
	"errors"
	"fmt"

	"github.com/tapestore/tapestore/conformance/harness"
	"github.com/tapestore/tapestore/conformance/internal/kit"
	"github.com/tapestore/tapestore/runstore"
)

// Versions returns the cases that prove I4 for record versions: a write that is guarded by the
// version its caller read is refused once the record has changed.
func Versions() []harness.Case {
	return []harness.Case{
		{Guarantee: "I4", Name: "versions-count-changes", Run: versionsCount, Doc: `
			One handle puts a record again and again, with an equal value too, while another reads it. Each change
			adds one to the record's version; other records, events and a batch without the record leave it, and
			Commit returns versions in the order of the writes. A store that skips a put of an equal value, or counts
			changes of the run, breaks compare-and-swap.`},
		{Guarantee: "I4", Name: "a-conflict-tells-the-current-version", Run: conflictTells, Doc: `
			Batches are guarded by versions that a record does not have: older, newer, absent, and one among others
			that hold. Each is ErrConflict with the guard's kind, the key, the version asked for, the current one, the
			run's next seq and its status, and changes nothing. A store that ignores versions loses updates; one that
			reports the wrong key or version makes the caller retry in vain.`},
		{Guarantee: "I4", Name: "one-winner-creates-a-record", Run: oneCreator, Doc: `
			Six handles create the same record at the same moment, each guarded by its absence. One creates version 1;
			every other is ErrConflict at version 1, and the value is the winner's. A store that reads the absence in
			one step and inserts in another lets two writers create the record.`},
		{Guarantee: "I4", Name: "no-update-is-lost", Run: noLostUpdate, Doc: `
			Four handles count in one record at once, each reading it and writing at the version that it read, and
			repeating after ErrConflict. At the end the count and the version are the number of successful updates. A
			store that checks the version outside the step that writes overwrites another handle's update.`},
		{Guarantee: "I4", Name: "a-record-made-anew-repeats-no-version", Run: madeAnew, Doc: `
			A record is created, claimed and deleted, three times over and by two handles. Each new record starts
			above every version that its predecessors had, and a write guarded by any of those is ErrConflict. A
			store that starts a new record at version 1 lets an old claim match it.`},
		{Guarantee: "I4", Name: "versions-go-on-over-a-purge", Run: versionsOverPurge, Doc: `
			A run with a record that exists and one that was deleted is purged and created anew. The same keys start
			above the versions that they had, and a claim on an old version is ErrConflict; so does a record that is
			made with the run each time. A store that starts versions at 1 after a purge lets a claim on the former
			run match a record of the new one.`},
		{Guarantee: "I4", Name: "guards-are-judged-by-what-other-handles-wrote", Run: guardsOfOthers, Doc: `
			Two handles write in turn, each guarded by the version and the seq that the other has just made. Every
			write applies. A store whose handle judges a guard by its own memory of the run refuses the third write,
			or applies one that it should refuse.`},
	}
}

func versionsCount(t harness.T, e *harness.Env) {
	e.Create(t, "run")
	other := e.Reopen(t)
	for n := range runstore.Version(4) {
		kit.Equal(t, "version before", kit.Record(t, other, "run", "k").Version, n)
		kit.Equal(t, "version of the commit", kit.Put(t, e.Store, "run", "k", n, fmt.Sprint(n)), n+1)
	}
	// A batch of other records, or of none, leaves a record's version.
	kit.Equal(t, "version of another record", kit.Put(t, e.Store, "run", "other", 0, ""), 1)
	lease := e.Acquire(t, e.Store, "run", "owner")
	e.Append(t, e.Store, lease, "event")
	kit.Equal(t, "version at the end", kit.Record(t, other, "run", "k").Version, 4)
	// A put of an equal value is a change too: it may be a claim.
	kit.Equal(t, "version of an equal value", kit.Put(t, e.Store, "run", "k", 4, "3"), 5)

	kit.Equal(t, "version of a third record", kit.Put(t, e.Store, "run", "third", 0, ""), 1)
	b := runstore.NewBatch("run", runstore.AtVersion("k", 5))
	b.Put("third", nil)
	b.Delete("other")
	b.Put("k", []byte("again"))
	b.Delete("never was")
	kit.Equal(t, "versions in the order of the writes", kit.MustCommit(t, e.Store, b).Versions, []runstore.Version{2, 0, 6, 0})
}

func conflictTells(t harness.T, e *harness.Env) {
	spec := runstore.RunSpec{ID: "run", Status: 3}
	spec.Writes.Append("created", nil)
	if _, err := e.Store.CreateRun(t.Context(), spec); err != nil {
		t.Fatalf("create: %v", err)
	}
	for n := range runstore.Version(3) {
		kit.Put(t, e.Store, "run", "k", n, "")
	}
	kit.Put(t, e.Store, "run", "other", 0, "")
	for _, test := range []struct {
		key     runstore.RecordKey
		guards  []runstore.Guard
		want    runstore.Version
		current runstore.Version
	}{
		{"k", []runstore.Guard{runstore.AtVersion("k", 2)}, 2, 3},
		{"k", []runstore.Guard{runstore.AtVersion("k", 4)}, 4, 3},
		{"k", []runstore.Guard{runstore.AtVersion("k", 0)}, 0, 3},
		{"absent", []runstore.Guard{runstore.AtVersion("absent", 1)}, 1, 0},
		{"k", []runstore.Guard{runstore.AtVersion("other", 1), runstore.AtVersion("absent", 0), runstore.AtVersion("k", 1)}, 1, 3},
	} {
		b := runstore.NewBatch("run", test.guards[0], test.guards[1:]...)
		b.Put("k", []byte("refused"))
		_, err := e.Store.Commit(t.Context(), b)
		var conflict *runstore.ConflictError
		if !errors.As(err, &conflict) {
			t.Errorf("guards %v: got error %v, want a ConflictError", test.guards, err)
			continue
		}
		kit.Equal(t, fmt.Sprintf("conflict of guards %v", test.guards), *conflict, runstore.ConflictError{
			Guard: "version", Key: test.key, Want: test.want, Current: test.current, NextSeq: 2, Status: 3,
		})
	}
	kit.Equal(t, "value after the refusals", string(kit.Record(t, e.Store, "run", "k").Value), "")
}

func oneCreator(t harness.T, e *harness.Env) {
	const contenders = 6
	rounds := e.Scaled(t, "rounds", 3, 6)
	e.Create(t, "run")
	stores := kit.OpenHandles(t, e, contenders)
	for round := range rounds {
		key := runstore.RecordKey(fmt.Sprintf("key-%d", round))
		won := make(chan int, contenders)
		kit.RunConcurrently(t, contenders, func(i int) error {
			b := runstore.NewBatch("run", runstore.AtVersion(key, 0))
			b.Put(key, fmt.Append(nil, i))
			done, err := stores[i].Commit(t.Context(), b)
			if err == nil {
				won <- i
				if done.Versions[0] != 1 {
					return fmt.Errorf("the winner made version %d, want 1", done.Versions[0])
				}
				return nil
			}
			var conflict *runstore.ConflictError
			if !errors.As(err, &conflict) || conflict.Key != key || conflict.Current != 1 {
				return fmt.Errorf("a loser got %w, want a conflict at version 1", err)
			}
			return nil
		})
		if len(won) != 1 {
			t.Fatalf("round %d: %d contenders created the record, want 1", round, len(won))
		}
		kit.Equal(t, "value", string(kit.Record(t, e.Store, "run", key).Value), fmt.Sprint(<-won))
	}
}

func noLostUpdate(t harness.T, e *harness.Env) {
	const contenders = 4
	each := e.Scaled(t, "updates of each contender", 5, 15)
	e.Create(t, "run")
	kit.Put(t, e.Store, "run", "count", 0, "0")
	stores := kit.OpenHandles(t, e, contenders)
	kit.RunConcurrently(t, contenders, func(i int) error {
		s := stores[i]
		for n := 0; n < each; {
			found, err := s.ReadRecords(t.Context(), "run", runstore.RecordQuery{Keys: []runstore.RecordKey{"count"}})
			if err != nil {
				return err
			}
			var count int
			if _, err := fmt.Sscan(string(found[0].Value), &count); err != nil {
				return err
			}
			b := runstore.NewBatch("run", runstore.AtVersion("count", found[0].Version))
			b.Put("count", fmt.Append(nil, count+1))
			switch _, err := s.Commit(t.Context(), b); {
			case err == nil:
				n++
			case !errors.Is(err, runstore.ErrConflict):
				return err
			}
		}
		return nil
	})
	end := kit.Record(t, e.Store, "run", "count")
	kit.Equal(t, "count", string(end.Value), fmt.Sprint(contenders*each))
	kit.Equal(t, "version", end.Version, runstore.Version(contenders*each+1))
}

func madeAnew(t harness.T, e *harness.Env) {
	e.Create(t, "run")
	low := kit.Put(t, e.Store, "run", "low", 0, "made")
	other := e.Reopen(t)
	var last runstore.Version
	for round := range 3 {
		made := kit.Put(t, e.Store, "run", "k", 0, "made")
		if made <= last {
			t.Fatalf("round %d: the record made anew is at version %d, its predecessor reached %d", round, made, last)
		}
		last = kit.Put(t, other, "run", "k", made, "claimed")
		kit.Equal(t, "the next version", last, made+1)
		kit.Remove(t, e.Store, "run", "k", last)
		kit.Equal(t, "version of a deleted record", kit.Record(t, other, "run", "k").Version, 0)
	}
	// Neither a record that is deleted at a lower version nor another change in the same batch lowers the next one.
	kit.Remove(t, other, "run", "low", low)
	low = kit.Put(t, e.Store, "run", "low", 0, "made")
	if low <= last {
		t.Fatalf("the record made anew is at version %d, a deleted one reached %d", low, last)
	}
	last = low
	b := runstore.NewBatch("run", runstore.AtVersion("low", last))
	b.Delete("low")
	status := runstore.Status(7)
	b.Status = &status
	kit.MustCommit(t, e.Store, b)
	// No version that the deleted predecessors had matches the new record.
	made := kit.Put(t, other, "run", "k", 0, "made")
	if made <= last {
		t.Fatalf("the record made anew is at version %d, a deleted one reached %d", made, last)
	}
	for stale := runstore.Version(1); stale <= last; stale++ {
		b := runstore.NewBatch("run", runstore.AtVersion("k", stale))
		b.Put("k", []byte("stale"))
		_, err := e.Store.Commit(t.Context(), b)
		harness.Refused(t, fmt.Sprintf("a claim on version %d of a record that was deleted since", stale), err, runstore.ErrConflict)
	}
	kit.Equal(t, "the record", string(kit.Record(t, other, "run", "k").Value), "made")
	kit.Equal(t, "its version", kit.Record(t, other, "run", "k").Version, made)
}

func versionsOverPurge(t harness.T, e *harness.Env) {
	e.Create(t, "run")
	var last runstore.Version
	for range 3 {
		last = kit.Put(t, e.Store, "run", "k", last, "old")
	}
	kit.Put(t, e.Store, "run", "deleted", 0, "old")
	kit.Remove(t, e.Store, "run", "deleted", 1)
	b := runstore.NewBatch("run", runstore.AtVersion("k", last))
	b.Purge = true
	kit.MustCommit(t, e.Store, b)
	e.Create(t, "run")
	other := e.Reopen(t)
	for _, key := range []runstore.RecordKey{"k", "deleted"} {
		if made := kit.Put(t, other, "run", key, 0, "new"); key == "k" && made <= last || made <= 1 {
			t.Errorf("after the purge record %q begins at version %d, the purged one reached %d", key, made, last)
		}
		b := runstore.NewBatch("run", runstore.AtVersion(key, 1))
		b.Put(key, []byte("stale"))
		_, err := e.Store.Commit(t.Context(), b)
		harness.Refused(t, fmt.Sprintf("a claim on record %q of the purged run", key), err, runstore.ErrConflict)
		kit.Equal(t, "the record", string(kit.Record(t, other, "run", key).Value), "new")
	}
	spec := runstore.RunSpec{ID: "made with a record"}
	spec.Writes.Put("k", nil)
	for last, round := runstore.Version(0), 0; round < 3; round++ {
		created, err := e.Store.CreateRun(t.Context(), spec)
		if err != nil {
			t.Fatalf("create: %v", err)
		}
		made := created.Committed.Versions[0]
		if made <= last {
			t.Errorf("in round %d the record that is made with its run begins at version %d, and had version %d before", round+1, made, last)
		}
		last = made
		b := runstore.NewBatch(spec.ID, runstore.Unguarded("test"))
		b.Purge = true
		kit.MustCommit(t, e.Store, b)
	}
}

func guardsOfOthers(t harness.T, e *harness.Env) {
	e.Create(t, "run")
	handles := []runstore.RunStore{e.Store, e.Reopen(t)}
	for n := range 4 {
		b := runstore.NewBatch("run", runstore.AtVersion("record", runstore.Version(n)), runstore.AtSeq(runstore.Seq(n+1)))
		b.Append("test", nil)
		b.Put("record", nil)
		if _, err := handles[n%2].Commit(t.Context(), b); err != nil {
			t.Fatalf("write %d: its guards hold, and got %v", n+1, err)
		}
	}
}
