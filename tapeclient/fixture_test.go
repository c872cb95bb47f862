package tapeclient_test

import (
	"context"
	"log/slog"
	"net"
	"path"
	"sync"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
	"github.com/tapestore/tapestore/tape"
	"github.com/tapestore/tapestore/tapeclient"
	"github.com/tapestore/tapestore/tapeserver"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

// fixture is a server on a store of its own.
type fixture struct {
	*testing.T
	store *memory.Store
	lis   *bufconn.Listener
}

// serve serves a store in memory for the length of the test.
func serve(t *testing.T, opts tapeserver.Options) *fixture {
	t.Helper()
	store := memory.New(nil)
	return &fixture{T: t, store: store, lis: serveStore(t, store.Open(), opts)}
}

func serveStore(t *testing.T, store runstore.RunStore, opts tapeserver.Options) *bufconn.Listener {
	t.Helper()
	opts.Logger = slog.New(slog.DiscardHandler)
	lis := bufconn.Listen(1 << 20)
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- tapeserver.New(store, &opts).Serve(ctx, lis) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Errorf("Serve = %v", err)
		}
	})
	return lis
}

func required() tapeserver.Options { return tapeserver.Options{Fence: tape.FenceRequired} }

// client returns a client on a connection of its own, and what harms that connection.
func (f *fixture) client(owner string) (*tapeclient.Client, *network) {
	f.Helper()
	return connect(f.T, f.lis, &tapeclient.Options{Owner: owner})
}

func connect(t *testing.T, lis *bufconn.Listener, opts *tapeclient.Options) (*tapeclient.Client, *network) {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///test",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return lis.DialContext(ctx) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	n := &network{ClientConn: conn, calls: map[string]int{}}
	c, err := tapeclient.New(n, opts)
	if err != nil {
		t.Fatal(err)
	}
	return c, n
}

// fault is what becomes of a call.
type fault int

const (
	none      fault = iota
	notSent         // the server never sees it
	replyLost       // the server applies it, and the reply is lost
	silent          // the server never sees it, and nothing answers
)

// network is a connection whose calls a test can harm.
type network struct {
	*grpc.ClientConn

	bare  atomic.Bool // the server answers no grants and no generations
	older atomic.Bool // BeginEffect does not answer the effect's run and mode

	mu    sync.Mutex
	calls map[string]int
	harm  func(method string, n int) fault // of the n-th call of a method, from 1
}

func (n *network) set(harm func(method string, n int) fault) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.harm, n.calls = harm, map[string]int{}
}

// once harms the first call of a method.
func (n *network) once(method string, f fault) {
	n.set(func(m string, count int) fault {
		if m == method && count == 1 {
			return f
		}
		return none
	})
}

// always harms every call of a method.
func (n *network) always(method string, f fault) {
	n.set(func(m string, _ int) fault {
		if m == method {
			return f
		}
		return none
	})
}

func (n *network) count(method string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.calls[method]
}

func (n *network) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	n.mu.Lock()
	name := path.Base(method)
	n.calls[name]++
	what := none
	if n.harm != nil {
		what = n.harm(name, n.calls[name])
	}
	n.mu.Unlock()
	switch what {
	case notSent:
		return status.Error(codes.Unavailable, "connection refused")
	case silent:
		<-ctx.Done()
		return status.FromContextError(ctx.Err()).Err()
	}
	err := n.ClientConn.Invoke(ctx, method, args, reply, opts...)
	switch r := reply.(type) {
	case *tapepb.BeginEffectResponse:
		if n.older.Load() {
			r.RunId, r.DispatchMode = "", 0
		}
	case *tapepb.BeginRunResponse:
		if n.bare.Load() {
			r.Grant = nil
		}
	case *tapepb.ResumeRunResponse:
		if n.bare.Load() {
			r.Grant, r.Run.Token = nil, 0
		}
	case *tapepb.ClaimEffectDispatchResponse:
		if n.bare.Load() && err == nil {
			r.Generation, r.Effect.DispatchClaimGeneration = 0, 0
		}
	case *tapepb.ListEffectsToDispatchResponse:
		for _, e := range r.GetEffects() {
			if n.bare.Load() {
				e.DispatchClaimGeneration = 0
			}
		}
	case *tapepb.EffectRecord:
		if n.bare.Load() {
			r.DispatchClaimGeneration = 0
		}
	}
	if what == replyLost {
		return status.Error(codes.Unavailable, "connection reset")
	}
	return err
}

func beginRequest() *tapepb.BeginRunRequest {
	return &tapepb.BeginRunRequest{AppName: "treasury", UserId: "acme", SessionId: "main", InvocationId: "1", Scopes: []string{"pay"}}
}

// begin begins the fixture's run and has work done under its lease.
func begin(t *testing.T, c *tapeclient.Client, work tapeclient.Work) {
	t.Helper()
	if err := c.Begin(t.Context(), beginRequest(), work); err != nil {
		t.Fatalf("Begin: %v", err)
	}
}

// abandon begins the fixture's run, has work done, and leaves it as a crash would. It returns the
// run's id.
func abandon(t *testing.T, c *tapeclient.Client, work tapeclient.Work) (id string) {
	t.Helper()
	begin(t, c, func(ctx context.Context, run *tapeclient.Run) error {
		id = run.ID()
		if work == nil {
			return nil
		}
		return work(ctx, run)
	})
	return id
}

func (f *fixture) run(id string) runstore.Run {
	f.Helper()
	r, err := f.store.Open().GetRun(f.Context(), runstore.RunID(id))
	if err != nil {
		f.Fatal(err)
	}
	return r
}

// kinds returns the kinds of the run's journal entries.
func (f *fixture) kinds(id string) (kinds []string) {
	f.Helper()
	for e, err := range runstore.Journal(f.Context(), f.store.Open(), runstore.RunID(id), 1) {
		if err != nil {
			f.Fatal(err)
		}
		kinds = append(kinds, e.Kind)
	}
	return kinds
}
