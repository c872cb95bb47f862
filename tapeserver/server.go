package tapeserver

import (
	"cmp"
	"context"
	"log/slog"
	"math"
	"net"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"

	"github.com/tapestore/tapestore/internal/clientlimit"
	"github.com/tapestore/tapestore/matcher"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tail"
	"github.com/tapestore/tapestore/tape"
	"github.com/tapestore/tapestore/tape/predicate"
	"github.com/tapestore/tapestore/tapeserver/auth"
	"github.com/tapestore/tapestore/tapeserver/certs"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

// Options configures a Server; nil, and each zero field, means the default.
type Options struct {
	// Fence selects how writes without a fence are treated; tape.FencePresented by default.
	Fence tape.FenceMode
	// WaitForLease makes every BeginRun and ResumeRun leave a live lease of another owner alone, as
	// the field wait_for_lease does for one request. ResumeRun by the owner remains a heartbeat,
	// unless the request has the field.
	WaitForLease bool
	// MaxMessageBytes bounds a request; 4 MiB by default.
	MaxMessageBytes int
	// Limits bounds the resources that clients can make the server hold.
	Limits Limits
	// DrainTimeout bounds the time that Serve takes to return after its context has ended; 10
	// seconds by default.
	DrainTimeout time.Duration
	// NoMatcher leaves the reactions to the matchers of other servers on the store.
	NoMatcher bool
	// MatcherTTL is the TTL of the leases under which the server drives the shards of reactions:
	// the time for which the shards wait for another server if this one is killed. See
	// matcher.Options.
	MatcherTTL time.Duration
	// MatcherHeartbeat is the longest time between two renewals of these leases. New panics if it
	// does not fit the TTL (lease.Options).
	MatcherHeartbeat time.Duration
	// LeaseTTL is, by reactor, the TTL of a lease or claim whose request names none. BeginRun and
	// ResumeRun use the one of the request's reactor ("agent" if it names none), ClaimEffectDispatch the
	// one of "outbox", ClaimObligation the one of "compensation". Other TTLs that a request leaves
	// out are 120 s for leases and 60 s for claims, as in Tape's protocol. Drivers that send no TTL
	// must renew within the shortest of these.
	LeaseTTL map[runstore.Reactor]time.Duration
	// TracerProvider and MeterProvider receive the spans and metrics of the server and its matcher
	// (docs/observability.md); OpenTelemetry's global providers by default. Calls are measured only if
	// a provider is set here or, when New is called, globally.
	TracerProvider trace.TracerProvider
	MeterProvider  metric.MeterProvider
	// TLS has the certificates of the server; nil for no TLS. The caller follows their files
	// (certs.Store.Watch).
	TLS *certs.Store
	// Auth authenticates calls; nil admits every call. With it, the server checks the role and the
	// tenants of the principal of every call but a health check.
	Auth auth.Authenticator
	// AuthInterval is the time after which the credentials of an open stream are checked again; 30
	// seconds by default.
	AuthInterval time.Duration
	// Logger receives problems that are not returned to a client; slog.Default by default.
	Logger *slog.Logger
}

const (
	defaultMessageBytes = 4 << 20
	defaultDrainTimeout = 10 * time.Second
	defaultAuthInterval = 30 * time.Second
)

// Server serves one store to Tape's clients, with gRPC's health service and reflection.
type Server struct {
	opts    Options
	store   runstore.RunStore
	tape    *tape.Tape
	grpc    *grpc.Server
	health  *health
	watch   *watch
	tail    *tail.Tail
	matcher *matcher.Matcher // nil if Options.NoMatcher is set
	// matcherPages holds a value for each page of the feed that the matcher has in memory.
	matcherPages chan struct{}
	inFlight     *bytesInFlight
	streams      atomic.Int64
	clients      *clients
	rates        *clientlimit.Rates
	refused      *refusals
	unfenced     atomic.Int64
	grants       *grantPool
	// predicates caches the predicates of the feeds' subscribers.
	predicates predicate.Cache
	// methods are the full names of the methods that are served.
	methods map[string]bool

	// drain ends when the server begins to drain, cut when calls in flight must end.
	drain, cut           context.Context
	beginDrain, beginCut context.CancelFunc
}

// New returns a server over store. The caller closes the store, after Serve has returned.
func New(store runstore.RunStore, opts *Options) *Server {
	s := &Server{store: store, matcherPages: make(chan struct{}, matcherPages)}
	if opts != nil {
		s.opts = *opts
	}
	s.opts.MaxMessageBytes = cmp.Or(s.opts.MaxMessageBytes, defaultMessageBytes)
	s.opts.DrainTimeout = cmp.Or(s.opts.DrainTimeout, defaultDrainTimeout)
	s.opts.AuthInterval = cmp.Or(s.opts.AuthInterval, defaultAuthInterval)
	s.opts.Logger = cmp.Or(s.opts.Logger, slog.Default())
	s.opts.Limits = s.opts.Limits.withDefaults()
	s.drain, s.beginDrain = context.WithCancel(context.Background())
	s.cut, s.beginCut = context.WithCancel(context.Background())
	s.tail = tail.New(store, &tail.Options{
		Logger: s.opts.Logger,
		Admit:  s.admitPage, TryAdmit: s.tryAdmitPage,
		Derive: deriveInput, MeterProvider: s.opts.MeterProvider,
	})
	s.tape = tape.New(s.tail.Store(), &tape.Options{Fence: s.opts.Fence, Logger: s.opts.Logger})
	s.matcher = s.newMatcher()
	s.watch = newWatch(s.opts.Logger)
	s.health = newHealth(s)
	limits := s.opts.Limits
	s.inFlight = newBytesInFlight(limits)
	s.clients, s.refused, s.grants = newClients(limits), newRefusals(), newGrantPool()
	s.rates = clientlimit.NewRates(limits.CallsPerSecond, limits.QueueTimeout)
	s.grpc = grpc.NewServer(append(append(s.measureCalls(), grpc.StatsHandler(resets{})),
		s.opts.credentials(),
		grpc.MaxRecvMsgSize(s.opts.MaxMessageBytes),
		grpc.MaxHeaderListSize(uint32(limits.HeaderBytes)),
		grpc.MaxConcurrentStreams(uint32(limits.StreamsPerConnection)),
		grpc.ConnectionTimeout(limits.HandshakeTimeout),
		grpc.StaticStreamWindowSize(windowBytes),
		grpc.StaticConnWindowSize(connectionWindowBytes),
		// Streams may be idle for hours: clients may ping the server, and the server detects
		// clients that are gone (keepalive).
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
		grpc.KeepaliveParams(s.opts.keepalive()),
		grpc.ForceServerCodecV2(newCodec()),
		grpc.InTapHandle(s.tapIn),
		grpc.UnaryInterceptor(s.unary),
		grpc.StreamInterceptor(s.stream),
	)...)
	services := registrar{s.grpc, s}
	tapepb.RegisterTapeServer(services, &service{tape: s.tape, tail: s.tail, opts: s.opts, grants: s.grants, unfenced: &s.unfenced, draining: s.drain.Done(), predicates: &s.predicates, pages: &pageTokens{tape: s.tape}, confirm: s.confirm, reactionsChanged: s.reactionsChanged})
	healthpb.RegisterHealthServer(services, s.health)
	reflection.Register(services)
	s.methods = methodsOf(s.grpc)
	return s
}

// credentials returns the transport security of the server.
func (o Options) credentials() grpc.ServerOption {
	if o.TLS == nil {
		return grpc.EmptyServerOption{}
	}
	return grpc.Creds(credentials.NewTLS(o.TLS.TLSConfig()))
}

// keepalive returns the timeouts of connections. A connection without a call is closed after a
// while, and its client reconnects when needed.
//
// With tape.FenceConnection it stays open: it has the grants of a driver whose tool may run for
// longer, or whose process is stopped. Such a process answers no ping of HTTP/2, and would write
// without a fence over the connection that its client opens when it wakes up. The keep-alives of
// TCP, which its kernel answers, find hosts that are gone: package net enables them on the
// connections of its listeners, 15 s without traffic and nine probes 15 s apart. While a reply is under way, TCP
// repeats that instead, on Linux for about a quarter of an hour.
func (o Options) keepalive() keepalive.ServerParameters {
	if o.Fence == tape.FenceConnection {
		return keepalive.ServerParameters{Time: math.MaxInt64}
	}
	return keepalive.ServerParameters{Time: time.Minute, Timeout: 20 * time.Second, MaxConnectionIdle: 15 * time.Minute}
}

// Serve serves calls on lis until ctx ends, and then drains: it accepts no connections and no
// calls, streams end with UNAVAILABLE, and calls in flight are finished. Calls that take longer
// than five eighths of the drain timeout are cancelled, early enough for their clients to receive
// the status; after three quarters all connections are closed. Serve then returns nil, although a
// store that ignores its context may still work on cancelled calls. A drained server cannot serve
// again.
func (s *Server) Serve(ctx context.Context, lis net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go s.health.poll(ctx)
	matched := s.startMatcher(ctx)
	accepted := newListener(lis, "grpc", s.opts.Limits, s.opts.Logger)
	defer s.observe(accepted)()
	served := make(chan error, 1)
	go func() { served <- s.grpc.Serve(accepted) }()
	select {
	case err := <-served:
		cancel()
		<-matched
		return err // the listener failed, there is nothing to drain
	case <-ctx.Done():
		s.stop(accepted, matched)
		if n := s.unfenced.Load(); n > 0 {
			s.opts.Logger.Info("drivers wrote without a fence", "mode", s.opts.Fence.String(), "writes", n)
		}
		if n := s.predicates.Counts(); n != (predicate.Counts{}) {
			s.opts.Logger.Info("predicates of subscribers had faults, which select nothing", "entries", n)
		}
		return nil
	}
}

// stop drains the server within the drain timeout, even if its clients and its store do not
// respond.
func (s *Server) stop(lis *listener, matched <-chan struct{}) {
	deadline, cancel := context.WithTimeout(context.Background(), s.opts.DrainTimeout)
	defer cancel()
	s.beginDrain()
	s.health.Shutdown()
	lis.closeSilent()
	drained, closed := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(drained)
		defer func() { <-matched }() // the matcher releases its leases meanwhile
		s.tail.Close(deadline)       // ends the streams
		s.grpc.GracefulStop()
	}()
	cut := time.AfterFunc(s.opts.DrainTimeout/8*5, func() {
		s.opts.Logger.Warn("cancelling the calls that are still in flight", "after", s.opts.DrainTimeout/8*5)
		s.beginCut()
	})
	defer cut.Stop()
	closing := time.AfterFunc(s.opts.DrainTimeout/4*3, func() {
		defer close(closed)
		lis.closeAll()
		s.grpc.Stop() // waits for the connections; a connection with too many handlers waits for those
	})
	defer closing.Stop()
	select {
	case <-drained:
	case <-closed:
	case <-deadline.Done():
	}
}
