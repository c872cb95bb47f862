package command

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	prometheusexporter "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/propagation"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/tapestore/tapestore/conformance/version"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/telemetry"
	"github.com/tapestore/tapestore/tapeserver"
)

const (
	// scrapeTimeout bounds one scrape; Prometheus gives up after 10 s by default.
	scrapeTimeout = 10 * time.Second
	// sampleInterval is 10 s, less than the usual interval between two scrapes.
	sampleInterval = 10 * time.Second
)

// serveTelemetry is where the measurements of one server go.
type serveTelemetry struct {
	log     *slog.Logger
	flush   time.Duration            // bounds the export of the last spans when the process ends
	meters  *sdkmetric.MeterProvider // nil without --metrics-listen
	tracers *sdktrace.TracerProvider // nil without an OTLP endpoint
	conns   httpConns
	scrapes *http.Server
	address string // of /metrics
}

// startTelemetry serves /metrics on the address, unless it is empty, and exports spans to the OTLP
// endpoint that the environment names, if any. flush bounds the export of the last spans.
func startTelemetry(ctx context.Context, address string, flush time.Duration, log *slog.Logger) (*serveTelemetry, error) {
	t := &serveTelemetry{log: log, flush: flush, conns: newHTTPConns(log)}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { log.Warn("telemetry", "error", err) }))
	if err := t.exportSpans(ctx); err != nil {
		return nil, err
	}
	if err := t.serveMetrics(address); err != nil {
		t.stop(ctx)
		return nil, err
	}
	return t, nil
}

// otlpVariables are OpenTelemetry's standard variables that name an endpoint for spans.
var otlpVariables = []string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"}

// exportSpans exports spans by OTLP over gRPC, as OpenTelemetry's standard variables say. Without an
// endpoint it does nothing.
func (t *serveTelemetry) exportSpans(ctx context.Context) error {
	endpoint := ""
	for _, name := range otlpVariables {
		if endpoint = os.Getenv(name); endpoint != "" {
			break
		}
	}
	if endpoint == "" || os.Getenv("OTEL_SDK_DISABLED") == "true" || os.Getenv("OTEL_TRACES_EXPORTER") == "none" {
		return nil
	}
	for _, name := range []string{"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"} {
		if protocol := os.Getenv(name); protocol != "" {
			if protocol != "grpc" {
				return fmt.Errorf("%s is %s; spans are exported by grpc only", name, quoted(protocol))
			}
			break
		}
	}
	exporter, err := otlptracegrpc.New(ctx) // connects in the background
	if err != nil {
		return fmt.Errorf("the OTLP exporter of OTEL_EXPORTER_OTLP_ENDPOINT: %w", err)
	}
	from, err := resource.New(ctx, resource.WithTelemetrySDK(),
		resource.WithAttributes(attribute.String("service.name", "tapestore"), attribute.String("service.version", version.String())),
		resource.WithFromEnv()) // last, so that OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES win
	if err != nil {
		return errors.Join(fmt.Errorf("OTEL_RESOURCE_ATTRIBUTES: %w", err), exporter.Shutdown(ctx))
	}
	t.tracers = sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(from))
	// The clients of Spanner and Bigtable use the global provider.
	otel.SetTracerProvider(t.tracers)
	otel.SetTextMapPropagator(propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{}))
	t.log.Info("exporting spans", "protocol", "grpc")
	return nil
}

// serveMetrics serves /metrics in the background until stop. Unlike the probes' address, an address
// that cannot be listened on is an error, because it was given.
func (t *serveTelemetry) serveMetrics(address string) error {
	if address == "" {
		return nil
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), collectors.NewBuildInfoCollector())
	exporter, err := prometheusexporter.New(prometheusexporter.WithRegisterer(registry),
		prometheusexporter.WithoutScopeInfo(), prometheusexporter.WithoutTargetInfo())
	if err != nil {
		return fmt.Errorf("--metrics-listen: %w", err)
	}
	t.meters = sdkmetric.NewMeterProvider(sdkmetric.WithReader(exporter))
	if err := t.conns.measure(t.meters); err != nil {
		return fmt.Errorf("--metrics-listen: %w", err)
	}
	lis, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("--metrics-listen: %w", err)
	}
	t.scrapes = newScrapeServer(registry, t.log)
	t.address = lis.Addr().String()
	t.log.Info("metrics", "http", t.address, "path", "/metrics")
	go func() {
		if err := t.scrapes.Serve(t.conns.metrics.Listen(lis)); !errors.Is(err, http.ErrServerClosed) {
			t.log.Warn("metrics ended", "error", err)
		}
	}()
	return nil
}

// newScrapeServer returns the server of /metrics.
func newScrapeServer(metrics prometheus.Gatherer, log *slog.Logger) *http.Server {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{
		MaxRequestsInFlight: maxScrapes, Timeout: scrapeTimeout, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}))
	return &http.Server{
		Handler: mux, MaxHeaderBytes: 8 << 10, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
		ReadTimeout: 5 * time.Second, WriteTimeout: 2 * scrapeTimeout, IdleTimeout: 30 * time.Second,
	}
}

// stop ends /metrics and exports the last spans, within t.flush and before ctx ends.
func (t *serveTelemetry) stop(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, t.flush)
	defer cancel()
	if t.tracers != nil {
		if err := t.tracers.Shutdown(ctx); err != nil {
			t.log.Warn("the last spans were not exported", "error", err)
		}
	}
	if t.scrapes != nil {
		_ = t.scrapes.Close()
	}
	if t.meters != nil {
		_ = t.meters.Shutdown(ctx)
	}
}

// options returns the options with which the store is measured. It is measured for the log even if
// nothing else is collected.
func (t *serveTelemetry) options() *telemetry.Options {
	opts := &telemetry.Options{Logger: t.log}
	if t.meters != nil {
		opts.MeterProvider = t.meters
	}
	if t.tracers != nil {
		opts.TracerProvider = t.tracers
	}
	return opts
}

// wrap returns store with its operations measured.
func (t *serveTelemetry) wrap(store runstore.RunStore, engine string) runstore.RunStore {
	return telemetry.Wrap(store, engine, t.options())
}

// add adds the providers to the options of the server.
func (t *serveTelemetry) add(opts *tapeserver.Options) *tapeserver.Options {
	if t.meters != nil {
		opts.MeterProvider = t.meters
	}
	if t.tracers != nil {
		opts.TracerProvider = t.tracers
	}
	return opts
}

// sample samples the store periodically until ctx ends. It returns at once if no metrics are served.
func (t *serveTelemetry) sample(ctx context.Context, store runstore.RunStore, engine string) {
	if t.meters == nil {
		return
	}
	sampler := telemetry.NewSampler(store, engine, t.options())
	ticker := time.NewTicker(sampleInterval)
	defer ticker.Stop()
	for {
		bounded, cancel := context.WithTimeout(ctx, sampleInterval)
		_ = sampler.Sample(bounded) // the operations' own metrics show the error
		cancel()
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}
