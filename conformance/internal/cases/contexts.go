package cases

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/tapestore/tapestore/conformance/harness"
	"github.com/tapestore/tapestore/conformance/internal/kit"
	"github.com/tapestore/tapestore/conformance/internal/panics"
	"github.com/tapestore/tapestore/runstore"
)

func endedContext(t harness.T, e *harness.Env) {
	lease := kit.SeedFixture(t, e, "run")
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	late, cancelLate := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
	defer cancelLate()
	for _, s := range []runstore.RunStore{e.Store, e.Reopen(t)} {
		before := kit.Dump(t, e.Store, "run", kit.AllIndexes...)
		expires := e.Get(t, "run").ExpiresAt
		for _, end := range []struct {
			ctx   context.Context
			cause error
		}{{cancelled, context.Canceled}, {late, context.DeadlineExceeded}} {
			for _, c := range calls(lease) {
				err := c.do(end.ctx, s)
				c.named(t, err, runstore.ErrUnavailable, "run")
				if !errors.Is(err, end.cause) {
					t.Errorf("%s: error %v does not match the context's, %v", c.op, err, end.cause)
				}
			}
			_, err := s.CreateRun(end.ctx, runstore.RunSpec{ID: "new"})
			harness.Refused(t, "creating", err, runstore.ErrUnavailable)
			_, err = e.Store.GetRun(t.Context(), "new")
			harness.Refused(t, "reading what was not created", err, runstore.ErrNotFound)
			kit.CheckUnchanged(t, "a call with an ended context", before, kit.Dump(t, e.Store, "run", kit.AllIndexes...))
			kit.Equal(t, "expiry", e.Get(t, "run").ExpiresAt, expires)
		}
		e.Append(t, s, lease, "the run is usable")
	}
}

func contextAtAnyStage(t harness.T, e *harness.Env) {
	const writers = 4
	each := e.Scaled(t, "commits of each writer", 12, 40)
	random := kit.Seeded(t)
	lease := kit.SeedFixture(t, e, "run")
	stores := kit.OpenHandles(t, e, 2)
	began := time.Now()
	for range 5 {
		e.Append(t, e.Store, lease, "begin")
	}
	usual := time.Since(began) / 5
	var ended atomic.Bool
	results := make([]*outcomes, writers)
	kit.RunConcurrently(t, writers, func(i int) error {
		pick := random(i)
		results[i] = newOutcomes()
		span := 2 * writers * usual // a context ends within span, which shrinks until some call fails for that reason
		for n := 0; n < each || !ended.Load(); n++ {
			name := fmt.Sprintf("%d/%d", i, n)
			b := runstore.NewBatch("run", lease.Fence())
			if n%2 == 0 {
				b.ID = runstore.BatchID(name)
			}
			b.Append("event", []byte(name))
			b.Put(runstore.RecordKey(name), nil, runstore.Place{Index: "all", At: runstore.After(0)})
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(pick.Int64N(int64(span)+1)))
			if n%3 == 0 {
				cancel()
				ctx, cancel = context.WithCancel(t.Context())
				time.AfterFunc(time.Duration(pick.Int64N(int64(span)+1)), cancel)
			}
			_, err := stores[n%2].Commit(ctx, b)
			end := ctx.Err()
			cancel()
			results[i].add(name, err)
			if err != nil {
				ended.Store(true)
			} else if !ended.Load() {
				span -= span / 8
			}
			if kind := runstore.KindOf(err); err != nil && (kind != runstore.ErrUnavailable && kind != runstore.ErrUnknownOutcome || !errors.Is(err, end)) {
				return fmt.Errorf("batch %s, whose context ended with %v: got error %w, want ErrUnavailable or ErrUnknownOutcome that matches the context's", name, end, err)
			}
			if err != nil && b.ID != "" && n%4 == 0 { // repeat it without a deadline
				if _, err := stores[(n+1)%2].Commit(t.Context(), b); err != nil {
					return fmt.Errorf("batch %s, repeated: %w", name, err)
				}
				delete(results[i].refused, name)
				delete(results[i].unknown, name)
				results[i].add(name, nil)
			}
		}
		return nil
	})
	// The next grant settles the writes that are still in flight: they are stored before it or never.
	e.Append(t, e.Store, kit.MustAcquire(t, e.Store, kit.Preempting("run", "end", "test")), "end")
	for i, v := range results {
		t.Logf("writer %d: %d applied, %d not applied, %d unknown", i, len(v.applied), len(v.refused), len(v.unknown))
		v.checkOwn(t, e.Store, fmt.Sprintf("%d/", i))
	}
	records := kit.MustCollect(t, "records", runstore.Records(t.Context(), e.Store, "run", ""))
	records = slices.DeleteFunc(records, func(r runstore.Record) bool { // leave out the records of the run's creation
		return slices.Contains([]runstore.RecordKey{"a", "b", "gone", runstore.SummaryKey}, r.Key)
	})
	kit.CheckRecords(t, "all", kit.Queue(t, e.Store, "all"), records)
}

// checkOwn is check for the batches whose names begin with prefix, on the run called run.
func (v *outcomes) checkOwn(t harness.T, s runstore.RunStore, prefix string) {
	t.Helper()
	found := map[string]int{}
	for _, event := range kit.Journal(t, s, "run") {
		if name := string(event.Data); len(name) > len(prefix) && name[:len(prefix)] == prefix {
			found[name]++
		}
	}
	v.compare(t, found)
}

// compare fails the case unless the number of stored events of each batch agrees with the batch's
// outcome.
func (v *outcomes) compare(t harness.T, found map[string]int) {
	t.Helper()
	for name := range v.applied {
		if found[name] != 1 {
			t.Errorf("batch %s was acknowledged and is stored %d times", name, found[name])
		}
	}
	for name := range v.refused {
		if found[name] != 0 {
			t.Errorf("batch %s is stored, though its error said that it was not applied", name)
		}
	}
	for name := range v.unknown {
		if found[name] > 1 {
			t.Errorf("batch %s is stored %d times", name, found[name])
		}
	}
}

func contextInFlight(t harness.T, e *harness.Env) {
	lease := kit.SeedFixture(t, e, "run")
	for round, cause := range []error{context.Canceled, context.DeadlineExceeded} {
		s := e.Reopen(t)
		writers := kit.BlockWriters(t, e)
		names := []string{"short", "longer", "long"}
		reached := make(chan struct{}) // a commit has reached the engine
		results := make(chan func(v *outcomes), len(names))
		for i, name := range names {
			name = fmt.Sprintf("%d/%s", round, name)
			wait := []time.Duration{0, 5 * time.Millisecond, 50 * time.Millisecond}[i]
			go func() {
				ctx, cancel := context.WithTimeout(t.Context(), wait)
				if cause == context.Canceled {
					cancel()
					ctx, cancel = context.WithCancel(t.Context())
					if i < len(names)-1 {
						time.AfterFunc(wait, cancel)
					} else {
						go func() { <-reached; cancel() }()
					}
				}
				defer cancel()
				b := runstore.NewBatch("run", lease.Fence())
				b.ID = runstore.BatchID(name)
				b.Append("event", []byte(name))
				err := panics.Caught(func() error {
					_, err := s.Commit(ctx, b)
					return err
				})
				results <- func(v *outcomes) {
					v.add(name, err)
					switch kind := runstore.KindOf(err); {
					case err == nil:
						t.Errorf("%s: a commit was acknowledged while the harness held writers up", name)
					case kind != runstore.ErrUnavailable && kind != runstore.ErrUnknownOutcome || !errors.Is(err, cause):
						t.Errorf("%s: got error %v, want ErrUnavailable or ErrUnknownOutcome that matches %v", name, err, cause)
					}
				}
			}()
		}
		outcome := newOutcomes()
		if cause == context.Canceled {
			writers.Await(t, nil)
		}
		close(reached)
		// The engine hangs until resume, so a call that waits for it exceeds the case's timeout.
		expired := time.NewTimer(harness.CaseTimeout)
		for range names {
			select {
			case tell := <-results:
				tell(outcome)
			case <-expired.C:
				t.Fatalf("a call still waits for the engine %v after its context ended", harness.CaseTimeout)
			}
		}
		expired.Stop()
		writers.Resume()
		// The run is usable, and a repeat makes each outcome definite.
		e.Append(t, e.Store, lease, fmt.Sprint(round, " goes on"))
		outcome.checkOwn(t, e.Store, fmt.Sprintf("%d/", round))
		for name := range outcome.unknown {
			b := runstore.NewBatch("run", lease.Fence())
			b.ID = runstore.BatchID(name)
			b.Append("event", []byte(name))
			kit.MustCommit(t, e.Store, b)
			delete(outcome.unknown, name)
			outcome.add(name, nil)
		}
		outcome.checkOwn(t, e.Store, fmt.Sprintf("%d/", round))
	}
}
