package spanner_test

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strings"
	"sync"
	"testing"
	"time"

	client "cloud.google.com/go/spanner"
	"cloud.google.com/go/spanner/apiv1/spannerpb"
	"google.golang.org/grpc"

	spanneremulator "github.com/tapestore/tapestore/emulators/spanner"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/spanner"
)

// unboundedRPCs lists the RPCs to a database that a handle sends without a deadline, or with one
// later than hang.
type unboundedRPCs struct {
	mu   sync.Mutex
	rpcs []string
}

func (u *unboundedRPCs) note(ctx context.Context, method string, request any) {
	deadline, ok := ctx.Deadline()
	if !strings.HasPrefix(method, "/google.spanner.v1.Spanner/") || strings.HasSuffix(method, "/CreateSession") || ok && time.Until(deadline) <= hang {
		return
	}
	tags := ""
	if r, ok := request.(interface {
		GetRequestOptions() *spannerpb.RequestOptions
	}); ok {
		tags = r.GetRequestOptions().GetRequestTag() + r.GetRequestOptions().GetTransactionTag()
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.rpcs = append(u.rpcs, fmt.Sprintf("%s %s", path.Base(method), tags))
}

// through makes a handle's connection write the list.
func (u *unboundedRPCs) through(o *spanner.Options) {
	o.DialOptions = append(o.DialOptions,
		grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			u.note(ctx, method, req)
			return invoke(ctx, method, req, reply, cc, opts...)
		}),
		grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, begin grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			stream, err := begin(ctx, desc, cc, method, opts...)
			return &notedStream{stream, func(request any) { u.note(ctx, method, request) }}, err
		}))
}

// TestShortRequestsAreBounded checks that the requests with which a handle opens the store, raises
// the epoch, and looks for a newer schema end at the retry timeout, although the caller's context
// has no deadline. Only changes of the schema and partitioned DML may take longer.
func TestShortRequestsAreBounded(t *testing.T) {
	t.Parallel()
	var u unboundedRPCs
	p := newDatabase(t, fair)
	s := open(t, p, patient, u.through)
	if _, err := s.RaiseEpoch(t.Context(), "test"); err != nil {
		t.Fatal(err)
	}
	lease := hold(t, s, "run")
	alter(t, p, "ALTER TABLE Runs DROP COLUMN PreemptReason")
	if _, err := raw(t, p).Apply(t.Context(), []*client.Mutation{
		client.Insert("TapestoreSchema", []string{"Version", "Migrated"}, []any{99, client.CommitTimestamp}),
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Commit(t.Context(), appending(lease, "late")); !errors.Is(err, runstore.ErrUnsupported) {
		t.Errorf("a commit after a newer program's migration: got %v, want ErrUnsupported", err)
	}
	if _, err := s.GetRun(t.Context(), "run"); !errors.Is(err, runstore.ErrUnsupported) {
		t.Errorf("a read after a newer program's migration: got %v, want ErrUnsupported", err)
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, rpc := range u.rpcs {
		t.Errorf("%s has no deadline, or one later than the retry timeout", rpc)
	}
}

// TestOpenWithoutAnAnswer checks that opening a store fails at the retry timeout, and not with the
// caller's context, while the database does not answer.
func TestOpenWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	p := newDatabase(t, fair)
	held := p.server.Hold(0, func(c spanneremulator.Call) bool {
		r, ok := c.Request.(*spannerpb.ReadRequest)
		return ok && c.Database == p.String() && r.GetRequestOptions().GetRequestTag() == "tapestore-version"
	})
	defer held.Stop()
	ctx, cancel := context.WithTimeout(t.Context(), hang) // only so that a failing test ends
	defer cancel()
	for timeout := 200 * time.Millisecond; held.Count() == 0; timeout *= 2 { // until the requests before are answered in time
		_, err := tryOpenIn(ctx, t, p, func(o *spanner.Options) { o.RetryTimeout = timeout })
		if !errors.Is(err, runstore.ErrUnavailable) || ctx.Err() != nil {
			t.Fatalf("got %v, and %v of the context, want ErrUnavailable at the retry timeout", err, ctx.Err())
		}
	}
}
