package spanner_test

import (
	"context"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/spanner"
)

// loseEvicted has the handle's next commit applied, or lost, and then lets between evict its result.
func loseEvicted(t *testing.T, tr *trick, made bool, between func()) {
	tr.next(func(send func(ctx context.Context) error) error {
		if made {
			if err := send(sending(t.Context())); err != nil {
				return err
			}
		}
		between()
		return status.Error(codes.Unknown, "lost, as the handle sees it")
	})
}

// evict commits as many events as a run keeps results.
func evict(t *testing.T, other *spanner.Store, id runstore.RunID, payload string, withID bool) {
	for range resultsKept {
		b := signal(id, payload)
		if withID {
			b.ID = runstore.NewBatchID()
		}
		commit(t, other, b)
	}
}

// journalCount returns how many events of a run's journal have the payload.
func journalCount(t *testing.T, s *spanner.Store, id runstore.RunID, payload string) (n int) {
	t.Helper()
	events, err := s.ReadJournal(t.Context(), id, 1, runstore.MaxPage)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range events {
		if string(e.Data) == payload {
			n++
		}
	}
	return n
}

// A commit whose reply was lost, and whose result the run has evicted since, is resolved by the journal. Its
// outcome is unknown, and it is not applied again, only if it has no events, if the run was purged since, or
// if it was not applied and another call may have applied a commit of its id.
func TestLostCommitThatIsForgotten(t *testing.T) {
	t.Parallel()
	const unknown = -1
	for _, tc := range []struct {
		name      string
		id        runstore.BatchID
		made      bool
		record    bool   // the commit has a record in place of the event
		purged    bool   // and created anew, before the other commits
		others    string // payload of the other commits
		want      runstore.Seq
		wantCount int
	}{
		{"applied", "", true, false, false, "later", 1, 1},
		{"applied, with an id", "one", true, false, false, "later", 1, 1},
		{"not applied", "", false, false, false, "later", resultsKept + 1, 1},
		{"not applied, and the others append the same", "", false, false, false, "one", resultsKept + 1, resultsKept + 1},
		{"not applied, with an id", "one", false, false, false, "later", unknown, 0},
		{"applied, without events", "", true, true, false, "later", unknown, 0},
		{"not applied, without events", "", false, true, false, "later", unknown, 0},
		{"applied, and the run created anew", "", true, false, true, "later", unknown, 0},
		{"applied, with an id, and the run created anew", "one", true, false, true, "later", unknown, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			var tr trick
			p := newDatabase(t, newest)
			s, other := openForgetful(t, p, tr.through), openForgetful(t, p)
			hold(t, s, "run")
			if !tc.made {
				// The journal shows that the run is the same if the creation was committed before the store
				// clock of the commit. The emulator's clock may go back by some milliseconds.
				c := raw(t, p)
				await(t, "the store clock is later than the creation", func() bool {
					return count(t, c, "SELECT COUNT(*) FROM Events WHERE Committed < TIMESTAMP_SUB(CURRENT_TIMESTAMP(), INTERVAL 100 MILLISECOND)") == 1
				})
			}
			b := signal("run", "one")
			if tc.record {
				b = runstore.NewBatch("run", runstore.Unguarded("test"))
				b.Put("record", []byte("one"))
			}
			b.ID = tc.id
			loseEvicted(t, &tr, tc.made, func() {
				if tc.purged {
					commit(t, other, purgeOf("run"))
					holdAnew(t, other, "run")
				}
				evict(t, other, "run", tc.others, tc.id != "")
			})
			done, err := s.Commit(t.Context(), b)
			switch {
			case !tr.played():
				t.Fatal("there was no commit")
			case tc.want == unknown && runstore.KindOf(err) != runstore.ErrUnknownOutcome:
				t.Errorf("got %+v, %v, want ErrUnknownOutcome", done, err)
			case tc.want != unknown && (err != nil || done.FirstSeq != tc.want || done.LastSeq != tc.want || done.Replayed || done.Time.IsZero()):
				t.Errorf("got %+v, %v, want seq %d", done, err, tc.want)
			}
			if n := journalCount(t, other, "run", "one"); n != tc.wantCount {
				t.Errorf("the event is in the journal %d times, want %d", n, tc.wantCount)
			}
		})
	}
}

// A commit whose reply was lost is resolved also if the client library's repeat of it meets an error that is
// not worth repeating. The store can be reached all the time, so the outcome is known in the end.
func TestLostCommitMeetsAnotherError(t *testing.T) {
	t.Parallel()
	for _, code := range []codes.Code{codes.FailedPrecondition, codes.NotFound, codes.Unauthenticated, codes.OutOfRange} {
		for what, applied := range map[string]bool{"applied": true, "not applied": false} {
			t.Run(code.String()+", "+what, func(t *testing.T) {
				t.Parallel()
				var tr trick
				s := open(t, newDatabase(t, newest), tr.through)
				hold(t, s, "run")
				tr.next(func(send func(ctx context.Context) error) error {
					if applied {
						if err := send(sending(t.Context())); err != nil {
							return err
						}
					}
					tr.next(func(func(ctx context.Context) error) error { return status.Error(code, "test") })
					return status.Error(codes.Unavailable, "lost, as the handle sees it")
				})
				done, err := s.Commit(t.Context(), signal("run", "one"))
				if !tr.played() {
					t.Fatal("the commit was not repeated")
				}
				if err != nil || done.FirstSeq != 1 || done.Replayed {
					t.Errorf("got %+v, %v, want seq 1", done, err)
				}
				if n := journalCount(t, s, "run", "one"); n != 1 {
					t.Errorf("the event is in the journal %d times, want once", n)
				}
			})
		}
	}
}

// A commit over several runs whose reply was lost, and whose results all runs have evicted since, is resolved
// by the journal of a run to which it appended, with the results of all.
func TestLostMultiCommitThatIsForgotten(t *testing.T) {
	t.Parallel()
	var tr trick
	p := newDatabase(t, newest)
	s, other := openForgetful(t, p, tr.through), openForgetful(t, p)
	hold(t, s, "run")
	hold(t, s, "second")
	batches := []runstore.Batch{runstore.NewBatch("run", runstore.Unguarded("test")), signal("second", "two")}
	batches[0].Put("record", []byte("one"))
	loseEvicted(t, &tr, true, func() {
		evict(t, other, "run", "later", false)
		evict(t, other, "second", "later", false)
	})
	done, err := s.CommitMulti(t.Context(), batches)
	if err != nil || !tr.played() {
		t.Fatalf("got %v", err)
	}
	if got := done[0]; got.Replayed || len(got.Versions) != 1 || got.Versions[0] != 1 {
		t.Errorf("the first run's result is %+v, want version 1 of the record", got)
	}
	if got := done[1]; got.Replayed || got.FirstSeq != 1 || got.LastSeq != 1 {
		t.Errorf("the second run's result is %+v, want seq 1", got)
	}
	if n := journalCount(t, other, "second", "two"); n != 1 {
		t.Errorf("the event is in the journal %d times, want once", n)
	}
}
