package tapeserver

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
	grpchealth "google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

const (
	// pingTimeout is how long a probe waits for the store.
	pingTimeout = 5 * time.Second
	// pollHealth is how often the store is checked without probes; orchestrators probe every 10 s
	// by default.
	pollHealth = 10 * time.Second
)

// health is gRPC's health service. A check pings the store.
type health struct {
	*grpchealth.Server
	s *Server

	mu   sync.Mutex
	ping *ping // the ping in flight; nil if there is none

	epochs singleflight.Group // the read of the epochs in flight
}

// ping is one request to the store, shared by all concurrent probes.
type ping struct {
	done chan struct{}
	err  error
}

func newHealth(s *Server) *health {
	h := &health{Server: grpchealth.NewServer(), s: s}
	h.set(true)
	return h
}

func (h *health) set(serving bool) {
	status := healthpb.HealthCheckResponse_NOT_SERVING
	if serving {
		status = healthpb.HealthCheckResponse_SERVING
	}
	h.SetServingStatus("", status)
	h.SetServingStatus(tapepb.Tape_ServiceDesc.ServiceName, status)
}

// Check pings the store and returns its state.
func (h *health) Check(ctx context.Context, req *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	_ = h.ask(ctx) // the error is in the status
	return h.Server.Check(ctx, req)
}

// Watch sends the state of the store whenever it changes. When the server begins to drain, which waits
// for open streams, Watch sends NOT_SERVING and ends.
func (h *health) Watch(req *healthpb.HealthCheckRequest, stream healthpb.Health_WatchServer) error {
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	defer context.AfterFunc(h.s.drain, cancel)()
	w := &watcher{Health_WatchServer: stream, ctx: ctx}
	err := h.Server.Watch(req, w)
	if h.s.drain.Err() == nil {
		return err
	}
	if w.sent != healthpb.HealthCheckResponse_NOT_SERVING {
		if err := stream.Send(&healthpb.HealthCheckResponse{Status: healthpb.HealthCheckResponse_NOT_SERVING}); err != nil {
			return err
		}
	}
	return errShuttingDown
}

// watcher is the stream of a Watch, with a context that ends when the server begins to drain.
type watcher struct {
	healthpb.Health_WatchServer
	ctx  context.Context
	sent healthpb.HealthCheckResponse_ServingStatus // the last status that was sent
}

// Context returns the context.
func (w *watcher) Context() context.Context { return w.ctx }

// Send sends a status.
func (w *watcher) Send(r *healthpb.HealthCheckResponse) error {
	w.sent = r.GetStatus()
	return w.Health_WatchServer.Send(r)
}

// ask pings the store and returns its error. Concurrent probes share one ping, so any number of
// them costs one.
func (h *health) ask(ctx context.Context) error {
	h.mu.Lock()
	p := h.ping
	if p == nil {
		p = &ping{done: make(chan struct{})}
		h.ping = p
		go h.run(p)
	}
	h.mu.Unlock()
	select {
	case <-p.done:
		return p.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// run pings the store. If the store does not return even when its context ends, the ping stays in
// flight: later probes wait for it, as long as their own contexts allow.
func (h *health) run(p *ping) {
	ctx, cancel := context.WithTimeout(context.Background(), pingTimeout)
	defer cancel()
	p.err = h.s.tape.Ping(ctx)
	h.set(p.err == nil)
	h.s.watch.ping(p.err)
	h.mu.Lock()
	h.ping = nil
	h.mu.Unlock()
	close(p.done)
}

// poll pings the store periodically, for clients that watch the health service and for the log.
func (h *health) poll(ctx context.Context) {
	ticker := time.NewTicker(pollHealth)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			_ = h.ask(ctx)
		}
	}
}
