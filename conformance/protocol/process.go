package protocol

import (
	"context"
	"maps"
	"path"
	"slices"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/tapestore/tapestore/tape"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

// Process simulates a client process by a connection of its own.
type Process struct {
	// Client ends the case if a call fails. Only the case's own goroutine may use it.
	Client tapepb.TapeClient
	// Try returns the errors of its calls.
	Try tapepb.TapeClient
	// Bare is Try without the fences that it adds where the server requires them.
	Bare tapepb.TapeClient

	conn grpc.ClientConnInterface
}

// process opens a connection to an address. It is closed at the end of the case.
func (s *Server) process(t T, address string) *Process {
	t.Helper()
	conn, err := s.target.dial(address)
	if err != nil {
		t.Fatalf("connect to %s: %v", address, err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	calls := grpc.ClientConnInterface(boundedConn{noting{conn, s.called}})
	p := &Process{conn: noting{conn, s.called}, Bare: tapepb.NewTapeClient(calls)}
	if s.Mode == ModeRequired {
		calls = &presenting{ClientConnInterface: calls, grants: map[string]*tapepb.Grant{}}
	}
	p.Try = tapepb.NewTapeClient(calls)
	p.Client = tapepb.NewTapeClient(mustConn{calls, t})
	return p
}

// methods is the set of the methods that a case has called.
type methods struct {
	mu    sync.Mutex
	names map[string]bool
}

func (m *methods) note(method string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.names[path.Base(method)] = true
}

// list returns the methods in alphabetical order.
func (m *methods) list() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Sorted(maps.Keys(m.names))
}

// noting is a connection that records the methods called on it.
type noting struct {
	grpc.ClientConnInterface
	called *methods
}

// Invoke implements grpc.ClientConnInterface.
func (c noting) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	c.called.note(method)
	return c.ClientConnInterface.Invoke(ctx, method, args, reply, opts...)
}

// NewStream implements grpc.ClientConnInterface.
func (c noting) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	c.called.note(method)
	return c.ClientConnInterface.NewStream(ctx, desc, method, opts...)
}

// boundedConn limits each unary call to waitTimeout, so that a server that does not answer fails the
// case instead of blocking the suite.
type boundedConn struct{ grpc.ClientConnInterface }

// Invoke implements grpc.ClientConnInterface.
func (c boundedConn) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	ctx, cancel := context.WithTimeout(ctx, waitTimeout)
	defer cancel()
	return c.ClientConnInterface.Invoke(ctx, method, args, reply, opts...)
}

// mustConn is a connection that ends the case if a call fails.
type mustConn struct {
	grpc.ClientConnInterface
	t T
}

// Invoke implements grpc.ClientConnInterface.
func (c mustConn) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	c.t.Helper()
	if err := c.ClientConnInterface.Invoke(ctx, method, args, reply, opts...); err != nil {
		c.t.Fatalf("%s: %v", path.Base(method), err)
	}
	return nil
}

// presenting is a connection that adds fences to a driver's writes, from the grants that BeginRun
// and ResumeRun returned on it.
type presenting struct {
	grpc.ClientConnInterface

	mu     sync.Mutex
	grants map[string]*tapepb.Grant
}

// Invoke implements grpc.ClientConnInterface.
func (c *presenting) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	request := args.(proto.Message)
	if a, ok := tape.Authorities()[path.Base(method)]; ok && a == tape.Driver {
		request = c.fenced(request)
	}
	if err := c.ClientConnInterface.Invoke(ctx, method, request, reply, opts...); err != nil {
		return err
	}
	switch r := reply.(type) {
	case *tapepb.BeginRunResponse:
		c.keep(r.GetRunId(), r.GetGrant())
	case *tapepb.ResumeRunResponse:
		c.keep(r.GetRun().GetRunId(), r.GetGrant())
	case *tapepb.EndRunResponse:
		if r.GetRun().GetStatus() != compensating {
			c.forget(r.GetRun().GetRunId())
		}
	case *tapepb.AwaitSignalResponse:
		if !r.GetDelivered() {
			c.forget(args.(*tapepb.AwaitSignalRequest).GetRunId())
		}
	}
	return nil
}

// forget deletes the grant of a run that has ended or is parked.
func (c *presenting) forget(run string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.grants, run)
}

func (c *presenting) keep(run string, g *tapepb.Grant) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if g != nil {
		c.grants[run] = g
	}
}

// fenced returns the request with the fence of its run's grant, unless the request has a fence
// already.
func (c *presenting) fenced(m proto.Message) proto.Message {
	id, hasRun := m.(interface{ GetRunId() string })
	field := m.ProtoReflect().Descriptor().Fields().ByName("fence")
	if !hasRun || field == nil || m.ProtoReflect().Has(field) {
		return m
	}
	c.mu.Lock()
	g := c.grants[id.GetRunId()]
	c.mu.Unlock()
	if g == nil {
		return m
	}
	m = proto.Clone(m)
	m.ProtoReflect().Set(field, protoreflect.ValueOfMessage(fenceOf(g).ProtoReflect()))
	return m
}

// fenceOf returns the fence for a grant.
func fenceOf(g *tapepb.Grant) *tapepb.Fence {
	return &tapepb.Fence{Owner: g.GetOwner(), Token: g.GetToken(), GrantId: g.GetGrantId(), RunId: g.GetRunId()}
}
