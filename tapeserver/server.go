package tapeserver

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"runtime/debug"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tail"
	"github.com/tapestore/tapestore/tape"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

// Options adjusts a server; nil, and each zero field, means the default.
type Options struct {
	// Fence says what becomes of writes without a fence; tape.FencePresented by
	// default.
	Fence tape.FenceMode
	// MaxMessageBytes bounds a request; 4 MiB by default.
	MaxMessageBytes int
	// DrainTimeout bounds how long calls in flight may take once the server is to
	// stop; 10 seconds by default.
	DrainTimeout time.Duration
	// Logger is told of what no client sees; slog.Default by default.
	Logger *slog.Logger
}

const (
	defaultMessageBytes = 4 << 20
	defaultDrainTimeout = 10 * time.Second
)

// Server serves one store to Tape's clients.
type Server struct {
	opts  Options
	store runstore.RunStore
	tape  *tape.Tape
	grpc  *grpc.Server
	tail  *tail.Tail

	drainOnce sync.Once
	draining  chan struct{}
}

// New returns a server over store. Whoever opened the store closes it, after
// Serve has returned.
func New(store runstore.RunStore, opts *Options) *Server {
	s := &Server{store: store, draining: make(chan struct{})}
	if opts != nil {
		s.opts = *opts
	}
	if s.opts.MaxMessageBytes <= 0 {
		s.opts.MaxMessageBytes = defaultMessageBytes
	}
	if s.opts.DrainTimeout <= 0 {
		s.opts.DrainTimeout = defaultDrainTimeout
	}
	if s.opts.Logger == nil {
		s.opts.Logger = slog.Default()
	}
	s.tail = tail.New(store, &tail.Options{Logger: s.opts.Logger})
	s.tape = tape.New(s.tail.Store(), &tape.Options{Fence: s.opts.Fence, Logger: s.opts.Logger})
	s.grpc = grpc.NewServer(
		grpc.ForceServerCodecV2(newTextCodec()),
		grpc.MaxRecvMsgSize(s.opts.MaxMessageBytes),
		// Streams are quiet for hours: let clients ask whether we are there, and
		// find out about those that are gone.
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: time.Minute, Timeout: 20 * time.Second}),
		grpc.UnaryInterceptor(s.unary),
		grpc.StreamInterceptor(s.stream),
	)
	tapepb.RegisterTapeServer(s.grpc, &service{tape: s.tape, tail: s.tail, draining: s.draining})
	return s
}

// Serve answers calls on lis until ctx ends, and then drains: streams end with
// UNAVAILABLE, calls in flight are finished, and what is not finished by the drain
// timeout is cut off. It returns nil after a drain. A drained server serves no
// more.
func (s *Server) Serve(ctx context.Context, lis net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	drained := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(drained)
		s.drain()
	})
	err := s.grpc.Serve(lis)
	if stop() {
		return err // it failed by itself, nothing is to be drained
	}
	<-drained
	return err
}

// drain stops the server. All callers wait until it has stopped.
func (s *Server) drain() {
	s.drainOnce.Do(func() {
		close(s.draining)
		ctx, cancel := context.WithTimeout(context.Background(), s.opts.DrainTimeout)
		defer cancel()
		followed := make(chan struct{})
		go func() {
			defer close(followed)
			s.tail.Close(ctx) // ends the streams
		}()
		cut := time.AfterFunc(s.opts.DrainTimeout, s.grpc.Stop)
		defer cut.Stop()
		s.grpc.GracefulStop()
		<-followed
	})
}

// unary and stream keep a fault in one call from ending all others.
func (s *Server) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (_ any, err error) {
	defer s.recover(info.FullMethod, &err)
	return next(ctx, req)
}

func (s *Server) stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) (err error) {
	defer s.recover(info.FullMethod, &err)
	return next(srv, stream)
}

func (s *Server) recover(method string, err *error) {
	if fault := recover(); fault != nil {
		s.opts.Logger.Error("a call failed", "method", method, "fault", fmt.Sprint(fault), "stack", string(debug.Stack()))
		*err = status.Error(codes.Internal, "tape store: internal fault; see the server's log")
	}
}
