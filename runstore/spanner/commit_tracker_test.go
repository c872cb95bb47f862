package spanner_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/tapestore/tapestore/emulators"
	spanneremulator "github.com/tapestore/tapestore/emulators/spanner"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/serving"
	"github.com/tapestore/tapestore/runstore/spanner"
)

// trick is what becomes of the next commit that a handle sends for an operation.
type trick struct {
	mu sync.Mutex
	do func(send func(ctx context.Context) error) error
}

func (tr *trick) next(do func(send func(ctx context.Context) error) error) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.do = do
}

// played reports whether the commit has come.
func (tr *trick) played() bool {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return tr.do == nil
}

func (tr *trick) through(o *spanner.Options) {
	o.DialOptions = append(o.DialOptions, grpc.WithChainUnaryInterceptor(tr.intercept))
}

func (tr *trick) intercept(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	tr.mu.Lock()
	do := tr.do
	if method != "/google.spanner.v1.Spanner/Commit" || serving.Operation(ctx) == "" {
		do = nil
	}
	if do != nil {
		tr.do = nil
	}
	tr.mu.Unlock()
	if do == nil {
		return invoke(ctx, method, req, reply, cc, opts...)
	}
	return do(func(ctx context.Context) error { return invoke(ctx, method, req, reply, cc) })
}

// sending returns a context for an RPC that counts as one for an operation.
func sending(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(ctx, serving.Header, "test")
}

// unharmed returns what a change answers and leaves when nothing goes wrong.
func unharmed(t *testing.T, s *spanner.Store, c change, n names) (result, left string) {
	t.Helper()
	got, err := c.do(t.Context(), s, n, c.before(t, s, n))
	if err != nil {
		t.Fatalf("unharmed: %v", err)
	}
	return n.unnamed(timeless(t, got)), shape(t, s, n)
}

// harms are errors that leave it open whether a commit was made. The first the client
// takes for a reason to make the whole transaction again, by itself.
var harms = []error{
	status.Error(codes.Internal, "stream terminated by RST_STREAM with error code: INTERNAL_ERROR"),
	status.Error(codes.Internal, "a server's error"),
	status.Error(codes.Unknown, "nobody knows"),
	status.Error(codes.Unavailable, "the connection was lost"),
	status.Error(codes.DeadlineExceeded, "took too long"),
}

// Whether a commit or its answer is lost, and whatever the client makes of it, the
// caller gets the result that it would have got, and the write is made once.
func TestLostMessages(t *testing.T) {
	t.Parallel()
	for _, c := range changes {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var tr trick
			p := newDatabase(t, newest)
			s := open(t, p, tr.through)
			want, wantShape := unharmed(t, s, c, named(0))
			all := []names{named(0)}
			check := func(harm string, n names, result any, err error) {
				all = append(all, n)
				if err != nil {
					t.Errorf("%s: %v", harm, err)
					return
				}
				if got := n.unnamed(timeless(t, result)); got != want {
					t.Errorf("%s: got\n%s, want\n%s", harm, got, want)
				}
				if got := shape(t, s, n); got != wantShape {
					t.Errorf("%s: stored is\n%s, want\n%s", harm, got, wantShape)
				}
			}
			for i, lost := range harms {
				for j, applied := range []bool{true, false} {
					if !applied && i%2 == 1 { // of those that are no reason for the client, one is like another
						continue
					}
					n := named(1 + 2*i + j)
					lease := c.before(t, s, n)
					tr.next(func(send func(ctx context.Context) error) error {
						if applied {
							if err := send(sending(t.Context())); err != nil {
								return err
							}
						}
						return lost
					})
					result, err := c.do(t.Context(), s, n, lease)
					if !tr.played() {
						t.Fatal("there was no commit")
					}
					check(fmt.Sprintf("%v, applied: %v", lost, applied), n, result, err)
				}
			}
			n := named(100)
			lease := c.before(t, s, n)
			lost := p.server.DropReplies(1, p.served(commits))
			defer lost.Stop()
			result, err := c.do(t.Context(), s, n, lease)
			met(t, lost, 1)
			check("the reply lost", n, result, err)
			alike(t, s, all...)
		})
	}
}

// A context that ends while a commit is on its way, or its answer, leaves the outcome
// unknown to the caller; in both cases the commit is made. One that ends before leaves
// nothing.
func TestContextEndsInFlight(t *testing.T) {
	t.Parallel()
	for _, c := range changes {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p := newDatabase(t, newest)
			s := open(t, p)
			_, wantShape := unharmed(t, s, c, named(0))
			for j, harm := range []struct {
				name, method string
				do           func(*spanneremulator.Server, int, func(spanneremulator.Call) bool) emulators.Fault
				want         error
			}{
				{"the commit held", commits, (*spanneremulator.Server).Hold, runstore.ErrUnknownOutcome},
				{"the answer swallowed", commits, (*spanneremulator.Server).SwallowReplies, runstore.ErrUnknownOutcome},
				{"the read held", sql, (*spanneremulator.Server).Hold, runstore.ErrUnavailable},
			} {
				n := named(1 + j)
				lease := c.before(t, s, n)
				before := shape(t, s, n)
				fault := harm.do(p.server, 0, p.served(harm.method))
				defer fault.Stop()
				ctx, cancel := context.WithCancel(t.Context())
				given := make(chan error, 1)
				go func() {
					_, err := c.do(ctx, s, n, lease)
					given <- err
				}()
				met(t, fault, 1)
				cancel()
				if err := <-given; !errors.Is(err, harm.want) || !errors.Is(err, context.Canceled) {
					t.Errorf("%s: got %v, want %v and the context's error", harm.name, err, harm.want)
				}
				fault.Stop()
				if harm.want == runstore.ErrUnavailable {
					if after := shape(t, s, n); after != before {
						t.Errorf("%s: the write that was not sent changed\n%s\nto\n%s", harm.name, before, after)
					}
					continue
				}
				await(t, harm.name+", and the write is there", func() bool { return shape(t, s, n) == wantShape })
			}
			alike(t, s, named(0), named(1), named(2))
		})
	}
}

// A refusal ends a transaction, and who waits for it does not wait for that.
func TestContextEndsWhileARefusalIsEnded(t *testing.T) {
	t.Parallel()
	p := newDatabase(t, newest)
	s := open(t, p)
	lease := hold(t, s, "run")
	takeOver(t, s, "run")
	held := p.server.Hold(0, func(c spanneremulator.Call) bool { return c.Database == p.String() && c.Method == rollback })
	defer held.Stop()
	ctx, cancel := context.WithCancel(t.Context())
	given := make(chan error, 1)
	go func() {
		_, err := s.Commit(ctx, appending(lease, "zombie"))
		given <- err
	}()
	met(t, held, 1)
	cancel()
	bound, stop := context.WithTimeout(t.Context(), hang) // only so that a failing test ends
	defer stop()
	select {
	case err := <-given:
		if !errors.Is(err, runstore.ErrFenced) {
			t.Errorf("got %v, want ErrFenced", err)
		}
	case <-bound.Done():
		t.Error("still waiting, with a context that has ended")
	}
}
