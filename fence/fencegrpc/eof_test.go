package fencegrpc_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/tapestore/tapestore/fence"
	"github.com/tapestore/tapestore/fence/fencegrpc"
	"github.com/tapestore/tapestore/runstore"
)

// collect sends one payee under token 5 of the resource a, calls pause once the handler has
// received it, and then ends the stream. It returns the error of the call.
func collect(t *testing.T, b *bank, checker fence.Checker, opts *fencegrpc.Options, pause func()) error {
	t.Helper()
	b.collected = make(chan struct{}, 1)
	c := serve(t, b, checker, opts)
	stream, err := c.conn.NewStream(fencegrpc.WithFence(t.Context(), "a", 5), &bankService.Streams[1], collectMethod)
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.SendMsg(wrapperspb.String("payee")); err != nil {
		t.Fatal(err)
	}
	select {
	case <-b.collected:
	case <-stream.Context().Done():
		t.Fatal(stream.Context().Err())
	}
	pause()
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	return stream.RecvMsg(new(wrapperspb.StringValue))
}

// A handler that acts at the end of its stream does not act if the takeover came before the end.
func TestEndOfStreamIsChecked(t *testing.T) {
	t.Parallel()
	checker := newMemory(t)
	b := new(bank)
	err := collect(t, b, checker, nil, func() {
		if err := checker.Check(t.Context(), "a", 6); err != nil {
			t.Fatal(err)
		}
	})
	wantFenced(t, err, fence.StaleError{Resource: "a", Presented: 5, Current: 6})
	if len(b.paid) != 0 {
		t.Errorf("paid %q", b.paid)
	}
}

// Without a takeover it acts, and Options.Resource is not asked for a message that there is not.
func TestEndOfStreamPasses(t *testing.T) {
	t.Parallel()
	b := new(bank)
	opts := &fencegrpc.Options{Resource: func(_ context.Context, _ string, m any) (string, error) {
		if m.(*wrapperspb.StringValue).GetValue() != "payee" {
			return "", errors.New("no payee")
		}
		return "a", nil
	}}
	if err := collect(t, b, newMemory(t), opts, func() {}); err != nil {
		t.Fatal(err)
	}
	if len(b.paid) != 1 || b.under[0] != 5 {
		t.Errorf("paid %q under %v, want one payment under 5", b.paid, b.under)
	}
}

// A check that cannot be decided at the end keeps the handler from acting, too.
func TestEndOfStreamIsUndecided(t *testing.T) {
	t.Parallel()
	checker := &failing{Checker: newMemory(t)}
	b := new(bank)
	err := collect(t, b, checker, nil, func() { checker.failed.Store(true) })
	if status.Code(err) != codes.Unknown || reason(status.Convert(err)) != "FENCE_UNAVAILABLE" || errors.Is(err, runstore.ErrFenced) {
		t.Errorf("got %v, want UNKNOWN with FENCE_UNAVAILABLE", err)
	}
	if len(b.paid) != 0 {
		t.Errorf("paid %q", b.paid)
	}
}

// failing is a checker whose database fails from a moment on.
type failing struct {
	fence.Checker
	failed atomic.Bool
}

func (c *failing) Check(ctx context.Context, resource string, token runstore.Token) error {
	if c.failed.Load() {
		return runstore.ErrUnavailable
	}
	return c.Checker.Check(ctx, resource, token)
}
