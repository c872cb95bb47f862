package telemetry

import (
	"context"
	"log/slog"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/tapestore/tapestore/runstore"
)

// Scope is the name of the instrumentation scope of the spans and metrics.
const Scope = "github.com/tapestore/tapestore/runstore/telemetry"

// Options configures [Wrap]; nil, and each zero field, means the default.
type Options struct {
	// TracerProvider and MeterProvider receive the spans and metrics; OpenTelemetry's global
	// providers by default.
	TracerProvider trace.TracerProvider
	MeterProvider  metric.MeterProvider
	// Logger, if set, receives a line for each takeover of a lease (Info), and one for the first
	// write of each grant that the store refuses because of its fence (Warn): of each kind at most one
	// line per second on average. By default nothing is logged.
	Logger *slog.Logger
}

// Open opens the store at a URL with [runstore.Open] and wraps it. The engine is the URL's scheme.
func Open(ctx context.Context, rawURL string, opts *Options) (runstore.RunStore, error) {
	u, err := runstore.ParseURL(rawURL)
	if err != nil {
		return nil, err
	}
	store, err := runstore.Open(ctx, rawURL)
	if err != nil {
		return nil, err
	}
	return Wrap(store, u.Scheme, opts), nil
}

// Wrap returns store with its operations measured. engine is the name of the engine in metrics and
// spans. The result implements runstore.MultiCommitter and runstore.StaleReader if store has these
// capabilities; runstore.As finds the other ones.
func Wrap(store runstore.RunStore, engine string, opts *Options) runstore.RunStore {
	s := newMeasured(store, engine, opts)
	multi, hasMulti := runstore.As[runstore.MultiCommitter](store)
	stale, hasStale := runstore.As[runstore.StaleReader](store)
	m, r := multiCommitter{s, multi}, staleReader{s, stale}
	switch {
	case hasMulti && hasStale:
		return struct {
			*measured
			multiCommitter
			staleReader
		}{s, m, r}
	case hasMulti:
		return struct {
			*measured
			multiCommitter
		}{s, m}
	case hasStale:
		return struct {
			*measured
			staleReader
		}{s, r}
	default:
		return s
	}
}

func newMeasured(store runstore.RunStore, engine string, opts *Options) *measured {
	var o Options
	if opts != nil {
		o = *opts
	}
	global := o.TracerProvider == nil
	if global {
		o.TracerProvider = otel.GetTracerProvider()
	}
	if o.MeterProvider == nil {
		o.MeterProvider = otel.GetMeterProvider()
	}
	return &measured{
		store:  store,
		in:     newInstruments(o.MeterProvider.Meter(Scope), engine),
		tracer: o.TracerProvider.Tracer(Scope),
		global: global,
		log:    newEventLog(o.Logger),
	}
}
