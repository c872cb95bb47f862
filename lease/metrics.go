package lease

import (
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/tapestore/tapestore/runstore"
)

// scope is the name of the instrumentation scope of the metrics.
const scope = "github.com/tapestore/tapestore/lease"

// instruments are the metrics of a keeper's leases. The label reactor is that of the lease, which a
// program chooses for each of its roles.
type instruments struct {
	held     metric.Int64UpDownCounter
	duration metric.Float64Histogram
	failures metric.Int64Counter
	handoff  metric.Float64Histogram
}

// newInstruments creates the metrics. An instrument that the meter refuses is reported to
// OpenTelemetry's error handler and measures nothing.
func newInstruments(provider metric.MeterProvider) *instruments {
	if provider == nil {
		provider = otel.GetMeterProvider()
	}
	meter := provider.Meter(scope)
	in := &instruments{}
	var errs [4]error
	in.held, errs[0] = meter.Int64UpDownCounter("tapestore.lease.held", metric.WithUnit("{lease}"),
		metric.WithDescription("Leases that this process holds."))
	in.duration, errs[1] = meter.Float64Histogram("tapestore.lease.hold.duration", metric.WithUnit("s"),
		metric.WithDescription("Time for which a lease was held, by how it ended."),
		metric.WithExplicitBucketBoundaries(.1, 1, 10, 60, 600, 3600, 6*3600, 24*3600))
	in.failures, errs[2] = meter.Int64Counter("tapestore.lease.renewal.failures", metric.WithUnit("{renewal}"),
		metric.WithDescription("Renewals that failed and are tried again while the lease is trusted."))
	in.handoff, errs[3] = meter.Float64Histogram("tapestore.lease.handoff.duration", metric.WithUnit("s"),
		metric.WithDescription("Handoffs: the gap between two holders, or their overlap."),
		metric.WithExplicitBucketBoundaries(.001, .005, .01, .05, .1, .5, 1, 5, 30))
	for _, err := range errs {
		if err != nil {
			otel.Handle(err)
		}
	}
	return in
}

// measure records that the lease is held. end records the result of Hold; after a panic of the work
// err is nil.
func (h *Held) measure(ctx context.Context) (end func(err error)) {
	ctx, began, reactor := context.WithoutCancel(ctx), time.Now(), attribute.String("reactor", string(h.reactor))
	in := h.keeper.in
	in.held.Add(ctx, 1, metric.WithAttributes(reactor))
	in.failures.Add(ctx, 0, metric.WithAttributes(reactor)) // so that the first failure shows as an increase
	return func(err error) {
		in.held.Add(ctx, -1, metric.WithAttributes(reactor))
		in.duration.Record(ctx, time.Since(began).Seconds(), metric.WithAttributes(reactor, attribute.String("end", h.endOf(err))))
		var handed *HandedOffError
		if errors.As(err, &handed) && handed.Run == h.Lease().Run && handed.Token == h.Lease().Token {
			took, mode := handed.Gap, "gap"
			if handed.Mode == Overlap {
				took, mode = handed.Overlap, "overlap"
			}
			in.handoff.Record(ctx, took.Seconds(), metric.WithAttributes(reactor, attribute.String("mode", mode)))
		}
	}
}

// renewalFailed records a renewal that is tried again.
func (h *Held) renewalFailed() {
	h.keeper.in.failures.Add(context.Background(), 1, metric.WithAttributes(attribute.String("reactor", string(h.reactor))))
}

// endOf returns how the lease ended, for the label end: "returned" if it was held until the work had
// returned, otherwise "handed_off" or the reason of its loss.
func (h *Held) endOf(err error) string {
	l := h.Lease()
	var handed *HandedOffError
	if errors.As(err, &handed) && handed.Run == l.Run && handed.Token == l.Token {
		return "handed_off"
	}
	var lost *LostError
	if !errors.As(err, &lost) || !IsLossOf(err, l) {
		return "returned"
	}
	switch {
	case errors.Is(lost, ErrExpired):
		return "expired"
	case errors.Is(lost, runstore.ErrFenced):
		return "fenced"
	case errors.Is(lost, runstore.ErrNoProgress):
		return "no_progress"
	default:
		return "refused"
	}
}
