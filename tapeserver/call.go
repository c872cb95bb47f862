package tapeserver

import (
	"context"
	"errors"
	"fmt"
	"path"
	"runtime/debug"
	"slices"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"
	"google.golang.org/protobuf/proto"

	"github.com/tapestore/tapestore/internal/clientlimit"
	"github.com/tapestore/tapestore/tapeserver/auth"
)

// errShuttingDown is the error of calls that arrive while the server drains. They were not applied.
var errShuttingDown = status.Error(codes.Unavailable, "the server is shutting down")

// errCut is the cancellation cause of calls that the drain cuts.
var errCut = errors.New("the drain has cut the call")

// tapIn runs for every call before any of it is read. While the server drains it refuses calls,
// also on connections whose clients ignore the request to go away (GOAWAY).
func (s *Server) tapIn(ctx context.Context, _ *tap.Info) (context.Context, error) {
	if s.drain.Err() != nil {
		return ctx, errShuttingDown
	}
	connOf(ctx).use()
	return ctx, nil
}

// registrar registers services whose calls are admitted before their requests are read: an
// interceptor would run too late.
type registrar struct {
	*grpc.Server
	s *Server
}

// RegisterService registers a service.
func (r registrar) RegisterService(desc *grpc.ServiceDesc, impl any) {
	admitted := *desc
	admitted.Methods = slices.Clone(desc.Methods)
	for i := range admitted.Methods {
		m := &admitted.Methods[i]
		m.Handler = r.s.admitted(m.MethodName, m.Handler)
	}
	r.Server.RegisterService(&admitted, impl)
}

// admitted wraps the handler of a method so that its call's memory is bounded.
func (s *Server) admitted(method string, handle grpc.MethodHandler) grpc.MethodHandler {
	replySize := replyBytes(method)
	return func(srv any, ctx context.Context, decode func(any) error, next grpc.UnaryServerInterceptor) (any, error) {
		c, err := s.begin(ctx)
		if err != nil {
			return nil, err
		}
		defer c.end()
		if err := c.acquire(int64(s.opts.MaxMessageBytes) + replySize); err != nil {
			return nil, err
		}
		if method == beginEffect {
			decode = decodeBeginEffect(decode)
		}
		receive := func(m any) error {
			if err := c.receive(decode, m); err != nil {
				return err
			}
			c.hold.shrink(size(m) + replySize)
			return nil
		}
		answer, err := handle(srv, c.ctx, receive, next)
		if err != nil {
			return nil, c.outcome(err)
		}
		m := answer.(proto.Message)
		c.hold.shrink(size(m))
		r := &reply{Message: m, call: c, hold: c.hold}
		c.conn.sent(c)
		c.hold = nil // the reply owns the hold until the client has taken it
		return r, nil
	}
}

func size(m any) int64 { return int64(proto.Size(m.(proto.Message))) }

// call is one RPC of a client, from its headers until its handler has ended and the client has taken its
// messages. For so long it counts as one of Streams: gRPC keeps its messages in memory.
type call struct {
	s      *Server
	ctx    context.Context // the handler's context; ends with the stream, or when the drain cuts the call
	conn   *conn
	client *client
	hold   *hold
	unread unread
	// late receives an element when the client of a stream has left a page, or a message, unread for too long;
	// nil for a unary call.
	late chan struct{}
	// resume is the position up to which a subscriber of the feed has received everything; -1 for
	// any other call.
	resume atomic.Int64
	// run is the run that a stream's request names; zero if its principal is not limited to tenants.
	run atomic.Pointer[ownRun]

	stop   func() bool
	cancel context.CancelCauseFunc
}

func (s *Server) begin(stream context.Context) (*call, error) {
	if s.streams.Add(1) > int64(s.opts.Limits.Streams) {
		s.streams.Add(-1)
		return nil, limitError("Streams", s.opts.Limits.Streams, "too many calls at once")
	}
	name, ctx, err := s.authenticate(stream)
	if err != nil {
		s.streams.Add(-1)
		s.rates.Charge(name) // a wait would occupy a stream for a caller without rights
		return nil, err
	}
	entered := s.clients.enter(name)
	if entered == nil {
		s.streams.Add(-1)
		return nil, limitError("StreamsPerClient", clientlimit.Share(s.opts.Limits.Streams), "too many calls of this client at once")
	}
	if err := s.turn(ctx, name); err != nil {
		entered.leave()
		s.streams.Add(-1)
		return nil, err
	}
	c := &call{s: s, conn: connOf(stream), client: entered}
	c.resume.Store(-1)
	if r, ok := stream.Value(resetKey{}).(*rpc); ok {
		r.call.Store(c)
	}
	// gRPC frees a message that it compresses before the client has taken anything.
	_ = grpc.SetSendCompressor(stream, encoding.Identity) // fails on a stream that has ended
	c.ctx, c.cancel = context.WithCancelCause(ctx)
	c.stop = context.AfterFunc(s.cut, func() { c.cancel(errCut) })
	return c, nil
}

// turn waits until the client may begin a call, at most for QueueTimeout, and not after a drain has begun.
func (s *Server) turn(ctx context.Context, client string) error {
	switch err := s.rates.Wait(ctx, client, s.drain.Done()); err {
	case nil:
		return nil
	case clientlimit.ErrRate:
		return limitError("CallsPerSecond", s.opts.Limits.CallsPerSecond, "too many calls of this client")
	case clientlimit.ErrStopped:
		return errShuttingDown
	default:
		return status.FromContextError(err).Err()
	}
}

// end ends the call's handler.
func (c *call) end() {
	c.stop()
	c.cancel(nil)
	if c.hold != nil {
		c.hold.release()
	}
	c.conn.ended(c)
}

// isLate ends a stream whose client does not read.
func (c *call) isLate() {
	select {
	case c.late <- struct{}{}:
	default: // it is late already
	}
}

// leave ends the call: no message of it is in memory.
func (c *call) leave() {
	c.client.leave()
	c.s.streams.Add(-1)
}

// acquire waits for the call's share of the bytes in flight.
func (c *call) acquire(n int64) (err error) {
	c.hold, err = c.wait(n, c.s.opts.Limits.QueueTimeout)
	return err
}

// wait waits for a share of the bytes in flight, at most for timeout, and not after a drain has
// begun.
func (c *call) wait(n int64, timeout time.Duration) (*hold, error) {
	ctx, cancel := context.WithCancelCause(c.ctx)
	defer cancel(nil)
	defer context.AfterFunc(c.s.drain, func() { cancel(errShuttingDown) })()
	return c.s.inFlight.acquire(ctx, c.conn, c.client, n, timeout)
}

// receive reads the request, which must arrive in time and before a drain begins, because its call
// is new work. decode runs until the call has ended, which ends the stream that it reads from.
func (c *call) receive(decode func(any) error, m any) error {
	received := make(chan error, 1)
	go func() { received <- decode(m) }()
	timer := time.NewTimer(c.s.opts.Limits.ReceiveTimeout)
	defer timer.Stop()
	select {
	case err := <-received:
		if err == nil && c.s.drain.Err() != nil {
			return errShuttingDown
		}
		return err
	case <-c.s.drain.Done():
		return errShuttingDown
	case <-timer.C:
		return limitError("ReceiveTimeout", c.s.opts.Limits.ReceiveTimeout, "the request did not arrive in time")
	}
}

// outcome returns the error of a call that the drain may have cut: UNAVAILABLE instead of CANCELED,
// because the client did not cancel it. The same holds for a stream whose credentials have ended. An
// unknown outcome is returned unchanged.
func (c *call) outcome(err error) error {
	if status.Code(err) != codes.Canceled {
		return err
	}
	cause := context.Cause(c.ctx)
	if cause == errCut {
		return errShuttingDown
	}
	if ended := (accessEnded{}); errors.As(cause, &ended) {
		return ended.status
	}
	return err
}

// unary is the interceptor of unary calls. It contains panics to the call that caused them, and
// records the state of the store.
func (s *Server) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (_ any, err error) {
	defer s.recover(info.FullMethod, &err)
	run, err := s.own(ctx, info.FullMethod, req)
	if err != nil {
		return nil, err
	}
	answer, err := next(ctx, req)
	s.watch.call(ctx, path.Base(info.FullMethod), err)
	if err != nil {
		return nil, confined(ctx, info.FullMethod, req, run, err)
	}
	if need, _ := accessOf(info.FullMethod); need.role == auth.Read && run.id != "" {
		if err := s.confirm(ctx, run); err != nil {
			return nil, err
		}
	}
	return answer, nil
}

// stream is the interceptor of streams; it does the same as unary. If the client does not read, it
// ends the stream while the handler still waits to send, which then ends the handler.
func (s *Server) stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	c, err := s.begin(stream.Context())
	if err != nil {
		return err
	}
	c.late = make(chan struct{}, 1)
	ended := make(chan error, 1)
	go s.keepChecking(c)
	go func() {
		defer c.end()
		ended <- func() (err error) {
			defer s.recover(info.FullMethod, &err)
			return next(srv, &admittedStream{ServerStream: stream, call: c})
		}()
	}()
	select {
	case <-c.late:
		err := limitError("SendTimeout", s.opts.Limits.SendTimeout, "the client does not read")
		if at := c.resume.Load(); at >= 0 {
			err = resumable(err, at)
		}
		return err
	case err := <-ended:
		s.watch.call(stream.Context(), path.Base(info.FullMethod), err)
		return c.outcome(confined(c.ctx, info.FullMethod, nil, ownRun{}, err))
	}
}

func (s *Server) recover(method string, err *error) {
	if fault := recover(); fault != nil {
		s.opts.Logger.Error("a call failed", "method", method, "fault", fmt.Sprint(fault), "stack", string(debug.Stack()))
		*err = status.Error(codes.Internal, "tape store: internal fault; see the server's log")
		if path.Base(method) == beginEffect {
			*err = beginEffectFault
		}
	}
}

// admittedStream is a stream whose messages count as bytes in flight.
type admittedStream struct {
	grpc.ServerStream
	call *call
	page *hold       // rest of the hold of the page being sent; nil between pages
	late *time.Timer // the send timeout, from the page's first message on
}

type streamKey struct{}

// Context returns the stream's context.
func (st *admittedStream) Context() context.Context {
	return context.WithValue(st.call.ctx, streamKey{}, st)
}

// RecvMsg receives a message.
func (st *admittedStream) RecvMsg(m any) error {
	if err := st.call.acquire(int64(st.call.s.opts.MaxMessageBytes)); err != nil {
		return err
	}
	defer st.call.hold.release()
	if err := st.call.receive(st.ServerStream.RecvMsg, m); err != nil {
		return err
	}
	method, _ := grpc.Method(st.call.ctx)
	run, err := st.call.s.own(st.call.ctx, method, m)
	if err != nil {
		return err
	}
	st.call.run.Store(&run)
	return nil
}

// SendMsg sends a message. A message that does not belong to a page waits for room of its own.
func (st *admittedStream) SendMsg(m any) (err error) {
	if st.page != nil && st.late == nil {
		st.late = time.AfterFunc(st.call.s.opts.Limits.SendTimeout, st.call.isLate)
	}
	n := size(m)
	var part *hold // nil for a small message
	switch {
	case n <= smallMessage:
	case st.page != nil:
		part = st.page.split(n)
	default:
		if part, err = st.call.wait(n, st.call.s.opts.Limits.SendTimeout); err != nil {
			return err
		}
	}
	st.call.conn.sent(st.call)
	return st.ServerStream.SendMsg(&reply{Message: m.(proto.Message), call: st.call, hold: part})
}

// resumePoint returns the variable in which a stream of the feed stores its resume position.
func resumePoint(ctx context.Context) *atomic.Int64 {
	return &ctx.Value(streamKey{}).(*admittedStream).call.resume
}

// beginPage waits for room for a page of n bytes that a stream reads and then sends. end releases
// the part that the page's messages have not taken over. If the client has not taken the page
// within the send timeout after its first message, its stream ends; the time that the store takes
// to read the page does not count.
//
// A reader that is not a client's, such as the matcher's, is not bounded here.
func beginPage(ctx context.Context, n int64) (end func(), err error) {
	st, ok := ctx.Value(streamKey{}).(*admittedStream)
	if !ok {
		return func() {}, nil
	}
	return st.beginPage(n, st.call.s.opts.Limits.SendTimeout)
}

// beginPage does that for a client's stream, and waits at most for timeout.
func (st *admittedStream) beginPage(n int64, timeout time.Duration) (end func(), err error) {
	page, err := st.call.wait(n, timeout)
	if err != nil {
		return nil, err
	}
	st.page = page
	return func() {
		if st.late != nil {
			st.late.Stop()
		}
		st.page, st.late = nil, nil
		page.release()
	}, nil
}
