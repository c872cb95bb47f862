package fuzz_test

import (
	"bytes"
	"context"
	"errors"
	"path"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/tapestore/tapestore/conformance/protocol"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

// maxCalls bounds the calls of one input.
const maxCalls = 24

func FuzzCalls(f *testing.F) {
	methods := service().Methods()
	for i := range methods.Len() { // each method with all fields set, after a run has begun
		fill := []byte{byte(methods.ByName("BeginRun").Index()), 1, 2, 1, 3, 1, 4, 1, 5, 1, 6}
		fill = append(fill, make([]byte, 40)...)
		fill = append(fill, byte(i))
		for n := range 60 {
			fill = append(fill, byte(1+n%19))
		}
		f.Add(fill)
	}
	f.Fuzz(func(t *testing.T, input []byte) {
		serve(t, func(s *server) {
			fill := newFiller(input)
			for n := 0; n < maxCalls && !fill.ended(); n++ {
				m := methods.Get(fill.next() % methods.Len())
				req := fill.message(m.Input(), 0)
				encoded, err := proto.Marshal(req.Interface())
				if err != nil {
					t.Fatal(err)
				}
				reply, err := s.send(m, encoded)
				s.answered(string(m.Name()), err)
				if err != nil {
					continue
				}
				res := dynamicpb.NewMessage(m.Output())
				if err := proto.Unmarshal(reply, res); err != nil {
					t.Errorf("%s: the reply: %v", m.Name(), err)
				}
				fill.learn(res)
			}
			s.audited()
		})
	})
}

func FuzzMessages(f *testing.F) {
	calls := life(f)
	for _, c := range calls {
		f.Add(uint8(c.method.Index()), c.message)
	}
	f.Fuzz(func(t *testing.T, method uint8, message []byte) {
		serve(t, func(s *server) {
			for _, c := range calls[:len(calls)/2] {
				_, err := s.send(c.method, c.message)
				s.answered(string(c.method.Name()), err)
			}
			m := service().Methods().Get(int(method) % service().Methods().Len())
			_, err := s.send(m, message)
			s.answered(string(m.Name()), err)
			s.audited()
		})
	})
}

func FuzzStored(f *testing.F) {
	calls := life(f)
	for n := range 25 {
		f.Add(uint8(3*n), uint8(n), uint16(0), []byte("{"))
		f.Add(uint8(3*n), uint8(n), uint16(9*n), []byte("9"))
		f.Add(uint8(3*n), uint8(n), uint16(20+n), []byte(`"`))
		f.Add(uint8(3*n), uint8(n), uint16(60+n), []byte("\xff"))
	}
	f.Fuzz(func(t *testing.T, calm, record uint8, at uint16, with []byte) {
		serve(t, func(s *server) {
			for _, c := range calls[:int(calm)%len(calls)] {
				_, err := s.send(c.method, c.message)
				s.answered(string(c.method.Name()), err)
			}
			s.damage(int(record), int(at), with)
			for _, c := range calls {
				_, err := s.send(c.method, c.message)
				s.answered(string(c.method.Name()), err)
			}
		})
	})
}

// damage overwrites bytes of one stored record.
func (s *server) damage(record, at int, with []byte) {
	s.damaged = true
	var all []runstore.IndexEntry
	var records []runstore.Record
	for e, err := range runstore.Entries(s.Context(), s.store, runstore.IndexQuery{Index: runstore.IndexRuns}) {
		if err != nil {
			s.Fatal(err)
		}
		for r, err := range runstore.Records(s.Context(), s.store, e.Run, "") {
			if err != nil {
				s.Fatal(err)
			}
			all, records = append(all, e), append(records, r)
		}
	}
	if len(all) == 0 {
		return
	}
	n := record % len(all)
	r := records[n]
	value := bytes.Clone(r.Value)
	at %= len(value) + 1
	value = append(value[:at], append(bytes.Clone(with), value[min(len(value), at+len(with)):]...)...)
	b := runstore.NewBatch(all[n].Run, runstore.Unguarded("damage"))
	b.Put(r.Key, value)
	if _, err := s.store.Commit(s.Context(), b); err != nil && !errors.Is(err, runstore.ErrTooLarge) {
		s.Fatal(err)
	}
}

// call is one request.
type call struct {
	method  protoreflect.MethodDescriptor
	message []byte
}

// life returns the requests of an agent's whole life, without those of more than 4 KiB.
func life(f *testing.F) (calls []call) {
	f.Helper()
	s := &server{TB: f}
	stop := s.start(grpc.WithUnaryInterceptor(func(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		message, err := proto.Marshal(req.(proto.Message))
		if err == nil && len(message) <= 4096 {
			calls = append(calls, call{service().Methods().ByName(protoreflect.Name(path.Base(method))), message})
		}
		return errors.Join(err, invoke(ctx, method, req, reply, conn, opts...))
	}))
	protocol.Life(f, tapepb.NewTapeClient(s.conn))
	if err := stop(); err != nil {
		f.Fatal(err)
	}
	return calls
}
