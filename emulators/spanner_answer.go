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

// spannerAnswer is an RPC under way: its request, for who passes it on, and what its
// client gets to hear of the answer.
type spannerAnswer struct {
	grpc.ServerStream
	ctx      context.Context // the client's, or that of what it left behind
	cancel   func()
	detached bool // the end of its sender is not its own
	first    forward.Frame
	taken    bool // first was

	lost       bool            // nothing of the answer is passed on
	swallowed  <-chan struct{} // closed when its client is to hear of that
	breakAfter int             // messages; below 0 the answer is whole
	sent       int
	look       func(first []byte) // at the answer, if not nil
}

func newSpannerAnswer(down grpc.ServerStream) *spannerAnswer {
	return &spannerAnswer{ServerStream: down, ctx: down.Context(), cancel: func() {}, breakAfter: -1}
}

// detach makes the RPC outlive its sender, but not life.
func (a *spannerAnswer) detach(life context.Context) {
	if a.detached {
		return
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(a.ctx))
	stop := context.AfterFunc(life, cancel)
	a.ctx, a.cancel, a.detached = ctx, func() { stop(); cancel() }, true
}

// Context is that of the RPC at the emulator.
func (a *spannerAnswer) Context() context.Context { return a.ctx }

// RecvMsg gives the request again, to who passes it on.
func (a *spannerAnswer) RecvMsg(m any) error {
	if f, ok := m.(*forward.Frame); ok && !a.taken {
		a.taken = true
		*f = a.first
		return nil
	}
	err := a.ServerStream.RecvMsg(m)
	if err != nil && a.detached {
		return io.EOF // the end of the sender is not that of its request
	}
	return err
}

// SendHeader passes the head of the answer on, or loses it.
func (a *spannerAnswer) SendHeader(md metadata.MD) error {
	if a.lost {
		return nil
	}
	return a.leave(a.ServerStream.SendHeader(md))
}

// SendMsg passes a message of the answer on, loses it, or breaks the stream.
func (a *spannerAnswer) SendMsg(m any) error {
	if f, ok := m.(*forward.Frame); ok && a.look != nil {
		a.look(*f)
		a.look = nil
	}
	if a.lost {
		return nil
	}
	if a.breakAfter >= 0 && a.sent >= a.breakAfter {
		return errSpannerBroken
	}
	err := a.ServerStream.SendMsg(m)
	if err == nil {
		a.sent++
	}
	return a.leave(err)
}

func (a *spannerAnswer) sendFrame(frame forward.Frame) error { return a.SendMsg(&frame) }

// leave forgets that nobody listens: the emulator must be able to say it all.
func (a *spannerAnswer) leave(err error) error {
	if err != nil && a.detached {
		a.lost = true
		return nil
	}
	return err
}

var errSpannerBroken = status.Error(codes.Unavailable, "the emulator was told to break this stream")

// finish is called with what the emulator answered in the end, and returns what the
// client is told.
func (a *spannerAnswer) finish(err error) error {
	switch {
	case a.swallowed != nil:
		client := a.ServerStream.Context()
		select {
		case <-client.Done():
			return status.FromContextError(client.Err()).Err()
		case <-a.swallowed:
		}
		return status.Error(codes.Unavailable, "the emulator was told to swallow this answer")
	case a.lost:
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
