package cases

import (
	"fmt"
	"slices"

	"github.com/tapestore/tapestore/conformance/harness"
	"github.com/tapestore/tapestore/conformance/internal/kit"
	"github.com/tapestore/tapestore/runstore"
)

// forgotten is the result of a repeat for a run that has forgotten the id of its part.
var forgotten = runstore.Committed{Replayed: true}

// replay returns the result of a repeat for a run that remembers its part.
func replay(first runstore.Committed) runstore.Committed {
	first.Replayed = true
	return first
}

// multiRepeatWhole leaves its batches unguarded: only the last run's memory of the id prevents a
// second application.
func multiRepeatWhole(t harness.T, e *harness.Env) {
	runs := []runstore.RunID{"one", "two", "three"}
	batches := make([]runstore.Batch, len(runs))
	for i, id := range runs {
		kit.SeedFixture(t, e, id)
		batches[i] = unguarded(id, runstore.NewBatchID())
		kit.WriteEverything(&batches[i].Writes, "multi", 5)
	}
	first, err := commitMulti(t, e.Store, batches...)
	if err != nil || len(first) != len(runs) {
		t.Fatalf("commit: %d results, %v", len(first), err)
	}
	other := e.Reopen(t)
	repeated := func(what string, left []runstore.RunID, wants map[runstore.RunID][]runstore.Committed) {
		t.Helper()
		before := kit.DumpAll(t, e.Store, left, kit.AllIndexes...)
		for _, order := range [][]int{{2, 0, 1}, {1, 2, 0}} {
			var asked []runstore.Batch
			for _, i := range order {
				asked = append(asked, batches[i])
			}
			got, err := commitMulti(t, other, asked...)
			if err != nil || len(got) != len(asked) {
				t.Fatalf("%s: %d results, %v", what, len(got), err)
			}
			for i, b := range asked {
				oneOf(t, fmt.Sprintf("%s: result on run %q", what, b.Run()), got[i], wants[b.Run()]...)
			}
			kit.CheckUnchanged(t, what, before, kit.DumpAll(t, e.Store, left, kit.AllIndexes...))
		}
	}
	purgeRun(t, e, "one")
	e.Create(t, "one")
	kit.EvictBatchIDs(t, e, "two")
	wants := map[runstore.RunID][]runstore.Committed{
		"one": {forgotten}, "two": {forgotten, replay(first[1])}, "three": {replay(first[2])},
	}
	repeated("a repeat on a run made anew, one that may have forgotten, and one that remembers", runs, wants)
	kit.Equal(t, "journal of the run made anew", kit.JournalText(kit.Journal(t, e.Store, "one")), "")
	kit.Equal(t, "journal of the run that may have forgotten", kit.JournalText(kit.Journal(t, e.Store, "two")), "begin@1 multi/first@0 multi/second@0")

	purgeRun(t, e, "two")
	wants["two"] = []runstore.Committed{forgotten}
	repeated("a repeat on a run made anew, one that is gone, and one that remembers", []runstore.RunID{"one", "three"}, wants)
	_, err = e.Store.GetRun(t.Context(), "two")
	harness.Refused(t, "the run that is gone", err, runstore.ErrNotFound)
	repeats(t, "one run's part alone", batches[2], first[2], e.Store, other)
	multiAnother(t, e, other, batches[2], first[2])
}

// multiAnother makes commits that share a batch with an earlier commit without being its repeats,
// and commits in which some batches, or all, have no id.
func multiAnother(t harness.T, e *harness.Env, other runstore.RunStore, known runstore.Batch, first runstore.Committed) {
	commit := func(what string, batches ...runstore.Batch) []runstore.Committed {
		t.Helper()
		done, err := commitMulti(t, other, batches...)
		if err != nil || len(done) != len(batches) {
			t.Fatalf("%s: %d results, %v", what, len(done), err)
		}
		return done
	}
	appending := func(run runstore.RunID, id runstore.BatchID, data string) runstore.Batch {
		b := unguarded(run, id)
		b.Append("test", []byte(data))
		return b
	}
	e.Create(t, "four")
	mixed := appending("four", runstore.NewBatchID(), "mixed")
	before := kit.Dump(t, e.Store, "three", kit.AllIndexes...)
	done := commit("a new batch beside one that is remembered", mixed, known)
	kit.Equal(t, "the new batch beside one that is remembered", [2]any{done[0].FirstSeq, done[0].Replayed}, [2]any{runstore.Seq(1), false})
	oneOf(t, "the one that is remembered, beside a new batch", done[1], replay(first))
	again := commit("a repeat of the mixed commit", known, mixed)
	oneOf(t, "the new batch of the mixed commit, repeated", again[1], replay(done[0]))
	oneOf(t, "the old batch of the mixed commit, repeated", again[0], replay(first))
	kit.CheckUnchanged(t, "a batch that is remembered, beside a new one", before, kit.Dump(t, e.Store, "three", kit.AllIndexes...))

	// The same runs as the mixed commit under another id are another commit.
	first = done[0]
	second := appending("three", runstore.NewBatchID(), "second")
	done = commit("another batch beside one of the mixed commit", mixed, second)
	oneOf(t, "the batch of the mixed commit, beside another", done[0], replay(first))
	kit.Equal(t, "replayed, another batch beside one of the mixed commit", done[1].Replayed, false)

	e.Create(t, "five")
	half, end, beside := appending("four", "", "half"), unguarded("five", runstore.NewBatchID()), appending("three", runstore.NewBatchID(), "beside")
	end.Purge = true
	done = commit("one batch without an id, one that purges, one with an id", half, end, beside)
	for i, one := range done {
		kit.Equal(t, fmt.Sprintf("replayed, at first, result %d", i), one.Replayed, false)
	}
	again = commit("a repeat of that", end, half, beside)
	oneOf(t, "the purge, repeated", again[0], forgotten)
	oneOf(t, "the batch without an id, repeated", again[1], forgotten)
	oneOf(t, "the batch with an id, repeated", again[2], replay(done[2]))

	for range 2 {
		commit("batches without ids", appending("four", "", "plain"), appending("three", "", "plain"))
	}
	kit.Equal(t, "journal of the new run", kit.JournalText(kit.Journal(t, e.Store, "four")), "mixed@0 half@0 plain@0 plain@0")
	kit.Equal(t, "journal of the old run", kit.JournalText(kit.Journal(t, e.Store, "three")), "begin@1 multi/first@0 multi/second@0 second@0 beside@0 plain@0 plain@0")
}

// unguarded returns a batch that only its id can keep from being applied.
func unguarded(run runstore.RunID, id runstore.BatchID) runstore.Batch {
	b := runstore.NewBatch(run, runstore.Unguarded("test"))
	b.ID = id
	return b
}

// purgeRun purges a run, whoever holds its lease.
func purgeRun(t harness.T, e *harness.Env, run runstore.RunID) {
	t.Helper()
	b := unguarded(run, "")
	b.Purge = true
	kit.MustCommit(t, e.Store, b)
}

// oneOf fails the case unless got is one of the allowed results.
func oneOf(t harness.T, what string, got runstore.Committed, want ...runstore.Committed) {
	t.Helper()
	matches := func(w runstore.Committed) bool {
		return got.FirstSeq == w.FirstSeq && got.LastSeq == w.LastSeq && got.Time.Equal(w.Time) && got.Replayed == w.Replayed &&
			slices.Equal(got.Versions, w.Versions)
	}
	if !slices.ContainsFunc(want, matches) {
		t.Errorf("%s: got %+v, want one of %+v", what, got, want)
	}
}
