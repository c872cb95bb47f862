package protocol_test

import (
	"context"
	"net"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/tapestore/tapestore/conformance"
	"github.com/tapestore/tapestore/conformance/protocol"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

// foreign is a small server without fences that serves values. It gives the cases of such servers
// one server that passes them, and broken variants that do not.
type foreign struct {
	tapepb.UnimplementedTapeServer

	// Faults of the server.
	ignoresVersions, forgetsTombstones, skipsVersions bool

	mu      sync.Mutex
	values  map[string][]*tapepb.ValueRecord
	changed chan struct{} // closed at the next change
}

func (f *foreign) BeginRun(context.Context, *tapepb.BeginRunRequest) (*tapepb.BeginRunResponse, error) {
	return &tapepb.BeginRunResponse{RunId: "run"}, nil
}

func (f *foreign) EndRun(context.Context, *tapepb.EndRunRequest) (*tapepb.EndRunResponse, error) {
	return &tapepb.EndRunResponse{}, nil
}

func (f *foreign) BeginEffect(_ context.Context, req *tapepb.BeginEffectRequest) (*tapepb.BeginEffectResponse, error) {
	return &tapepb.BeginEffectResponse{IdempotencyKey: req.GetCustomKey()}, nil
}

func (f *foreign) GetValue(_ context.Context, req *tapepb.GetValueRequest) (*tapepb.GetValueResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	v := f.last(req.GetNamespace() + "/" + req.GetKey())
	return &tapepb.GetValueResponse{Found: v != nil && !v.GetDeleted(), Value: v}, nil
}

func (f *foreign) last(key string) *tapepb.ValueRecord {
	if all := f.values[key]; len(all) > 0 {
		return all[len(all)-1]
	}
	return nil
}

func (f *foreign) add(key string, v *tapepb.ValueRecord) *tapepb.ValueRecord {
	v.Version = f.last(key).GetVersion() + 1
	f.values[key] = append(f.values[key], v)
	close(f.changed)
	f.changed = make(chan struct{})
	return v
}

func (f *foreign) WriteValue(_ context.Context, req *tapepb.WriteValueRequest) (*tapepb.ValueRecord, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	key := req.GetNamespace() + "/" + req.GetKey()
	if at := req.GetIfVersion(); at >= 0 && at != f.last(key).GetVersion() && !f.ignoresVersions {
		return nil, status.Error(codes.Internal, "write_value: version conflict")
	}
	return f.add(key, &tapepb.ValueRecord{Namespace: req.GetNamespace(), Key: req.GetKey(), ValueJson: req.GetValueJson(), Writer: req.GetWriter()}), nil
}

func (f *foreign) DeleteValue(_ context.Context, req *tapepb.DeleteValueRequest) (*tapepb.DeleteValueResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	key := req.GetNamespace() + "/" + req.GetKey()
	if f.forgetsTombstones {
		delete(f.values, key)
		return &tapepb.DeleteValueResponse{Deleted: true}, nil
	}
	v := f.add(key, &tapepb.ValueRecord{Namespace: req.GetNamespace(), Key: req.GetKey(), Deleted: true})
	return &tapepb.DeleteValueResponse{Deleted: true, Version: v.GetVersion()}, nil
}

func (f *foreign) WatchValue(req *tapepb.WatchValueRequest, stream grpc.ServerStreamingServer[tapepb.ValueEvent]) error {
	before := &tapepb.ValueRecord{}
	for next := int(req.GetFromVersion()); ; {
		f.mu.Lock()
		all, changed := f.values[req.GetNamespace()+"/"+req.GetKey()], f.changed
		f.mu.Unlock()
		for ; next < len(all); next++ {
			e := &tapepb.ValueEvent{Value: proto.CloneOf(all[next]), PrevVersion: before.GetVersion(), PrevValueJson: before.GetValueJson()}
			if before = all[next]; f.skipsVersions {
				before = &tapepb.ValueRecord{}
			}
			if err := stream.Send(e); err != nil {
				return err
			}
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
}

func (f *foreign) start(t *testing.T) protocol.Target {
	t.Helper()
	return f.serve(t, f)
}

// serve serves s, which extends the server.
func (f *foreign) serve(t *testing.T, s tapepb.TapeServer) protocol.Target {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f.values, f.changed = map[string][]*tapepb.ValueRecord{}, make(chan struct{})
	server := grpc.NewServer()
	tapepb.RegisterTapeServer(server, s)
	done := make(chan error, 1)
	go func() { done <- server.Serve(lis) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return protocol.Target{Address: lis.Addr().String()}
}

func TestValueCases(t *testing.T) {
	t.Parallel()
	for id, broken := range map[string]*foreign{
		"values/56-versions":        {forgetsTombstones: true},
		"values/57-compare-and-set": {ignoresVersions: true},
		"values/58-watch":           {skipsVersions: true},
	} {
		c, _ := protocol.Find(id)
		for server, want := range map[*foreign]conformance.Status{{}: conformance.Passed, broken: conformance.Failed} {
			result, err := protocol.RunCase(t.Context(), server.start(t), c)
			if err != nil || result.Status != want {
				t.Errorf("%s: %v %s, %v; want %s", id, result.Status, result.Reason, err, want)
			}
		}
	}
}

// bounded records which calls of GetRun had a deadline.
type bounded struct {
	foreign

	deadlines chan bool
}

func (b *bounded) GetRun(ctx context.Context, _ *tapepb.GetRunRequest) (*tapepb.RunState, error) {
	_, has := ctx.Deadline()
	b.deadlines <- has
	return &tapepb.RunState{}, nil
}

// TestCallsHaveDeadlines checks that each unary call of a case has a deadline, so that a server
// that does not answer fails the case instead of blocking the suite.
func TestCallsHaveDeadlines(t *testing.T) {
	t.Parallel()
	b := &bounded{deadlines: make(chan bool, 3)}
	c := protocol.Case{Group: "runs", Name: "deadlines", Run: func(t protocol.T, e *protocol.Env) {
		for _, client := range []tapepb.TapeClient{e.Client, e.Try, e.Bare} {
			if _, err := client.GetRun(t.Context(), &tapepb.GetRunRequest{RunId: "run"}); err != nil {
				t.Errorf("GetRun: %v", err)
			}
		}
	}}
	result, err := protocol.RunCase(t.Context(), b.serve(t, b), c)
	if err != nil || result.Status != conformance.Passed {
		t.Fatalf("%+v, %v", result, err)
	}
	for _, name := range []string{"Client", "Try", "Bare"} {
		if !<-b.deadlines {
			t.Errorf("a call of %s has no deadline", name)
		}
	}
}

// TestInspectForeign checks the capabilities that Inspect finds on a server without fences and with
// few RPCs.
func TestInspectForeign(t *testing.T) {
	t.Parallel()
	s, err := protocol.Inspect(t.Context(), (&foreign{}).start(t))
	if err != nil || s.Mode != protocol.ModeNone || s.Grants || s.Generations || !s.Values {
		t.Errorf("Inspect = %+v, %v; want no fences, no generations, and values", s, err)
	}
	c, _ := protocol.Find("T11/every-writing-rpc-refuses-a-zombie")
	result, err := protocol.RunCase(t.Context(), (&foreign{}).start(t), c)
	if err != nil || result.Status != conformance.NotApplicable || result.Reason == "" {
		t.Errorf("a case of fences is %+v, %v; want it not applicable, with the reason", result, err)
	}
	// A server without the mandatory RPCs does not serve the protocol.
	report, err := protocol.Execute(t.Context(), (&foreign{}).start(t), nil, nil)
	if err != nil || report.Summary.Failed < 50 {
		t.Errorf("a server without most RPCs: %+v, %v; want failures", report.Summary, err)
	}
}
