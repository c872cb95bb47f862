package tail

import (
	"context"
	"slices"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/metric"

	"github.com/tapestore/tapestore/runstore"
)

// lagInterval is 1 s, the shortest time between two measurements of the lag: each reads the store
// clock.
const lagInterval = time.Second

// newLag creates the metric of the feed's lag. If the meter refuses it, OpenTelemetry's error
// handler gets the error, and nothing is measured.
func newLag(provider metric.MeterProvider) metric.Float64Histogram {
	if provider == nil {
		provider = otel.GetMeterProvider()
	}
	lag, err := provider.Meter("github.com/tapestore/tapestore/tail").Float64Histogram("tapestore.feed.lag", metric.WithUnit("s"),
		metric.WithDescription("Time from the commit of an event until the reader of the feed had read it, on the store clock: of the last event of a page, at most once per second."),
		metric.WithExplicitBucketBoundaries(.01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300))
	if err != nil {
		otel.Handle(err)
	}
	return lag
}

// measureLag records how long ago the last event of a page was committed, on the store clock. The
// subscribers have the page already.
func (f *feedReader) measureLag(ctx context.Context, page []runstore.FeedEvent) {
	lag := f.tail.lag
	if len(page) == 0 || !lag.Enabled(ctx) || !f.measured.IsZero() && time.Since(f.measured) < lagInterval {
		return
	}
	for _, e := range slices.Backward(page) {
		if e.Err != nil { // its time is not known
			continue
		}
		f.measured = time.Now()
		if now, err := f.tail.store.Now(ctx); err == nil {
			lag.Record(ctx, max(0, now.Sub(e.Time).Seconds()))
		}
		return
	}
}
