package bigtable

import (
	"context"
	"errors"
	"io"
	"maps"
	"path"
	"runtime"
	"slices"

	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/tapestore/tapestore/internal/grpcproxy"
)

// unary intercepts unary RPCs of the in-process emulator.
func (g *gate) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (res any, err error) {
	defer recoverPanic(info.FullMethod, &err)
	from, _ := info.Server.(tableGetter)
	p, err := g.enter(ctx, from, info.FullMethod, req)
	if err == nil {
		res, err = p.handle(func() (any, error) { return handler(ctx, req) })
	}
	if err = p.answer(info.FullMethod, err); err != nil {
		return nil, err
	}
	return res, nil
}

// handle runs the handler and then leave, even if the handler panics.
func (p admission) handle(handler func() (any, error)) (any, error) {
	defer p.leave()
	return handler()
}

// recoverPanic turns the panic of a handler into an error: the emulator panics in methods that it
// lacks.
func recoverPanic(method string, err *error) {
	switch r := recover().(type) {
	case nil:
	case runtime.Error:
		*err = status.Errorf(codes.Unimplemented, "the emulator cannot do %s: %v", method, r)
	default:
		*err = status.Errorf(codes.Internal, "the emulator's %s panicked: %v", method, r)
	}
}

// stream intercepts streaming RPCs of the in-process emulator (behind is nil), or all RPCs to an
// emulator behind a proxy.
func (g *gate) stream(behind tableGetter) grpc.StreamServerInterceptor {
	return func(srv any, down grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) (err error) {
		defer recoverPanic(info.FullMethod, &err)
		s := &gateStream{ServerStream: down, gate: g, from: behind, method: info.FullMethod}
		if s.from == nil {
			s.from, _ = srv.(tableGetter)
		}
		err = s.run(func() error { return handler(srv, s) })
		if errors.Is(err, errNoGoodEntry) {
			err = nil
		}
		if err == nil && len(s.bad) > 0 {
			err = s.answerBad()
		}
		if err = s.answer(info.FullMethod, err); s.drop {
			return err
		}
		for _, part := range s.parts {
			if err := down.SendMsg(part); err != nil {
				return err
			}
		}
		return err
	}
}

// gateStream is a streaming RPC that enters the gate with its first message. Its reply is buffered
// until the emulator has sent all of it, so that a slow client does not keep the row locked.
type gateStream struct {
	grpc.ServerStream
	gate        *gate
	from        tableGetter
	method      string
	begun       bool
	framed      bool    // messages are Frames, in a proxy
	goodIndexes []int64 // original indexes of the entries that are passed on, if not all are
	parts       []any
	admission
}

// run runs the handler, and then leave if the RPC has entered the gate.
func (s *gateStream) run(handler func() error) error {
	defer func() {
		if s.leave != nil {
			s.leave()
		}
	}()
	return handler()
}

// Context outlives the client if a fault has detached the RPC.
func (s *gateStream) Context() context.Context {
	if s.detached {
		return context.WithoutCancel(s.ServerStream.Context())
	}
	return s.ServerStream.Context()
}

// RecvMsg receives the request and lets it enter the gate.
func (s *gateStream) RecvMsg(m any) error {
	err := s.ServerStream.RecvMsg(m)
	if err != nil {
		if s.begun && s.detached && !errors.Is(err, io.EOF) {
			return io.EOF // the request continues without its sender
		}
		return err
	}
	if s.begun {
		return nil
	}
	s.begun = true
	req := m
	if frame, ok := m.(*grpcproxy.Frame); ok {
		s.framed = true
		if req, err = decode(s.method, *frame); err != nil {
			return err
		}
	}
	s.admission, err = s.gate.enter(s.ServerStream.Context(), s.from, s.method, req)
	if err != nil || len(s.bad) == 0 {
		return err
	}
	return s.withholdBad(req.(*bigtablepb.MutateRowsRequest), m)
}

// errNoGoodEntry ends the handler of a MutateRows request of which no entry is passed to the
// emulator.
var errNoGoodEntry = errors.New("no entry of the request is passed on")

// withholdBad removes the bad entries from m, which is req or its encoded form.
func (s *gateStream) withholdBad(req *bigtablepb.MutateRowsRequest, m any) (err error) {
	var good []*bigtablepb.MutateRowsRequest_Entry
	for i, entry := range req.Entries {
		if s.bad[i] == nil {
			good, s.goodIndexes = append(good, entry), append(s.goodIndexes, int64(i))
		}
	}
	if len(good) == 0 {
		return errNoGoodEntry
	}
	req.Entries = good
	if frame, ok := m.(*grpcproxy.Frame); ok {
		*frame, err = proto.Marshal(req)
	}
	return err
}

// answerBad adds the errors of the bad entries to the reply.
func (s *gateStream) answerBad() error {
	res := &bigtablepb.MutateRowsResponse{}
	for _, i := range slices.Sorted(maps.Keys(s.bad)) {
		of := status.Convert(s.bad[i])
		res.Entries = append(res.Entries, &bigtablepb.MutateRowsResponse_Entry{
			Index: int64(i), Status: &statuspb.Status{Code: int32(of.Code()), Message: of.Message()},
		})
	}
	if s.framed {
		frame, err := proto.Marshal(res)
		if err != nil {
			return err
		}
		s.parts = append(s.parts, (*grpcproxy.Frame)(&frame))
		return nil
	}
	s.parts = append(s.parts, res)
	return nil
}

// SendMsg buffers a part of the reply.
func (s *gateStream) SendMsg(m any) error {
	if len(s.bad) > 0 {
		if err := s.restoreIndexes(m); err != nil {
			return err
		}
	}
	if !s.drop {
		s.parts = append(s.parts, m)
	}
	return nil
}

// restoreIndexes gives the results of the good entries the indexes of the client's request.
func (s *gateStream) restoreIndexes(m any) (err error) {
	res, ok := m.(*bigtablepb.MutateRowsResponse)
	frame, framed := m.(*grpcproxy.Frame)
	if framed {
		res, ok = &bigtablepb.MutateRowsResponse{}, true
		err = proto.Unmarshal(*frame, res)
	}
	if !ok || err != nil {
		return err
	}
	for _, entry := range res.Entries {
		if entry.Index < 0 || entry.Index >= int64(len(s.goodIndexes)) {
			return status.Errorf(codes.Internal, "the emulator answers entry %d of %d", entry.Index, len(s.goodIndexes))
		}
		entry.Index = s.goodIndexes[entry.Index]
	}
	if framed {
		*frame, err = proto.Marshal(res)
	}
	return err
}

// SendHeader passes the reply's header on, or drops it.
func (s *gateStream) SendHeader(md metadata.MD) error {
	if s.drop {
		return nil
	}
	return s.ServerStream.SendHeader(md)
}

// decode decodes a request in a proxy. It returns nil for a method that the emulator lacks.
func decode(method string, frame grpcproxy.Frame) (any, error) {
	make := requestTypes[path.Base(method)]
	if make == nil {
		return nil, nil
	}
	req := make()
	if err := proto.Unmarshal(frame, req); err != nil {
		return nil, invalid("the request of %s: %v", method, err)
	}
	return req, nil
}
