package postgres_test

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/postgres"
)

// suspended sets the clock of a handle whose machine was suspended: the time of day shows it, the monotonic clock
// does not.
func suspended(by *atomic.Int64) func(*pgxpool.Config, *postgres.Options) {
	return func(_ *pgxpool.Config, o *postgres.Options) {
		o.Clock = func() time.Time { return time.Now().Add(time.Duration(by.Load())) }
	}
}

// The machine of a handle is suspended with a commit in flight, whose reply is lost. Meanwhile the run is purged
// and created anew, or has forgotten the result. The commit is not sent again.
func TestSuspendedWithACommitInFlight(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		meanwhile func(t *testing.T, other *postgres.Store)
		age       string // makes what happened meanwhile an hour older
		writes    func(b *runstore.Batch)
		records   int // that are left, each at its first version
	}{
		"purged and created anew": {
			meanwhile: func(t *testing.T, other *postgres.Store) {
				purge(t, other, "run")
				if _, err := other.CreateRun(t.Context(), runstore.RunSpec{ID: "run"}); err != nil {
					t.Error(err)
				}
			},
			age:    `UPDATE tapestore.runs SET created = created - interval '1 hour'`,
			writes: func(b *runstore.Batch) { b.Append("test", []byte("event")) },
		},
		"forgotten": {
			meanwhile: func(t *testing.T, other *postgres.Store) {
				for range 3 * runstore.RememberedBatches {
					b := runstore.NewBatch("run", runstore.Unguarded("test"))
					b.ID = runstore.NewBatchID()
					commit(t, other, b)
				}
			},
			age: `UPDATE tapestore.batches SET at = at - interval '1 hour'`,
			writes: func(b *runstore.Batch) {
				b.ID = runstore.NewBatchID()
				b.Put("key", []byte("value"))
			},
			records: 1,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			address := database(t)
			other := open(t, address)
			var by atomic.Int64
			i := &interloper{wire: &wire{}, before: ".settle("}
			i.do = func() {
				tc.meanwhile(t, other)
				exec(t, connect(t, address), tc.age)
				by.Store(int64(2 * time.Hour))
			}
			s := open(t, with(address, "default_query_exec_mode=exec"), i.through, suspended(&by))
			if _, err := s.CreateRun(t.Context(), runstore.RunSpec{ID: "run"}); err != nil {
				t.Fatal(err)
			}
			b := runstore.NewBatch("run", runstore.Unguarded("test"))
			tc.writes(&b)
			i.lose(loseReply, "")
			if _, err := s.Commit(t.Context(), b); !errors.Is(err, runstore.ErrUnknownOutcome) {
				t.Errorf("got error %v, want ErrUnknownOutcome", err)
			}
			wantJournal(t, other, "run")
			records, err := other.ReadRecords(t.Context(), "run", runstore.RecordQuery{Keys: []runstore.RecordKey{"key"}})
			if err != nil || len(records) != tc.records || tc.records > 0 && records[0].Version != 1 {
				t.Errorf("got records %+v, %v, want %d, at version 1", records, err, tc.records)
			}
		})
	}
}

// The reply of a creation is lost. Before it is settled the run is granted so often that its row has no trace of
// the creation left, and is purged in one case. The creation is not sent again.
func TestLostCreationBeforeManyGrants(t *testing.T) {
	t.Parallel()
	for _, purged := range []bool{true, false} {
		t.Run(fmt.Sprint("purged: ", purged), func(t *testing.T) {
			t.Parallel()
			address := database(t)
			other := open(t, address)
			i := &interloper{wire: &wire{}, before: ".settle("}
			i.do = func() {
				for range 16 {
					if _, err := other.AcquireLease(t.Context(), runstore.AcquireRequest{
						Run: "run", LeaseSpec: runstore.LeaseSpec{Owner: "owner", TTL: time.Minute}, Preempt: "test",
					}); err != nil {
						t.Errorf("preempt: %v", err)
					}
				}
				if purged {
					purge(t, other, "run")
				}
			}
			s := open(t, with(address, "default_query_exec_mode=exec"), i.through)
			spec := runstore.RunSpec{ID: "run"}
			if purged {
				spec.Writes.Append("test", []byte("event"))
			}
			i.lose(loseReply, "")
			if created, err := s.CreateRun(t.Context(), spec); !errors.Is(err, runstore.ErrForgotten) {
				t.Errorf("got %+v, %v, want ErrForgotten", created, err)
			}
			if !i.harmed() {
				t.Error("no message was lost")
			}
			if run, err := other.GetRun(t.Context(), "run"); purged != errors.Is(err, runstore.ErrNotFound) {
				t.Errorf("got run %+v, %v, want none if and only if it was purged", run, err)
			}
		})
	}
}

// A release that never reached the server is sent again, also in a run that has forgotten results of batches with
// ids: so few results were added since that none of them can have evicted its own.
func TestLostReleaseOfALongRun(t *testing.T) {
	t.Parallel()
	w := &wire{}
	s := open(t, with(database(t), "default_query_exec_mode=exec"), w.through)
	lease := hold(t, s, "run")
	for range 3 * runstore.RememberedBatches {
		b := appending(lease, "event")
		b.ID = runstore.NewBatchID()
		commit(t, s, b)
	}
	w.lose(loseRequest, "")
	if _, err := s.ReleaseLease(t.Context(), runstore.ReleaseRequest{Fence: lease.Fence()}); err != nil {
		t.Errorf("got error %v, want a release", err)
	}
	if !w.harmed() {
		t.Error("no message was lost")
	}
}

// A commit to a run that was purged long ago never reached the server: its outcome is certain.
func TestLostCommitToAPurgedRun(t *testing.T) {
	t.Parallel()
	w, address := &wire{}, database(t)
	s := open(t, with(address, "default_query_exec_mode=exec"), w.through)
	lease := hold(t, s, "run")
	commit(t, s, appending(lease, "event"))
	purge(t, s, "run")
	exec(t, connect(t, address), "UPDATE tapestore.runs SET created = created - interval '1 hour'") // a purged run's is when it was purged
	w.lose(loseRequest, "")
	if _, err := s.Commit(t.Context(), appending(lease, "event")); !errors.Is(err, runstore.ErrNotFound) {
		t.Errorf("got error %v, want ErrNotFound", err)
	}
}
