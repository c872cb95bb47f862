package emulators

import (
	"context"
	"errors"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/tapestore/tapestore/emulators/forward"
)

// spannerRPC is an RPC under way: its request, for who passes it on, and what its
// client gets to hear of the answer.
type spannerRPC struct {
	grpc.ServerStream
	ctx         context.Context // the client's, or that of what it left behind
	cancel      func()
	detached    bool // the end of its sender is not its own
	request     forward.Frame
	requestRead bool // first was

	dropReply    bool            // nothing of the answer is passed on
	swallowUntil <-chan struct{} // closed when its client is to hear of that
	breakAfter   int             // messages; below 0 the answer is whole
	sent         int
	inspect      func(first []byte) // at the answer, if not nil
}

func newSpannerRPC(down grpc.ServerStream) *spannerRPC {
	return &spannerRPC{ServerStream: down, ctx: down.Context(), cancel: func() {}, breakAfter: -1}
}

// detach makes the RPC outlive its sender, but not life.
func (a *spannerRPC) detach(life context.Context) {
	if a.detached {
		return
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(a.ctx))
	stop := context.AfterFunc(life, cancel)
	a.ctx, a.cancel, a.detached = ctx, func() { stop(); cancel() }, true
}

// Context is that of the RPC at the emulator.
func (a *spannerRPC) Context() context.Context { return a.ctx }

// RecvMsg gives the request again, to who passes it on.
func (a *spannerRPC) RecvMsg(m any) error {
	if f, ok := m.(*forward.Frame); ok && !a.requestRead {
		a.requestRead = true
		*f = a.request
		return nil
	}
	err := a.ServerStream.RecvMsg(m)
	if err != nil && a.detached {
		return io.EOF // the end of the sender is not that of its request
	}
	return err
}

// SendHeader passes the head of the answer on, or loses it.
func (a *spannerRPC) SendHeader(md metadata.MD) error {
	if a.dropReply {
		return nil
	}
	return a.ignoreClientGone(a.ServerStream.SendHeader(md))
}

// SendMsg passes a message of the answer on, loses it, or breaks the stream.
func (a *spannerRPC) SendMsg(m any) error {
	if f, ok := m.(*forward.Frame); ok && a.inspect != nil {
		a.inspect(*f)
		a.inspect = nil
	}
	if a.dropReply {
		return nil
	}
	if a.breakAfter >= 0 && a.sent >= a.breakAfter {
		return errSpannerBroken
	}
	err := a.ServerStream.SendMsg(m)
	if err == nil {
		a.sent++
	}
	return a.ignoreClientGone(err)
}

func (a *spannerRPC) sendFrame(frame forward.Frame) error { return a.SendMsg(&frame) }

// leave forgets that nobody listens: the emulator must be able to say it all.
func (a *spannerRPC) ignoreClientGone(err error) error {
	if err != nil && a.detached {
		a.dropReply = true
		return nil
	}
	return err
}

var errSpannerBroken = status.Error(codes.Unavailable, "the emulator was told to break this stream")

// finish is called with what the emulator answered in the end, and returns what the
// client is told.
func (a *spannerRPC) finish(err error) error {
	switch {
	case a.swallowUntil != nil:
		client := a.ServerStream.Context()
		select {
		case <-client.Done():
			return status.FromContextError(client.Err()).Err()
		case <-a.swallowUntil:
		}
		return status.Error(codes.Unavailable, "the emulator was told to swallow this answer")
	case a.dropReply:
		return status.Error(codes.Unavailable, "the emulator was told to drop this answer")
	case err == nil && a.breakAfter >= 0:
		return errSpannerBroken
	case status.Code(err) == codes.Canceled && a.ctx.Err() == nil: // the connection is closed: Restart
		return status.Error(codes.Unavailable, status.Convert(err).Message())
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return status.FromContextError(err).Err()
	}
	return err
}
