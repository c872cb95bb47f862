package tapeserver

import (
	"context"
	"fmt"

	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"google.golang.org/grpc"
	"google.golang.org/grpc/stats"

	"github.com/tapestore/tapestore/internal/clientlimit"
)

// scope is the name of the instrumentation scope of the server's own metrics.
const scope = "github.com/tapestore/tapestore/tapeserver"

// measureCalls returns the option under which gRPC measures and traces calls, none if no provider
// would receive anything.
func (s *Server) measureCalls() []grpc.ServerOption {
	var opts []otelgrpc.Option
	if s.opts.TracerProvider != nil {
		opts = append(opts, otelgrpc.WithTracerProvider(s.opts.TracerProvider))
	}
	if s.opts.MeterProvider != nil {
		opts = append(opts, otelgrpc.WithMeterProvider(s.opts.MeterProvider))
	}
	if len(opts) == 0 && !installed(otel.GetTracerProvider()) && !installed(otel.GetMeterProvider()) {
		return nil
	}
	// A client can call any name. Only those of methods that exist become labels.
	opts = append(opts, otelgrpc.WithFilter(func(call *stats.RPCTagInfo) bool { return s.methods[call.FullMethodName] }))
	return []grpc.ServerOption{grpc.StatsHandler(otelgrpc.NewServerHandler(opts...))}
}

// installed reports whether a global provider is that of an SDK.
func installed(provider any) bool {
	name := fmt.Sprintf("%T", provider)
	return name != "*global.tracerProvider" && name != "*global.meterProvider"
}

// methodsOf returns the full names of the methods that a server serves.
func methodsOf(server *grpc.Server) map[string]bool {
	all := map[string]bool{}
	for service, info := range server.GetServiceInfo() {
		for _, m := range info.Methods {
			all["/"+service+"/"+m.Name] = true
		}
	}
	return all
}

// observe makes the server's gauges show its state, until end is called.
func (s *Server) observe(lis *listener) (end func()) {
	provider := s.opts.MeterProvider
	if provider == nil {
		provider = otel.GetMeterProvider()
	}
	m := observed{meter: provider.Meter(scope)}
	streams := m.gauge("tapestore.server.streams", "{call}", "Open calls, idle subscriptions included.")
	maxStreams := m.gauge("tapestore.server.streams.limit", "{call}", "The limit Streams.")
	conns := m.gauge("tapestore.server.connections", "{connection}", "Open connections.")
	maxConns := m.gauge("tapestore.server.connections.limit", "{connection}", "The limit Connections.")
	refused := m.counter("tapestore.server.connections.refused", "{connection}", "Connections that were closed because of a limit: connections or connections_per_address.")
	inFlight := m.gauge("tapestore.server.inflight", "By", "Requests and replies in memory, as far as the limit BytesInFlight counts them.")
	maxInFlight := m.gauge("tapestore.server.inflight.limit", "By", "The limit BytesInFlight.")
	draining := m.gauge("tapestore.server.draining", "", "1 while the server drains, otherwise 0.")
	unfenced := m.counter("tapestore.server.unfenced.writes", "{write}", "Writes of drivers that were made without a fence.")
	shards := m.gauge("tapestore.server.matcher.shards", "{shard}", "Shards of live reactions: known to this server, held by it, and stalled.")

	var expiry metric.Int64Observable
	if s.opts.TLS != nil {
		expiry = m.gauge("tapestore.server.certificate.expiry.timestamp", "s", "When the certificate that the server presents expires, in seconds since 1970.")
	}

	limits := s.opts.Limits
	return m.register(func(_ context.Context, o metric.Observer) error {
		o.ObserveInt64(streams, s.streams.Load())
		o.ObserveInt64(maxStreams, int64(limits.Streams))
		o.ObserveInt64(conns, int64(lis.bounds.Open()))
		o.ObserveInt64(maxConns, int64(limits.Connections))
		for _, limit := range []clientlimit.Limit{clientlimit.Connections, clientlimit.ConnectionsPerAddress} {
			o.ObserveInt64(refused, lis.bounds.Refused(limit), metric.WithAttributes(attribute.String("limit", limit.Label())))
		}
		o.ObserveInt64(inFlight, s.inFlight.used.Load())
		o.ObserveInt64(maxInFlight, limits.BytesInFlight)
		if expiry != nil {
			o.ObserveInt64(expiry, s.opts.TLS.Expires().Unix())
		}
		drain := int64(0)
		if s.drain.Err() != nil {
			drain = 1
		}
		o.ObserveInt64(draining, drain)
		o.ObserveInt64(unfenced, s.unfenced.Load())
		if s.matcher != nil {
			status := s.matcher.Status()
			for state, n := range map[string]int{"known": status.Shards, "held": status.Held, "stalled": status.Stalled} {
				o.ObserveInt64(shards, int64(n), metric.WithAttributes(attribute.String("state", state)))
			}
		}
		return nil
	})
}

// observed collects instruments for one callback. An instrument that the meter refuses is reported
// to OpenTelemetry's error handler and measures nothing.
type observed struct {
	meter metric.Meter
	all   []metric.Observable
}

func (m *observed) gauge(name, unit, description string) metric.Int64Observable {
	g, err := m.meter.Int64ObservableGauge(name, metric.WithUnit(unit), metric.WithDescription(description))
	return m.add(g, err)
}

func (m *observed) counter(name, unit, description string) metric.Int64Observable {
	c, err := m.meter.Int64ObservableCounter(name, metric.WithUnit(unit), metric.WithDescription(description))
	return m.add(c, err)
}

func (m *observed) add(o metric.Int64Observable, err error) metric.Int64Observable {
	if err != nil {
		otel.Handle(err)
	}
	m.all = append(m.all, o)
	return o
}

// register registers the callback until end is called.
func (m *observed) register(f metric.Callback) (end func()) {
	r, err := m.meter.RegisterCallback(f, m.all...)
	if err != nil {
		otel.Handle(err)
		return func() {}
	}
	return func() {
		if err := r.Unregister(); err != nil {
			otel.Handle(err)
		}
	}
}
