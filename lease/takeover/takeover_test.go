package takeover_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tapestore/tapestore/lease"
	"github.com/tapestore/tapestore/lease/takeover"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
)

// slow is a store whose scans and acquires take 1 to 5 ms on the way there and back, so that
// workers race for what they have scanned.
type slow struct{ runstore.RunStore }

func travel() { time.Sleep(time.Millisecond + rand.N(4*time.Millisecond)) }

func (s slow) ScanIndex(ctx context.Context, q runstore.IndexQuery) ([]runstore.IndexEntry, error) {
	travel()
	defer travel()
	return s.RunStore.ScanIndex(ctx, q)
}

func (s slow) AcquireLease(ctx context.Context, r runstore.AcquireRequest) (runstore.Granted, error) {
	travel()
	defer travel()
	return s.RunStore.AcquireLease(ctx, r)
}

func quiet(o takeover.Options) *takeover.Options {
	o.Logger = slog.New(slog.DiscardHandler)
	return &o
}

func worker(t *testing.T, s runstore.RunStore, name string, o takeover.Options) *takeover.Worker {
	t.Helper()
	w, err := takeover.New(s, runstore.Owner(name), quiet(o))
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// create creates a run that wants a driver now.
func create(t *testing.T, s runstore.RunStore, id runstore.RunID, held *runstore.LeaseSpec) {
	t.Helper()
	if _, err := s.CreateRun(t.Context(), runstore.RunSpec{ID: id, Runnable: runstore.After(0), Lease: held}); err != nil {
		t.Fatal(err)
	}
}

// finish is work that takes d and ends the run.
func finish(d time.Duration, driven func(id runstore.RunID)) takeover.Work {
	return func(ctx context.Context, held *lease.Held, run runstore.Run) error {
		driven(run.ID)
		select {
		case <-time.After(d):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		held.ReleaseWith(runstore.Writes{Runnable: runstore.Never()})
		return nil
	}
}

// run runs workers until the test calls the function that it returns, which waits for them.
func run(t *testing.T, work takeover.Work, workers ...*takeover.Worker) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for _, w := range workers {
		all.Go(func() {
			if err := w.Run(ctx, work); !errors.Is(err, context.Canceled) {
				t.Errorf("run: %v, want the context's cause", err)
			}
		})
	}
	return func() { cancel(); all.Wait() }
}

// 50 workers that find 100 expired leases need at most 1.5 attempts per takeover, drive each run
// once, and share the runs.
func TestFiftyWorkersOnAHundredExpiredLeases(t *testing.T) {
	for range 20 {
		synctest.Test(t, func(t *testing.T) {
			store := memory.New(nil).Open()
			for i := range 100 {
				create(t, store, runstore.RunID(fmt.Sprint("run ", i)), &runstore.LeaseSpec{Owner: "dead", TTL: time.Second})
			}
			time.Sleep(time.Second)
			var mu sync.Mutex
			driven := map[runstore.RunID]int{}
			var workers []*takeover.Worker
			for i := range 50 {
				workers = append(workers, worker(t, slow{store}, fmt.Sprint("worker ", i), takeover.Options{}))
			}
			stop := run(t, finish(10*time.Second, func(id runstore.RunID) {
				mu.Lock()
				defer mu.Unlock()
				driven[id]++
			}), workers...)
			time.Sleep(time.Minute)
			stop()

			var total takeover.Status
			busy, most := 0, int64(0)
			for _, w := range workers {
				s := w.Status()
				total.Attempts += s.Attempts
				total.Takeovers += s.Takeovers
				total.Scans += s.Scans
				most = max(most, s.Takeovers)
				if s.Takeovers > 0 {
					busy++
				}
			}
			if len(driven) != 100 || total.Takeovers != 100 {
				t.Errorf("%d runs driven by %d takeovers, want 100 by 100", len(driven), total.Takeovers)
			}
			if total.Attempts > 150 {
				t.Errorf("%d attempts for 100 takeovers, want at most 150", total.Attempts)
			}
			if busy < 15 || most > takeover.DefaultMaxInFlight {
				t.Errorf("%d of 50 workers had work, one of them %d runs; want at least 15, and at most %d runs", busy, most, takeover.DefaultMaxInFlight)
			}
			if testing.Verbose() {
				t.Logf("%d attempts and %d scans for 100 takeovers by %d workers, at most %d by one", total.Attempts, total.Scans, busy, most)
			}
		})
	}
}

// A worker runs at most MaxInFlight pieces of work, and claims further runs as they end.
func TestMaxInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New(nil).Open()
		for i := range 20 {
			create(t, store, runstore.RunID(fmt.Sprint("run ", i)), nil)
		}
		var now, most, all atomic.Int32
		w := worker(t, store, "worker", takeover.Options{MaxInFlight: 3})
		stop := run(t, func(ctx context.Context, held *lease.Held, r runstore.Run) error {
			most.Store(max(most.Load(), now.Add(1)))
			defer now.Add(-1)
			return finish(2*time.Second, func(runstore.RunID) { all.Add(1) })(ctx, held, r)
		}, w)
		time.Sleep(time.Minute)
		stop()
		if most.Load() != 3 || all.Load() != 20 {
			t.Errorf("%d runs driven, at most %d at a time; want 20 and 3", all.Load(), most.Load())
		}
	})
}

// Work that fails is repeated with growing pauses. A lost lease is left alone for the cooldown.
func TestPausesAfterFailureAndLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New(nil).Open()
		create(t, store, "fails", nil)
		create(t, store, "is preempted", nil)
		var mu sync.Mutex
		at := map[runstore.RunID][]time.Time{}
		w := worker(t, store, "worker", takeover.Options{Cooldown: 40 * time.Second, Lease: &lease.Options{TTL: 3 * time.Second}})
		stop := run(t, func(ctx context.Context, held *lease.Held, r runstore.Run) error {
			mu.Lock()
			at[r.ID] = append(at[r.ID], time.Now())
			mu.Unlock()
			if r.ID == "fails" {
				return errors.New("a fault of the test")
			}
			// Another driver preempts the lease, and releases the run while it is still due.
			g, err := store.AcquireLease(ctx, runstore.AcquireRequest{Run: r.ID, Preempt: "test", LeaseSpec: runstore.LeaseSpec{Owner: "other", TTL: time.Minute}})
			if err != nil {
				return err
			}
			if _, err := store.ReleaseLease(ctx, runstore.ReleaseRequest{Fence: g.Fence()}); err != nil {
				return err
			}
			<-ctx.Done()
			return context.Cause(ctx)
		}, w)
		time.Sleep(100 * time.Second)
		stop()
		mu.Lock()
		defer mu.Unlock()
		if n := len(at["fails"]); n < 8 || n > 30 {
			t.Errorf("work that fails ran %d times in 100 s, want 8 to 30: backoff from 1 to 10 s", n)
		}
		lost := at["is preempted"]
		for i := 1; i < len(lost); i++ {
			if d := lost[i].Sub(lost[i-1]); d < 40*time.Second {
				t.Errorf("claimed again %v after the claim that was lost, want at least the cooldown of 40 s", d)
			}
		}
		if s := w.Status(); len(lost) < 2 || s.Lost != int64(len(lost)) || s.Failed != int64(len(at["fails"])) {
			t.Errorf("%d claims of the run that is preempted, status %+v; want at least 2, and each counted", len(lost), s)
		}
	})
}

// A claim whose reply was lost is repeated under its grant id, and the run is driven under the
// lease that the first request got.
func TestClaimOfUnknownOutcome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New(nil).Open()
		create(t, store, "run", nil)
		lossy := &lossy{RunStore: store, lose: 2}
		var tokens []runstore.Token
		w := worker(t, lossy, "worker", takeover.Options{})
		stop := run(t, func(_ context.Context, held *lease.Held, _ runstore.Run) error {
			tokens = append(tokens, held.Fence().Token())
			held.ReleaseWith(runstore.Writes{Runnable: runstore.Never()})
			return nil
		}, w)
		time.Sleep(time.Minute)
		stop()
		if len(tokens) != 1 || tokens[0] != 1 {
			t.Errorf("driven under the tokens %v, want once under token 1", tokens)
		}
	})
}

// lossy loses the replies of the first acquires.
type lossy struct {
	runstore.RunStore
	lose int
}

func (s *lossy) AcquireLease(ctx context.Context, r runstore.AcquireRequest) (runstore.Granted, error) {
	g, err := s.RunStore.AcquireLease(ctx, r)
	if err == nil && s.lose > 0 {
		s.lose--
		return runstore.Granted{}, &runstore.OpError{Op: "acquire lease", Run: r.Run, Err: runstore.ErrUnknownOutcome}
	}
	return g, err
}

// When its context ends, a worker waits for its work and releases the leases.
func TestEndReleases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New(nil).Open()
		create(t, store, "run", nil)
		returned := false
		w := worker(t, store, "worker", takeover.Options{})
		stop := run(t, func(ctx context.Context, _ *lease.Held, _ runstore.Run) error {
			<-ctx.Done()
			time.Sleep(time.Second) // cleans up
			returned = true
			return context.Cause(ctx)
		}, w)
		time.Sleep(5 * time.Second)
		stop()
		head, err := store.GetRun(t.Context(), "run")
		if err != nil || !returned || head.Holder.Token != 0 {
			t.Errorf("work returned: %t, holder %+v, %v; want that it returned and no holder", returned, head.Holder, err)
		}
		if s := w.Status(); s.Failed != 0 || s.Lost != 0 || s.InFlight != 0 {
			t.Errorf("status %+v: the end of the worker counts as a failure", s)
		}
	})
}

// In an index of records the runs that another driver holds are skipped, and the others found.
func TestIndexOfRecords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New(nil).Open()
		for i := range 10 {
			id := runstore.RunID(fmt.Sprint("run ", i))
			var held *runstore.LeaseSpec
			if i%2 == 0 {
				held = &runstore.LeaseSpec{Owner: "other", TTL: runstore.MaxTTL}
			}
			if _, err := store.CreateRun(t.Context(), runstore.RunSpec{ID: id, Lease: held}); err != nil {
				t.Fatal(err)
			}
			b := runstore.NewBatch(id, runstore.Unguarded("test"))
			for _, key := range []runstore.RecordKey{"timer/1", "timer/2"} {
				b.Put(key, nil, runstore.Place{Index: "timers", At: runstore.After(0)})
			}
			if _, err := store.Commit(t.Context(), b); err != nil {
				t.Fatal(err)
			}
		}
		driven := map[runstore.RunID]int{}
		var mu sync.Mutex
		w := worker(t, store, "worker", takeover.Options{Index: "timers"})
		stop := run(t, func(_ context.Context, held *lease.Held, r runstore.Run) error {
			mu.Lock()
			defer mu.Unlock()
			driven[r.ID]++
			var done runstore.Writes
			done.Delete("timer/1")
			done.Delete("timer/2")
			held.ReleaseWith(done)
			return nil
		}, w)
		time.Sleep(time.Minute)
		stop()
		if len(driven) != 5 {
			t.Errorf("driven: %v, want the five runs without a holder", driven)
		}
		if s := w.Status(); s.Takeovers != 5 || s.Attempts > 80 {
			t.Errorf("status %+v, want 5 takeovers, and few requests for leases that are held", s)
		}
	})
}

// Resolve fills the defaults in, and checks the options of the leases.
func TestResolve(t *testing.T) {
	o, err := (&takeover.Options{MaxBackoff: time.Minute}).Resolve()
	if err != nil || o.Index != runstore.IndexRunnable || o.MaxInFlight != 8 || o.MinBackoff != time.Second || o.Cooldown != time.Minute {
		t.Errorf("got %+v, %v, want the defaults", o, err)
	}
	if _, err := (&takeover.Options{Lease: &lease.Options{TTL: -1}}).Resolve(); !errors.Is(err, runstore.ErrInvalid) {
		t.Errorf("got %v, want ErrInvalid", err)
	}
}

// Bad options are refused together, each with the name of its field.
func TestOptions(t *testing.T) {
	_, err := takeover.New(memory.New(nil).Open(), "", &takeover.Options{
		Index: runstore.IndexRuns, MaxInFlight: -1, MinBackoff: 5 * time.Second, MaxBackoff: time.Second, Cooldown: -1,
		Lease: &lease.Options{Margin: -1},
	})
	fields := map[string]bool{}
	var walk func(error)
	walk = func(err error) {
		if all, ok := err.(interface{ Unwrap() []error }); ok {
			for _, e := range all.Unwrap() {
				walk(e)
			}
			return
		}
		var input *runstore.InputError
		if errors.As(err, &input) {
			fields[input.Field] = true
		}
	}
	walk(err)
	for _, field := range []string{"owner", "index", "max in flight", "max backoff", "cooldown", "margin"} {
		if !fields[field] {
			t.Errorf("no error names the field %q: %v", field, err)
		}
	}
	if !errors.Is(err, runstore.ErrInvalid) {
		t.Errorf("got %v, want ErrInvalid", err)
	}
}

// A closed store ends the worker with its error.
func TestClosedStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New(nil).Open()
		w := worker(t, store, "worker", takeover.Options{})
		if err := store.Close(); err != nil {
			t.Fatal(err)
		}
		if err := w.Run(t.Context(), finish(0, func(runstore.RunID) {})); !errors.Is(err, runstore.ErrClosed) {
			t.Errorf("got %v, want ErrClosed", err)
		}
	})
}
