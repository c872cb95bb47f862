package spanner_test

import (
	"context"
	"fmt"
	"reflect"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/spanner"
)

// remembered is how many results a run of the tests here keeps: few, because the emulator is
// slow.
const resultsKept = 4

// openForgetful opens a handle whose runs keep few results. However slow the machine is,
// its operations do not give up.
func openForgetful(t testing.TB, p testDatabase, change ...func(*spanner.Options)) *spanner.Store {
	t.Helper()
	s := open(t, p, append(change, patient)...)
	s.SetAttemptTimeout(hang)
	s.SetRemembered(resultsKept)
	return s
}

// A commit to several runs that was made, and whose answer was lost, is told as made by
// any of its runs that remembers it, whatever has become of the others when that is
// looked into. So is a repeat of it.
func TestLostCommitToldByTheRunsThatRemember(t *testing.T) {
	t.Parallel()
	purge := func(t *testing.T, other *spanner.Store) { commit(t, other, purgeOf("run")) }
	for _, tc := range []struct {
		name    string
		between func(t *testing.T, other *spanner.Store)
		ids     [2]runstore.BatchID
		told    bool // what the first run's result was: a purge leaves those of ids of the adapter's
	}{
		{"purged", purge, [2]runstore.BatchID{"one", "two"}, false},
		{"purged, without ids", purge, [2]runstore.BatchID{}, true},
		{"purged, one without an id", purge, [2]runstore.BatchID{"", "two"}, true},
		{"purged and made anew", func(t *testing.T, other *spanner.Store) {
			purge(t, other)
			holdAnew(t, other, "run")
		}, [2]runstore.BatchID{"one", "two"}, false},
		{"forgotten", func(t *testing.T, other *spanner.Store) {
			for range resultsKept {
				b := signal("run", "later")
				b.ID = runstore.NewBatchID()
				commit(t, other, b)
			}
		}, [2]runstore.BatchID{"one", "two"}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			var tr trick
			p := newDatabase(t, newest)
			s, other := openForgetful(t, p, tr.through), openForgetful(t, p)
			hold(t, s, "run")
			hold(t, s, "second")
			batches := []runstore.Batch{signal("run", "one"), signal("second", "two")}
			for i, id := range tc.ids {
				batches[i].ID = id
			}
			tr.next(func(send func(ctx context.Context) error) error {
				if err := send(sending(t.Context())); err != nil {
					return err
				}
				tc.between(t, other)
				return status.Error(codes.Unknown, "lost, as the handle sees it")
			})
			done, err := s.CommitMulti(t.Context(), batches)
			if err != nil || !tr.played() {
				t.Fatalf("got %v", err)
			}
			forgotten := runstore.Committed{Replayed: true}
			if got := done[0]; got.Replayed == tc.told || !tc.told && !reflect.DeepEqual(got, forgotten) {
				t.Errorf("the first run's result is %+v, and whether it was to be had: %t", got, tc.told)
			}
			if got := done[1]; got.FirstSeq != 1 || got.LastSeq != 1 || got.Replayed {
				t.Errorf("the second run's result is %+v", got)
			}
			journalOf := func(id runstore.RunID) (ones int) {
				events, err := other.ReadJournal(t.Context(), id, 1, runstore.MaxPage)
				if err != nil {
					return 0
				}
				for _, e := range events {
					if string(e.Data) == "one" || string(e.Data) == "two" {
						ones++
					}
				}
				return ones
			}
			was := [2]int{journalOf("run"), journalOf("second")}
			if tc.ids != [2]runstore.BatchID{} {
				again, err := other.CommitMulti(t.Context(), batches)
				if err != nil {
					t.Fatalf("a repeat: %v", err)
				}
				want := done[1]
				want.Replayed = true
				if !reflect.DeepEqual(again, []runstore.Committed{forgotten, want}) {
					t.Errorf("a repeat: got %+v, want nothing of the first run, and %+v", again, want)
				}
			}
			if is := [2]int{journalOf("run"), journalOf("second")}; is != was || is[1] != 1 {
				t.Errorf("the batches are there %v times, and were %v times", is, was)
			}
		})
	}
}

// A commit whose answer was lost, of a run that was purged and created again before the handle
// made it once more, has an unknown outcome: it must not be applied to the new run.
func TestLostCommitBeforeAPurge(t *testing.T) {
	t.Parallel()
	for _, id := range []runstore.BatchID{"", "one"} {
		t.Run(fmt.Sprintf("id %q", id), func(t *testing.T) {
			t.Parallel()
			var tr trick
			p := newDatabase(t, newest)
			s, other := openForgetful(t, p, tr.through), openForgetful(t, p)
			hold(t, s, "run")
			b := signal("run", "one")
			b.ID = id
			tr.next(func(send func(ctx context.Context) error) error {
				if err := send(sending(t.Context())); err != nil {
					return err
				}
				purge := runstore.NewBatch("run", runstore.Unguarded("test"))
				purge.Purge = true
				commit(t, other, purge)
				if _, err := other.CreateRun(t.Context(), runstore.RunSpec{ID: "run"}); err != nil {
					t.Error(err)
				}
				return status.Error(codes.Unknown, "lost, as the handle sees it")
			})
			_, err := s.Commit(t.Context(), b)
			if !tr.played() {
				t.Fatal("there was no commit")
			}
			if err != nil && runstore.KindOf(err) != runstore.ErrUnknownOutcome {
				t.Errorf("got %v, want the result of the commit or ErrUnknownOutcome", err)
			}
			events, err := other.ReadJournal(t.Context(), "run", 1, runstore.MaxPage)
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range events {
				if string(e.Data) == "one" {
					t.Error("the commit was applied to the run before the purge, and again to the run after it")
				}
			}
		})
	}
}

// TestRepeatedPurgeAmongOthers checks that a purge which is a repeat stays one while the commit that it is
// part of is resolved after a lost reply: the other batch is applied once, and the run is kept.
func TestRepeatedPurgeAmongOthers(t *testing.T) {
	t.Parallel()
	for name, made := range map[string]bool{"applied": true, "not applied": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var tr trick
			s := open(t, newDatabase(t, newest), tr.through, patient)
			s.SetAttemptTimeout(hang)
			hold(t, s, "run")
			hold(t, s, "second")
			b := signal("run", "step")
			b.ID = "step"
			first := commit(t, s, b)
			purge := purgeOf("run")
			purge.ID = "step"
			loseEvicted(t, &tr, made, func() {})
			done, err := s.CommitMulti(t.Context(), []runstore.Batch{purge, signal("second", "other")})
			if err != nil || !tr.played() {
				t.Fatalf("got %v, want no error after a lost reply", err)
			}
			if done[0].LastSeq != first.LastSeq || !done[0].Time.Equal(first.Time) || !done[0].Replayed || done[1].LastSeq != 1 {
				t.Errorf("got %+v, want the result %+v again, and seq 1 in the other run", done, first)
			}
			if kept, other := journalCount(t, s, "run", "step"), journalCount(t, s, "second", "other"); kept != 1 || other != 1 {
				t.Errorf("the journals have %d and %d of the events, want 1 each", kept, other)
			}
		})
	}
}
