package retain

import (
	"cmp"
	"context"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// scope is the name of the instrumentation scope of the metrics.
const scope = "github.com/tapestore/tapestore/retain"

// instruments are the metrics of [Daily].
type instruments struct {
	success metric.Float64Gauge
	passes  metric.Int64Counter
	runs    metric.Int64Counter
	tasks   metric.Int64Counter
}

// newInstruments creates the metrics. An instrument that the meter refuses is reported to OpenTelemetry's
// error handler and measures nothing.
func newInstruments(provider metric.MeterProvider) *instruments {
	if provider == nil {
		provider = otel.GetMeterProvider()
	}
	meter := provider.Meter(scope)
	in := &instruments{}
	var errs [4]error
	in.success, errs[0] = meter.Float64Gauge("tapestore.retention.last_success.timestamp", metric.WithUnit("s"),
		metric.WithDescription("End of the last retention pass without an error, damaged runs excepted, or when retention began on the store if there was none, since 1970 on the store clock."))
	in.passes, errs[1] = meter.Int64Counter("tapestore.retention.passes", metric.WithUnit("{pass}"),
		metric.WithDescription("Retention passes of this process, by result."))
	in.runs, errs[2] = meter.Int64Counter("tapestore.retention.runs", metric.WithUnit("{run}"),
		metric.WithDescription("Runs that passes of this process have purged, or could not archive or purge."))
	in.tasks, errs[3] = meter.Int64Counter("tapestore.retention.tasks", metric.WithUnit("{task}"),
		metric.WithDescription("Ended tasks that passes of this process have deleted."))
	for _, err := range errs {
		if err != nil {
			otel.Handle(err)
		}
	}
	return in
}

// shows shows the last success, on the replica that makes the passes.
func (in *instruments) shows(h history) {
	in.success.Record(context.Background(), float64(cmp.Or(h.Success, h.Since))/1e6)
}

// count counts a pass. Series that stay 0 are shown too, so that the first failure is an increase.
// A pass that was interrupted is neither ok nor failed.
func (in *instruments) count(ctx context.Context, sum Summary, end passEnd) {
	ctx = context.WithoutCancel(ctx)
	result := func(name string) metric.AddOption { return metric.WithAttributes(attribute.String("result", name)) }
	var ok, bad int64
	switch {
	case end.success():
		ok = 1
	case end == passFailed:
		bad = 1
	}
	in.passes.Add(ctx, ok, result("ok"))
	in.passes.Add(ctx, bad, result("failed"))
	in.runs.Add(ctx, sum.Runs.Purged, result("purged"))
	in.runs.Add(ctx, sum.Runs.Failed, result("failed"))
	in.tasks.Add(ctx, sum.Tasks)
}
