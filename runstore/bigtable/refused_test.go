package bigtable_test

import (
	"bytes"
	"context"
	"errors"
	"path"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/bigtable"
	"github.com/tapestore/tapestore/runstore/serving"
)

// refusal answers the next RPCs of a method that serve operations, in the server's place,
// one with each of some codes; OK passes one to the server. Those after them reach the server.
type refusal struct {
	byTest bool // the RPCs are those of background work that a test does, instead
	mu     sync.Mutex
	method string
	codes  []codes.Code
	met    int // RPCs of the method since the last call of next
}

// next sets what is answered from now on.
func (r *refusal) next(method string, codes ...codes.Code) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.method, r.codes, r.met = method, codes, 0
}

func (r *refusal) calls() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.met
}

func (r *refusal) answer(ctx context.Context, method string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	md, _ := metadata.FromOutgoingContext(ctx)
	if path.Base(method) != r.method || r.byTest != (len(md.Get(bigtable.ByTest)) > 0) || !r.byTest && serving.Operation(ctx) == "" {
		return nil
	}
	r.met++
	if len(r.codes) == 0 {
		return nil
	}
	code := r.codes[0]
	r.codes = r.codes[1:]
	return status.Error(code, "refused by the test")
}

func (r *refusal) through(o *bigtable.Options) {
	o.DialOptions = append(o.DialOptions,
		grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			if err := r.answer(ctx, method); err != nil {
				return err
			}
			return invoke(ctx, method, req, reply, cc, opts...)
		}),
		grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, begin grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			if err := r.answer(ctx, method); err != nil {
				return nil, err
			}
			return begin(ctx, desc, cc, method, opts...)
		}))
}

// forGood are the codes of a server that has not done what it was asked, and would not
// when asked again.
var forGood = []codes.Code{
	codes.InvalidArgument, codes.NotFound, codes.PermissionDenied, codes.Unauthenticated, codes.FailedPrecondition,
	codes.Unimplemented, codes.OutOfRange, codes.AlreadyExists,
}

// A request that the server refuses for good is sent once, and the operation was not
// applied. Where a request before it may have arrived, the outcome of a write is unknown.
func TestRefusedForGood(t *testing.T) {
	t.Parallel()
	r := &refusal{}
	s := openBare(t, newTable(t), r.through)
	hold(t, s, "run")
	large := bytes.Repeat([]byte("x"), 64<<10)
	write := func() error {
		b := signal("run", "event")
		b.Put("large", large) // so that it writes rows of its own first
		_, err := s.Commit(t.Context(), b)
		return err
	}
	if err := write(); err != nil { // from now on the handle needs no read for it
		t.Fatal(err)
	}
	for _, rpc := range []struct {
		method string
		do     func() error
	}{
		{swaps, write},
		{writes, write},
		{reads, func() error { _, err := s.GetRun(t.Context(), "run"); return err }},
		{clock, func() error { _, err := s.Now(t.Context()); return err }},
	} {
		for _, code := range forGood {
			r.next(rpc.method, code)
			err := rpc.do()
			if !errors.Is(err, runstore.ErrUnavailable) || runstore.OutcomeOf(err) != runstore.NotApplied || !strings.Contains(err.Error(), "refused by the test") {
				t.Errorf("%s, %v: got %v, want ErrUnavailable and the server's words", rpc.method, code, err)
			}
			if n := r.calls(); n != 1 {
				t.Errorf("%s, %v: %d requests, want 1", rpc.method, code, n)
			}
		}
	}
	for _, code := range forGood {
		r.next(swaps, codes.Unavailable, code)
		if err := write(); !errors.Is(err, runstore.ErrUnknownOutcome) || errors.Is(err, runstore.ErrUnavailable) {
			t.Errorf("%v after a request that may have arrived: got %v, want ErrUnknownOutcome", code, err)
		}
		if n := r.calls(); n != 2 {
			t.Errorf("%v after a request that may have arrived: %d requests, want 2", code, n)
		}
	}
	r.next("")
	seqs(t, s, 1)
}

// A raise of the epoch that the server refuses for good was not made. Where a request before it may have arrived,
// the outcome is unknown.
func TestRefusedRaise(t *testing.T) {
	t.Parallel()
	r := &refusal{}
	s := openBare(t, newTable(t), r.through)
	for _, code := range forGood {
		r.next(swaps, code)
		if _, err := s.RaiseEpoch(t.Context(), "test"); !errors.Is(err, runstore.ErrUnavailable) || !strings.Contains(err.Error(), "refused by the test") {
			t.Errorf("%v: got %v, want ErrUnavailable and the server's words", code, err)
		}
		r.next(swaps, codes.Unavailable, code)
		if _, err := s.RaiseEpoch(t.Context(), "test"); !errors.Is(err, runstore.ErrUnknownOutcome) || errors.Is(err, runstore.ErrUnavailable) {
			t.Errorf("%v after a request that may have arrived: got %v, want ErrUnknownOutcome", code, err)
		}
	}
	r.next("")
	if epoch, err := s.RaiseEpoch(t.Context(), "test"); err != nil || epoch != 1 {
		t.Errorf("got epoch %d, %v, want 1", epoch, err)
	}
}
