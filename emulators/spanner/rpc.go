package spanner

import (
	"context"
	"errors"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/tapestore/tapestore/internal/grpcproxy"
)

// rpc is an RPC in flight. It is the server stream of the handler that forwards the RPC: it
// replays the request to that handler, and drops or breaks its reply as the faults demand.
type rpc struct {
	grpc.ServerStream
	ctx         context.Context // the client's context, or after detach one that outlives the client
	cancel      func()
	detached    bool // the RPC continues if its sender leaves
	request     grpcproxy.Frame
	requestRead bool // RecvMsg has returned request

	dropReply    bool            // no part of the reply is passed on
	swallowUntil <-chan struct{} // if not nil, the client gets an error when this is closed
	breakAfter   int             // break the reply after so many messages; negative: never
	sent         int
	inspect      func(first []byte) // called with the first message of the reply, if not nil
}

func newRPC(down grpc.ServerStream) *rpc {
	return &rpc{ServerStream: down, ctx: down.Context(), cancel: func() {}, breakAfter: -1}
}

// detach makes the RPC independent of its sender; it then ends with life at the latest.
func (a *rpc) detach(life context.Context) {
	if a.detached {
		return
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(a.ctx))
	stop := context.AfterFunc(life, cancel)
	a.ctx, a.cancel, a.detached = ctx, func() { stop(); cancel() }, true
}

// Context returns the context of the RPC to the emulator.
func (a *rpc) Context() context.Context { return a.ctx }

// RecvMsg returns the request, which was read before, once more.
func (a *rpc) RecvMsg(m any) error {
	if f, ok := m.(*grpcproxy.Frame); ok && !a.requestRead {
		a.requestRead = true
		*f = a.request
		return nil
	}
	err := a.ServerStream.RecvMsg(m)
	if err != nil && a.detached {
		return io.EOF // the request continues without its sender
	}
	return err
}

// SendHeader passes the reply's header on, or drops it.
func (a *rpc) SendHeader(md metadata.MD) error {
	if a.dropReply {
		return nil
	}
	return a.ignoreClientGone(a.ServerStream.SendHeader(md))
}

// SendMsg passes a message of the reply on, drops it, or breaks the stream.
func (a *rpc) SendMsg(m any) error {
	if f, ok := m.(*grpcproxy.Frame); ok && a.inspect != nil {
		a.inspect(*f)
		a.inspect = nil
	}
	if a.dropReply {
		return nil
	}
	if a.breakAfter >= 0 && a.sent >= a.breakAfter {
		return errBroken
	}
	err := a.ServerStream.SendMsg(m)
	if err == nil {
		a.sent++
	}
	return a.ignoreClientGone(err)
}

func (a *rpc) sendFrame(frame grpcproxy.Frame) error { return a.SendMsg(&frame) }

// ignoreClientGone drops the error of a detached RPC whose client is gone, so that the emulator can
// finish its reply.
func (a *rpc) ignoreClientGone(err error) error {
	if err != nil && a.detached {
		a.dropReply = true
		return nil
	}
	return err
}

var errBroken = status.Error(codes.Unavailable, "a fault makes the emulator break this stream")

// finish takes the emulator's final status and returns the client's.
func (a *rpc) finish(err error) error {
	switch {
	case a.swallowUntil != nil:
		client := a.ServerStream.Context()
		select {
		case <-client.Done():
			return status.FromContextError(client.Err()).Err()
		case <-a.swallowUntil:
		}
		return status.Error(codes.Unavailable, "a fault makes the emulator swallow this answer")
	case a.dropReply:
		return status.Error(codes.Unavailable, "a fault makes the emulator drop this answer")
	case err == nil && a.breakAfter >= 0:
		return errBroken
	case status.Code(err) == codes.Canceled && a.ctx.Err() == nil: // the connection is closed: Restart
		return status.Error(codes.Unavailable, status.Convert(err).Message())
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return status.FromContextError(err).Err()
	}
	return err
}
