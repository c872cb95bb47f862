package fencegrpc

import (
	"context"
	"errors"
	"io"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/tapestore/tapestore/fence"
	"github.com/tapestore/tapestore/fence/internal/wire"
	"github.com/tapestore/tapestore/runstore"
)

// Options configures the interceptors of a server. The zero Options refuse every call without a
// fence, those of health checks and reflection included.
type Options struct {
	// Unfenced reports whether a call of the method ("/package.Service/Method") that presents no
	// fence may pass, for example because it only reads. Nil lets none pass. Each call that passes
	// and writes is a hole in the fence. A call with one of the two keys never passes.
	Unfenced func(fullMethod string) bool
	// Resource returns the resource that a message of the method touches, as the service sees it; a
	// fence that names another is refused. On a stream it is called for each message that arrives. The
	// check at the beginning of the stream has no message: a fence that names another resource is checked,
	// and its token is recorded for the resource that it names, before the first message refuses it.
	// Nil relies on what the caller names: a caller that names a resource wrongly is then not
	// fenced. An error refuses the call as malformed, and its text is sent to the client.
	Resource func(ctx context.Context, fullMethod string, message any) (string, error)
	// OnError is called with each error that refuses a call, for a log; nil drops them. The status
	// UNAVAILABLE does not contain the error of the database.
	OnError func(ctx context.Context, fullMethod string, err error)
}

// UnaryServerInterceptor returns an interceptor that checks the fence of each unary call and runs
// its handler if the check succeeds; nil options mean the zero Options. The handler's context
// carries the fence ([fence.FromContext]), so that the handler can present it once more with its
// write: a check here is not atomic with what the handler does.
func UnaryServerInterceptor(checker fence.Checker, opts *Options) grpc.UnaryServerInterceptor {
	g := newGuard(checker, opts)
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		p, fenced, err := g.presented(ctx, info.FullMethod)
		if err == nil && fenced {
			if err = g.match(ctx, info.FullMethod, p, req); err == nil {
				err = g.checker.Check(ctx, p.Resource, p.Token)
			}
			ctx = fence.NewContext(ctx, p)
		}
		if err != nil {
			return nil, g.refuse(ctx, info.FullMethod, p, err)
		}
		return handler(ctx, req)
	}
}

// StreamServerInterceptor is [UnaryServerInterceptor] for streams. It checks the fence when the
// stream begins, again with each message before the handler receives it, and again at the end of the
// client's messages (io.EOF), where a handler of a client stream acts. Once RecvMsg has returned a
// refusal, the stream ends with it, even if the handler returns no error.
//
// A takeover does not end a stream whose handler only sends, or waits in RecvMsg: nothing is checked
// until the client sends a message or ends its side. A handler that acts between messages presents
// the fence again with each write.
func StreamServerInterceptor(checker fence.Checker, opts *Options) grpc.StreamServerInterceptor {
	g := newGuard(checker, opts)
	return func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		ctx := stream.Context()
		p, fenced, err := g.presented(ctx, info.FullMethod)
		if err == nil && fenced {
			err = g.checker.Check(ctx, p.Resource, p.Token)
		}
		if err != nil {
			return g.refuse(ctx, info.FullMethod, p, err)
		}
		if !fenced {
			return handler(srv, stream)
		}
		s := &serverStream{ServerStream: stream, ctx: fence.NewContext(ctx, p), guard: g, method: info.FullMethod, fence: p}
		err = handler(srv, s)
		if refused := s.refused.Load(); refused != nil {
			return *refused
		}
		return err
	}
}

// serverStream is a stream under a fence.
type serverStream struct {
	grpc.ServerStream
	ctx     context.Context
	guard   *guard
	method  string
	fence   fence.Presented
	refused atomic.Pointer[error] // the status of the refusal
}

// Context implements grpc.ServerStream.
func (s *serverStream) Context() context.Context { return s.ctx }

// RecvMsg implements grpc.ServerStream. It checks the fence once the message, or the end of the
// messages, has arrived, because the takeover may have come while the handler waited.
func (s *serverStream) RecvMsg(m any) error {
	if refused := s.refused.Load(); refused != nil {
		return *refused
	}
	received := s.ServerStream.RecvMsg(m)
	var err error
	switch {
	case received == nil:
		err = s.guard.match(s.ctx, s.method, s.fence, m)
	case !errors.Is(received, io.EOF): // at the end there is no message to match
		return received
	}
	if err == nil {
		err = s.guard.checker.Check(s.ctx, s.fence.Resource, s.fence.Token)
	}
	if err == nil {
		return received
	}
	err = afterStart(s.guard.refuse(s.ctx, s.method, s.fence, err))
	s.refused.Store(&err)
	return err
}

// guard is what the interceptors of a server share.
type guard struct {
	checker fence.Checker
	opts    Options
}

func newGuard(checker fence.Checker, opts *Options) *guard {
	g := &guard{checker: checker}
	if opts != nil {
		g.opts = *opts
	}
	return g
}

// presented returns the fence of a call. fenced is false if the call presents none and may pass.
func (g *guard) presented(ctx context.Context, method string) (p fence.Presented, fenced bool, err error) {
	md, _ := metadata.FromIncomingContext(ctx) // a nil map has no values
	p, err = wire.Parse(md.Get(TokenKey), md.Get(ResourceKey))
	if errors.Is(err, wire.ErrMissing) && g.opts.Unfenced != nil && g.opts.Unfenced(method) {
		return p, false, nil
	}
	return p, true, err
}

// match refuses a fence of another resource than the one that the message touches.
func (g *guard) match(ctx context.Context, method string, p fence.Presented, message any) error {
	if g.opts.Resource == nil {
		return nil
	}
	touched, err := g.opts.Resource(ctx, method, message)
	if err != nil {
		return &runstore.InputError{Kind: runstore.ErrInvalid, Field: "request", Problem: err.Error()}
	}
	return wire.Match(p, touched)
}

// refuse reports the error of a call that is not run, and returns its status.
func (g *guard) refuse(ctx context.Context, method string, p fence.Presented, err error) error {
	if g.opts.OnError != nil {
		g.opts.OnError(ctx, method, err)
	}
	return statusOf(ctx, p, err)
}
