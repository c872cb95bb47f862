package retain_test

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/tapestore/tapestore/lease/election"
	"github.com/tapestore/tapestore/retain"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
)

// replicas are replicas of Daily in a bubble of synctest, with the times of their passes.
type replicas struct {
	t      *testing.T
	store  runstore.RunStore
	reader *sdkmetric.ManualReader
	meters *sdkmetric.MeterProvider

	mu     sync.Mutex
	passes []time.Time
	by     []string
	fail   bool
	block  chan struct{} // passes wait for it, if it is not nil
}

func newReplicas(t *testing.T, store runstore.RunStore) *replicas {
	reader := sdkmetric.NewManualReader()
	return &replicas{t: t, store: store, reader: reader, meters: sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))}
}

// start starts a replica, and returns a function that stops it and waits for its end.
func (r *replicas) start(name string) (stop func()) {
	ctx, cancel := context.WithCancel(r.t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- retain.Daily(ctx, r.store, retain.DailyOptions{
			Coordinator:   election.Options{Replica: runstore.Owner(name)},
			MeterProvider: r.meters, Logger: slog.New(slog.DiscardHandler),
		}, func(ctx context.Context) (retain.Summary, error) {
			r.mu.Lock()
			r.passes, r.by = append(r.passes, time.Now()), append(r.by, name)
			fail, block := r.fail, r.block
			r.mu.Unlock()
			if block != nil {
				<-ctx.Done()
				return retain.Summary{}, ctx.Err()
			}
			if fail {
				return retain.Summary{Runs: retain.Report{Failed: 1}}, errors.New("a failure")
			}
			return retain.Summary{Runs: retain.Report{Purged: 2}, Tasks: 3}, nil
		})
	}()
	return func() {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			r.t.Errorf("Daily of %s: %v", name, err)
		}
	}
}

// during returns how many passes begin in a time.
func (r *replicas) during(d time.Duration) int {
	r.mu.Lock()
	before := len(r.passes)
	r.mu.Unlock()
	time.Sleep(d)
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.passes) - before
}

// Of several replicas one makes a pass a day. A restart, of one or of all, neither repeats nor delays it.
// A pass that failed is repeated within the hour.
func TestDaily(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := memory.New(nil).Open()
		defer func() { _ = store.Close() }()
		r := newReplicas(t, store)
		began := time.Now()
		stopA := r.start("a")
		synctest.Wait()
		stopB := r.start("b")
		if n := r.during(time.Hour + time.Minute); n != 1 {
			t.Fatalf("%d passes in the first hour", n)
		}
		if n := r.during(4 * day); n < 3 || n > 5 {
			t.Errorf("%d passes in four days", n)
		}
		stopA()
		if n := r.during(10 * time.Hour); n > 1 {
			t.Errorf("%d passes within hours of a restart", n)
		}
		stopB()
		stopA = r.start("c")
		if n := r.during(27 * time.Hour); n < 1 || n > 2 {
			t.Errorf("%d passes in the day after a restart of all", n)
		}
		for i := 1; i < len(r.passes); i++ {
			if gap := r.passes[i].Sub(r.passes[i-1]); gap < 21*time.Hour || gap > 27*time.Hour {
				t.Errorf("%v between two passes", gap)
			}
		}
		if r.by[0] != "a" || r.by[len(r.by)-1] != "c" {
			t.Errorf("the passes were made by %v", r.by)
		}
		last := r.passes[len(r.passes)-1]
		if got := r.measure(t, "tapestore.retention.last_success.timestamp", ""); got != float64(last.UnixMicro())/1e6 || last.Before(began) {
			t.Errorf("the last success is %v, the last pass was at %v", got, last)
		}
		r.mu.Lock()
		r.fail = true
		r.mu.Unlock()
		if n := r.during(50 * time.Hour); n < 20 {
			t.Errorf("%d passes in two days in which they fail", n)
		}
		if got := r.measure(t, "tapestore.retention.last_success.timestamp", ""); got > float64(last.Add(27*time.Hour).Unix()) {
			t.Errorf("the last success is %v after failures", got)
		}
		if r.measure(t, "tapestore.retention.passes", "failed") < 20 || r.measure(t, "tapestore.retention.runs", "failed") < 20 || r.measure(t, "tapestore.retention.tasks", "") == 0 {
			t.Error("the counters do not count")
		}
		stopA()
	})
}

// The end of the context ends a pass that is under way, and another replica makes it within hours.
func TestDailyIsStopped(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := memory.New(nil).Open()
		defer func() { _ = store.Close() }()
		r := newReplicas(t, store)
		r.block = make(chan struct{})
		stop := r.start("a")
		if n := r.during(2 * time.Hour); n != 1 {
			t.Fatalf("%d passes", n)
		}
		stop()
		r.block = nil
		stop = r.start("b")
		if n := r.during(2 * time.Hour); n != 1 || r.by[1] != "b" {
			t.Errorf("%d passes, by %v", n, r.by)
		}
		if n := r.measure(t, "tapestore.retention.passes", "failed"); n != 0 {
			t.Errorf("%v passes failed; one was interrupted", n)
		}
		stop()
	})
}

// measure returns the newest value of a metric, of the series of a result.
func (r *replicas) measure(t *testing.T, name, result string) (value float64) {
	t.Helper()
	var all metricdata.ResourceMetrics
	if err := r.reader.Collect(t.Context(), &all); err != nil {
		t.Fatal(err)
	}
	matches := func(set attribute.Set) bool {
		got, _ := set.Value("result")
		return result == "" || got.AsString() == result
	}
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			if m.Name != name {
				continue
			}
			switch data := m.Data.(type) {
			case metricdata.Gauge[float64]:
				for _, p := range data.DataPoints {
					value = max(value, p.Value)
				}
			case metricdata.Sum[int64]:
				for _, p := range data.DataPoints {
					if matches(p.Attributes) {
						value += float64(p.Value)
					}
				}
			}
		}
	}
	return value
}

// steppedClock is a store whose clock is ahead by a time.
type steppedClock struct {
	*memory.Handle
	ahead atomic.Int64
}

func (s *steppedClock) Now(ctx context.Context) (time.Time, error) {
	now, err := s.Handle.Now(ctx)
	return now.Add(time.Duration(s.ahead.Load())), err
}

// TestDailyAfterAClockThatWasAhead makes a pass while the store clock is a year ahead, and puts it right.
func TestDailyAfterAClockThatWasAhead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &steppedClock{Handle: memory.New(nil).Open()}
		defer func() { _ = s.Close() }()
		r := newReplicas(t, s)
		s.ahead.Store(int64(365 * day))
		stop := r.start("a")
		if n := r.during(2 * time.Hour); n != 1 {
			t.Fatalf("%d passes, want one", n)
		}
		stop()
		s.ahead.Store(0)
		stop = r.start("a")
		defer stop()
		if n := r.during(2 * time.Hour); n != 1 {
			t.Errorf("%d passes after the clock was put right, want one", n)
		}
		if last := r.measure(t, "tapestore.retention.last_success.timestamp", ""); last > float64(time.Now().Unix()) {
			t.Errorf("the last success is at %.0f, later than now, %d", last, time.Now().Unix())
		}
	})
}
