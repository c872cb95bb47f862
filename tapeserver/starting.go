package tapeserver

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

var errStarting = status.Error(codes.Unavailable, "the server is starting")

// ServeStarting serves gRPC on lis in the background while there is no store yet: the health
// service answers NOT_SERVING, and every other call fails with UNAVAILABLE.
//
// The caller calls stop before another server is served on lis, which stays open. No
// connection is refused meanwhile. Those that were accepted before are asked to go away, so
// that their clients connect again.
func ServeStarting(lis *net.TCPListener, limits Limits, log *slog.Logger) (stop func()) {
	limits = limits.withDefaults()
	server := grpc.NewServer(
		grpc.MaxHeaderListSize(uint32(limits.HeaderBytes)),
		grpc.MaxConcurrentStreams(uint32(limits.StreamsPerConnection)),
		grpc.ConnectionTimeout(limits.HandshakeTimeout),
		grpc.UnknownServiceHandler(func(any, grpc.ServerStream) error { return errStarting }),
	)
	opened := make(chan struct{})
	healthpb.RegisterHealthServer(server, starting{opened: opened})
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(newListener(borrowed{lis}, limits, log)) // it ends with stop, or with lis
	}()
	return sync.OnceFunc(func() {
		close(opened)
		_ = lis.SetDeadline(time.Unix(1, 0)) // it fails if lis is closed
		<-served
		_ = lis.SetDeadline(time.Time{})
		go server.GracefulStop() // a client that does not answer may hold it up
	})
}

// borrowed is a listener that stays open, and ends Accept for good at its deadline.
type borrowed struct{ net.Listener }

func (b borrowed) Accept() (net.Conn, error) {
	c, err := b.Listener.Accept()
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = net.ErrClosed // gRPC would accept again after a timeout
	}
	return c, err
}

func (borrowed) Close() error { return nil }

// starting is gRPC's health service while there is no store.
type starting struct {
	healthpb.UnimplementedHealthServer
	opened <-chan struct{}
}

func (starting) Check(context.Context, *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	return &healthpb.HealthCheckResponse{Status: healthpb.HealthCheckResponse_NOT_SERVING}, nil
}

// Watch ends when the store is open, so that its client asks the next server.
func (s starting) Watch(_ *healthpb.HealthCheckRequest, stream healthpb.Health_WatchServer) error {
	if err := stream.Send(&healthpb.HealthCheckResponse{Status: healthpb.HealthCheckResponse_NOT_SERVING}); err != nil {
		return err
	}
	select {
	case <-s.opened:
	case <-stream.Context().Done():
	}
	return errStarting
}
