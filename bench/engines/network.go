package engines

import (
	"context"
	"errors"
	"net"
	"net/url"
	"slices"
	"sync/atomic"
	"time"

	"cloud.google.com/go/alloydbconn"
	"github.com/jackc/pgx/v5"
	"google.golang.org/grpc"

	"github.com/tapestore/tapestore/bench"
	suite "github.com/tapestore/tapestore/conformance/engines"
	"github.com/tapestore/tapestore/conformance/faultynetwork"
	alloydbemulator "github.com/tapestore/tapestore/emulators/alloydb"
	"github.com/tapestore/tapestore/internal/grpcproxy"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/alloydb"
	"github.com/tapestore/tapestore/runstore/postgres"
)

// oneWay is the delay that a network to an emulator adds in each direction: 2 ms, a round trip of 4
// ms as between a client and a regional service.
const oneWay = 2 * time.Millisecond

// rpcNetwork is a proxy in front of an emulator that speaks gRPC. It delays every request and every
// reply, and counts the RPCs.
type rpcNetwork struct {
	server   *grpc.Server
	up       *grpc.ClientConn
	address  string
	ended    chan struct{}
	requests atomic.Int64
}

// newRPCNetwork starts a proxy in front of the emulator at the address target.
func newRPCNetwork(ctx context.Context, target string) (*rpcNetwork, error) {
	up, err := grpc.NewClient("passthrough:///"+target, grpcproxy.DialOptions()...)
	if err != nil {
		return nil, err
	}
	var listen net.ListenConfig
	listener, err := listen.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, errors.Join(err, up.Close())
	}
	n := &rpcNetwork{up: up, address: listener.Addr().String(), ended: make(chan struct{})}
	n.server = grpc.NewServer(append(grpcproxy.ServerOptions(),
		grpc.ForceServerCodec(grpcproxy.Frames()),
		grpc.UnknownServiceHandler(grpcproxy.Handler(up)),
		grpc.ChainStreamInterceptor(n.intercept),
	)...)
	go func() {
		defer close(n.ended)
		_ = n.server.Serve(listener) // returns when the server is stopped
	}()
	return n, nil
}

func (n *rpcNetwork) intercept(srv any, down grpc.ServerStream, _ *grpc.StreamServerInfo, forward grpc.StreamHandler) error {
	n.requests.Add(1)
	stream := &farStream{ServerStream: down}
	err := forward(srv, stream)
	stream.delayReply()
	return err
}

func (n *rpcNetwork) close() error {
	n.server.Stop()
	<-n.ended
	return n.up.Close()
}

// farStream is an RPC whose first message and whose first reply are delayed.
type farStream struct {
	grpc.ServerStream
	asked, answered bool
}

func (s *farStream) RecvMsg(m any) error {
	err := s.ServerStream.RecvMsg(m)
	if !s.asked {
		s.asked = true
		wait(s.Context(), oneWay)
	}
	return err
}

// delayReply delays the reply before its first message.
func (s *farStream) delayReply() {
	if !s.answered {
		s.answered = true
		wait(s.Context(), oneWay)
	}
}

func (s *farStream) SendMsg(m any) error {
	s.delayReply()
	return s.ServerStream.SendMsg(m)
}

// wait waits for d, or until ctx ends.
func wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// emulatorNetwork returns a function that makes networks to the emulator that a store's URL names
// by its parameter emulator, or nil if the URL names none.
func emulatorNetwork(storeURL string) func(ctx context.Context) (bench.Network, error) {
	u, err := url.Parse(storeURL)
	if err != nil || u.Query().Get("emulator") == "" {
		return nil
	}
	return func(ctx context.Context) (bench.Network, error) {
		params := u.Query()
		n, err := newRPCNetwork(ctx, params.Get("emulator"))
		if err != nil {
			return bench.Network{}, err
		}
		far := *u
		params.Set("emulator", n.address)
		far.RawQuery = params.Encode()
		return bench.Network{
			Open:     func(ctx context.Context) (runstore.RunStore, error) { return runstore.Open(ctx, far.String()) },
			Requests: n.requests.Load, Close: n.close,
		}, nil
	}
}

// alloydbNetwork returns a function that makes networks between the connector and the stand-in for
// AlloyDB's proxy. The traffic is TLS, so requests are not counted.
func alloydbNetwork(server *alloydbemulator.Server, opts *alloydb.Options) func(ctx context.Context) (bench.Network, error) {
	return func(ctx context.Context) (bench.Network, error) {
		way, err := faultynetwork.New(ctx, "127.0.0.1:1") // a dial names the server
		if err != nil {
			return bench.Network{}, err
		}
		way.Delay(oneWay)
		far := *opts
		far.Dialer = append(slices.Clone(opts.Dialer), alloydbconn.WithDialFunc(func(ctx context.Context, kind, address string) (net.Conn, error) {
			door, err := server.Door(address)
			if err != nil {
				return nil, err
			}
			way.Retarget(door)
			var dialer net.Dialer
			return dialer.DialContext(ctx, kind, way.Address())
		}))
		return bench.Network{
			Open:  func(ctx context.Context) (runstore.RunStore, error) { return suite.OpenAlloyDB(ctx, &far) },
			Close: way.Close,
		}, nil
	}
}

// postgresNetwork returns a function that makes networks which count the statements of handles on a
// PostgreSQL server. A batch of statements is one request.
func postgresNetwork(storeURL string) func(ctx context.Context) (bench.Network, error) {
	return func(context.Context) (bench.Network, error) {
		counter := &statements{}
		return bench.Network{
			Open: func(ctx context.Context) (runstore.RunStore, error) {
				config, err := poolConfig(storeURL)
				if err != nil {
					return nil, err
				}
				config.ConnConfig.Tracer = counter
				return postgres.Open(ctx, config, nil)
			},
			Requests: counter.n.Load,
		}, nil
	}
}

// statements counts the requests of a PostgreSQL client.
type statements struct{ n atomic.Int64 }

// TraceQueryStart implements pgx.QueryTracer.
func (s *statements) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	s.n.Add(1)
	return ctx
}

// TraceQueryEnd implements pgx.QueryTracer.
func (*statements) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// TraceBatchStart implements pgx.BatchTracer.
func (s *statements) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	s.n.Add(1)
	return ctx
}

// TraceBatchQuery implements pgx.BatchTracer.
func (*statements) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}

// TraceBatchEnd implements pgx.BatchTracer.
func (*statements) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}
