package fuzz_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/tapestore/tapestore/lease/audit"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
	"github.com/tapestore/tapestore/tapeserver"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

// service is the descriptor of Tape's service.
func service() protoreflect.ServiceDescriptor { return tapepb.File_tape_proto.Services().Get(0) }

// server is a server over a memory store, with one connection to it.
type server struct {
	testing.TB
	damaged bool // a stored value is
	store   runstore.RunStore
	conn    *grpc.ClientConn
	log     errorLog
}

// serve runs f with a new server in a bubble of synctest: a call that waits ends at its deadline and
// takes no real time. It fails t if the server logs an error.
func serve(t *testing.T, f func(s *server)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &server{TB: t}
		stop := s.start()
		f(s)
		if err := stop(); err != nil {
			t.Error(err)
		}
		for line := range strings.Lines(s.log.String()) {
			// A token or a position of the future is reported like lost data: it may be the proof.
			if strings.Contains(line, "store is behind its caller") || s.damaged && strings.Contains(line, "stored data is damaged or lost") {
				continue
			}
			t.Errorf("the server logged an error: %s", line)
		}
	})
}

// start serves a new store and connects to it.
func (s *server) start(opts ...grpc.DialOption) (stop func() error) {
	s.Helper()
	s.store = memory.New(nil).Open()
	lis := bufconn.Listen(1 << 20)
	ctx, cancel := context.WithCancel(s.Context())
	served := make(chan error, 1)
	log := slog.New(slog.NewTextHandler(&s.log, &slog.HandlerOptions{Level: slog.LevelError}))
	go func() { served <- tapeserver.New(s.store, &tapeserver.Options{Logger: log}).Serve(ctx, lis) }()
	var err error
	s.conn, err = grpc.NewClient("passthrough:///test", append(opts,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return lis.DialContext(ctx) }))...)
	if err != nil {
		s.Fatal(err)
	}
	return func() error {
		err := s.conn.Close()
		cancel()
		return errors.Join(err, <-served, s.store.Close())
	}
}

// audited fails the test if the store contradicts itself.
func (s *server) audited() {
	s.Helper()
	_, err := audit.Check(s.Context(), s.store, &audit.Options{Found: func(f audit.Finding) {
		if !f.Warning() {
			s.Errorf("the audit finds: %v", f)
		}
	}})
	if err != nil {
		s.Errorf("audit: %v", err)
	}
}

// send sends one encoded message to a method and returns the first reply.
func (s *server) send(m protoreflect.MethodDescriptor, message []byte) (reply []byte, err error) {
	ctx, cancel := context.WithTimeout(s.Context(), time.Second)
	defer cancel()
	name := fmt.Sprintf("/%s/%s", m.Parent().FullName(), m.Name())
	if !m.IsStreamingServer() {
		err = s.conn.Invoke(ctx, name, &message, &reply, grpc.ForceCodecV2(verbatim{}))
		return reply, err
	}
	stream, err := s.conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, name, grpc.ForceCodecV2(verbatim{}))
	if err != nil {
		return nil, err
	}
	if err := errors.Join(stream.SendMsg(&message), stream.CloseSend()); err != nil {
		return nil, err
	}
	if err = stream.RecvMsg(&reply); errors.Is(err, io.EOF) {
		err = nil // the stream ended without a message
	}
	return reply, err
}

// answered fails the test if a status stands for a fault of the server.
func (s *server) answered(what string, err error) {
	s.Helper()
	reason := ""
	for _, detail := range status.Convert(err).Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok {
			reason = info.GetReason()
		}
	}
	switch code := status.Code(err); code {
	case codes.Internal:
		// REFUSED is the protocol's own answer to some invalid requests. A message that is no
		// protobuf has no reason: gRPC refuses it.
		if reason == "REFUSED" || s.damaged && reason == "UNREADABLE_VALUE" || reason == "" && strings.Contains(err.Error(), "failed to unmarshal the received message") {
			return
		}
		s.Errorf("%s: %v (%s)", what, err, reason)
	case codes.Unknown:
		s.Errorf("%s: %v (%s)", what, err, reason)
	case codes.DataLoss:
		if reason != "STORE_BEHIND" { // the request has a token or a position of the future
			s.Errorf("%s: %v (%s)", what, err, reason)
		}
	}
}

// errorLog collects a log.
type errorLog struct {
	mu  sync.Mutex
	all bytes.Buffer
}

func (l *errorLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.Write(p)
}

func (l *errorLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.String()
}

// verbatim is a codec whose messages are encoded already.
type verbatim struct{}

var _ encoding.CodecV2 = verbatim{}

func (verbatim) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(*v.(*[]byte))}, nil
}

func (verbatim) Unmarshal(data mem.BufferSlice, v any) error {
	*v.(*[]byte) = data.Materialize()
	return nil
}

func (verbatim) Name() string { return "proto" }
