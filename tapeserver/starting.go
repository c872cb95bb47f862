package tapeserver

import (
	"cmp"
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

// ServeStarting serves gRPC on lis in the background while the store is not open yet: the health
// service reports NOT_SERVING, and every other call fails with UNAVAILABLE. Of the options it uses
// TLS, Limits and Logger.
//
// The caller calls stop before it serves another server on lis, which stays open. No connection is
// refused meanwhile. Connections that were accepted before are asked to go away, so that their
// clients reconnect.
func ServeStarting(lis *net.TCPListener, opts Options) (stop func()) {
	limits, log := opts.Limits.withDefaults(), cmp.Or(opts.Logger, slog.Default())
	server := grpc.NewServer(
		opts.credentials(),
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
		_ = server.Serve(newListener(borrowed{lis}, "grpc", limits, log)) // ends with stop, or when lis is closed
	}()
	return sync.OnceFunc(func() {
		close(opened)
		_ = lis.SetDeadline(time.Unix(1, 0)) // fails if lis is closed
		<-served
		_ = lis.SetDeadline(time.Time{})
		go server.GracefulStop() // in the background: a client that does not respond may delay it
	})
}

// borrowed is a listener that stays open, and whose Accept ends permanently at its deadline.
type borrowed struct{ net.Listener }

func (b borrowed) Accept() (net.Conn, error) {
	c, err := b.Listener.Accept()
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = net.ErrClosed // gRPC would call Accept again after a timeout
	}
	return c, err
}

func (borrowed) Close() error { return nil }

// starting is gRPC's health service while the store is not open.
type starting struct {
	healthpb.UnimplementedHealthServer
	opened <-chan struct{}
}

func (starting) Check(context.Context, *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	return &healthpb.HealthCheckResponse{Status: healthpb.HealthCheckResponse_NOT_SERVING}, nil
}

// Watch ends when the store is open, so that its client calls the next server.
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
