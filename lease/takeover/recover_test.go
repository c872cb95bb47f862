package takeover_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tapestore/tapestore/crossrun"
	"github.com/tapestore/tapestore/lease"
	"github.com/tapestore/tapestore/lease/takeover"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
)

// plain hides the store's way of committing over two runs, and fails commits after the first ones,
// as if the process had died.
type plain struct {
	runstore.RunStore
	left int
}

func (s *plain) Commit(ctx context.Context, b runstore.Batch) (runstore.Committed, error) {
	if s.left == 0 {
		return runstore.Committed{}, &runstore.OpError{Op: "commit", Run: b.Run(), Err: runstore.ErrUnknownOutcome}
	}
	s.left--
	return s.RunStore.Commit(ctx, b)
}

// A step over two runs that a driver left in progress is completed before the work starts.
func TestStepIsRecoveredBeforeWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New(nil).Open()
		create(t, store, "lead", &runstore.LeaseSpec{Owner: "dead", TTL: time.Second, Grant: "grant"})
		if _, err := store.CreateRun(t.Context(), runstore.RunSpec{ID: "other"}); err != nil {
			t.Fatal(err)
		}
		held, err := store.AcquireLease(t.Context(), runstore.AcquireRequest{Run: "lead", LeaseSpec: runstore.LeaseSpec{Owner: "dead", TTL: time.Second, Grant: "grant"}})
		if err != nil {
			t.Fatal(err)
		}
		lead := runstore.NewBatch("lead", held.Fence())
		lead.Append("step", nil)
		other := runstore.NewBatch("other", runstore.AtVersion("record", 0))
		other.Append("step", nil)
		if _, err := crossrun.Commit(t.Context(), &plain{store, 2}, lead, other); !errors.Is(err, runstore.ErrUnknownOutcome) {
			t.Fatalf("got %v, want that the step is cut short", err)
		}

		var seen int
		w := worker(t, store, "worker", takeover.Options{})
		stop := run(t, func(ctx context.Context, held *lease.Held, r runstore.Run) error {
			for _, id := range []runstore.RunID{"lead", "other"} {
				events, err := store.ReadJournal(ctx, id, 1, 10)
				if err != nil {
					return err
				}
				seen += len(events)
			}
			held.ReleaseWith(runstore.Writes{Runnable: runstore.Never()})
			return nil
		}, w)
		time.Sleep(time.Minute)
		stop()
		if seen != 2 {
			t.Errorf("the work saw %d events of the step, want 2: on both runs", seen)
		}
	})
}

// If the step cannot be completed, the work does not start, and the run is claimed again later.
func TestWorkWaitsForTheStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New(nil).Open()
		create(t, store, "run", nil)
		broken := &unreadable{RunStore: store, left: 2}
		ran := 0
		w := worker(t, broken, "worker", takeover.Options{})
		stop := run(t, func(_ context.Context, held *lease.Held, r runstore.Run) error {
			ran++
			if r.Holder.Former != runstore.EndRevoked {
				t.Errorf("the former grant was %v, want revoked: its work never ran", r.Holder.Former)
			}
			held.ReleaseWith(runstore.Writes{Runnable: runstore.Never()})
			return nil
		}, w)
		time.Sleep(time.Minute)
		stop()
		if s := w.Status(); ran != 1 || s.Failed != 2 || s.Takeovers != 3 {
			t.Errorf("the work ran %d times, status %+v; want once, after two failures", ran, s)
		}
	})
}

// unreadable fails the first reads of records.
type unreadable struct {
	runstore.RunStore
	left int
}

func (s *unreadable) ReadRecords(ctx context.Context, id runstore.RunID, q runstore.RecordQuery) ([]runstore.Record, error) {
	if s.left > 0 {
		s.left--
		return nil, &runstore.OpError{Op: "read records", Run: id, Err: runstore.ErrUnavailable, Cause: errors.New("a fault of the test")}
	}
	return s.RunStore.ReadRecords(ctx, id, q)
}

// silent is a store that never answers the first request of one operation.
type silent struct {
	runstore.RunStore
	op    string
	asked atomic.Bool
}

func (s *silent) silence(ctx context.Context, op string) error {
	if s.op != op || s.asked.Swap(true) {
		return nil
	}
	<-ctx.Done()
	return &runstore.OpError{Op: op, Err: runstore.ErrUnavailable, Cause: context.Cause(ctx)}
}

func (s *silent) ScanIndex(ctx context.Context, q runstore.IndexQuery) ([]runstore.IndexEntry, error) {
	if err := s.silence(ctx, "scan"); err != nil {
		return nil, err
	}
	return s.RunStore.ScanIndex(ctx, q)
}

func (s *silent) ReadRecords(ctx context.Context, id runstore.RunID, q runstore.RecordQuery) ([]runstore.Record, error) {
	if err := s.silence(ctx, "read the step in progress"); err != nil {
		return nil, err
	}
	return s.RunStore.ReadRecords(ctx, id, q)
}

func (s *silent) GetRun(ctx context.Context, id runstore.RunID) (runstore.Run, error) {
	if err := s.silence(ctx, "read the run"); err != nil {
		return runstore.Run{}, err
	}
	return s.RunStore.GetRun(ctx, id)
}

// A request that the store never answers delays the work on a run, and does not keep it for ever.
func TestRequestThatIsNeverAnswered(t *testing.T) {
	for _, op := range []string{"scan", "read the step in progress", "read the run"} {
		t.Run(op, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := memory.New(nil).Open()
				create(t, store, "run", nil)
				ran := 0
				stop := run(t, finish(time.Second, func(runstore.RunID) { ran++ }),
					worker(t, &silent{RunStore: store, op: op}, "worker", takeover.Options{}))
				time.Sleep(5 * time.Minute)
				stop()
				if ran != 1 {
					t.Errorf("the work ran %d times, want once", ran)
				}
			})
		})
	}
}
