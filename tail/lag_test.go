package tail_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
	"github.com/tapestore/tapestore/tail"
)

// aheadStore is a store whose clock has advanced since its events were committed.
type aheadStore struct {
	*memory.Handle
	by    time.Duration
	reads int
}

func (s *aheadStore) Now(ctx context.Context) (time.Time, error) {
	s.reads++
	now, err := s.Handle.Now(ctx)
	return now.Add(s.by), err
}

func TestLagIsMeasuredOnTheStoreClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reader := sdkmetric.NewManualReader()
		store := &aheadStore{Handle: memory.New(nil).Open(), by: 7 * time.Second}
		followed := tail.New(store, &tail.Options{MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))})
		ctx, cancel := context.WithCancel(t.Context())
		defer func() {
			cancel()
			followed.Close(context.Background())
			_ = store.Close()
		}()
		go func() {
			for range followed.Feed(ctx, 0) {
			}
		}()
		if _, err := store.CreateRun(ctx, runstore.RunSpec{ID: "r"}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second) // the reader is at the end of the feed
		for range 20 {          // two seconds of events
			b := runstore.NewBatch("r", runstore.Unguarded("a test"))
			b.Append("e", nil)
			if _, err := store.Commit(ctx, b); err != nil {
				t.Fatal(err)
			}
			time.Sleep(100 * time.Millisecond)
		}
		var all metricdata.ResourceMetrics
		if err := reader.Collect(ctx, &all); err != nil {
			t.Fatal(err)
		}
		lag := all.ScopeMetrics[0].Metrics[0]
		points := lag.Data.(metricdata.Histogram[float64]).DataPoints
		if lag.Name != "tapestore.feed.lag" || len(points) != 1 || points[0].Count < 2 || points[0].Count > 3 || store.reads != int(points[0].Count) {
			t.Fatalf("%d readings of the clock and %+v in 2 s, want one per second", store.reads, all.ScopeMetrics)
		}
		if mean := points[0].Sum / float64(points[0].Count); mean < 7 || mean > 7.1 {
			t.Errorf("the mean lag is %v s, want that of the store clock, 7 s, and the interval of the reader", mean)
		}
	})
}
