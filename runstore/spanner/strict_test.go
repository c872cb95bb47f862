package spanner_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/serving"
	"github.com/tapestore/tapestore/runstore/spanner"
)

// receiving calls hook after each message that the server sends, before the handle gets it.
type receiving struct {
	grpc.ClientStream
	hook func()
}

func (s *receiving) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if err == nil {
		s.hook()
	}
	return err
}

// TestLateGuardEndsAStrictCommit checks that a strict lease is counted from when the guard statement
// left. The reply comes after the lease has expired on the store clock, although the statement found
// it live: the commit must not be applied.
func TestLateGuardEndsAStrictCommit(t *testing.T) {
	t.Parallel()
	p := newDatabase(t, newest)
	other := open(t, p, patient)
	var late func() // what happens before the handle gets a reply; nil for nothing
	s := open(t, p, patient, func(o *spanner.Options) {
		o.DialOptions = append(o.DialOptions, grpc.WithChainStreamInterceptor(
			func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, begin grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
				stream, err := begin(ctx, desc, cc, method, opts...)
				if err == nil && serving.Operation(ctx) != "" && late != nil { // the test's own goroutine
					stream = &receiving{stream, sync.OnceFunc(late)}
					late = nil
				}
				return stream, err
			}))
	})
	s.SetAttemptTimeout(hang)
	live := false // when the guard's reply came
	for ttl := 500 * time.Millisecond; !live; ttl *= 2 {
		id := runstore.RunID(ttl.String())
		lease := holdAs(t, s, id, runstore.LeaseSpec{Owner: "holder", TTL: ttl, Strict: true})
		late = func() {
			now, err := other.Now(t.Context())
			live = err == nil && now.Before(lease.ExpiresAt)
			past(t, other, lease.ExpiresAt)
		}
		if _, err := s.Commit(t.Context(), appending(lease, "late")); !errors.Is(err, runstore.ErrLeaseExpired) {
			t.Errorf("got %v, want ErrLeaseExpired", err)
		}
		if late != nil {
			t.Fatal("the commit read nothing")
		}
		if events, err := s.ReadJournal(t.Context(), id, 1, 10); err != nil || len(events) != 0 {
			t.Errorf("the journal has %d events, error %v, want none", len(events), err)
		}
	}
}

// TestSuspendEndsAStrictCommit checks that a strict lease is counted on the time of day, too, because
// the monotonic clock may stop while the machine is suspended. The time of day jumps while the reply
// of the guard is on its way: no commit is sent that rests on that guard.
func TestSuspendEndsAStrictCommit(t *testing.T) {
	t.Parallel()
	var late func() // what happens before the handle gets a reply; nil for nothing
	var ahead atomic.Int64
	var commits []bool // of each commit, whether it was in time
	s := open(t, newDatabase(t, newest), patient, func(o *spanner.Options) {
		o.Clock = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
		o.DialOptions = append(o.DialOptions, grpc.WithChainStreamInterceptor(
			func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, begin grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
				stream, err := begin(ctx, desc, cc, method, opts...)
				if err == nil && serving.Operation(ctx) != "" && late != nil { // the test's own goroutine
					stream = &receiving{stream, sync.OnceFunc(late)}
					late = nil
				}
				return stream, err
			}), grpc.WithChainUnaryInterceptor(
			func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
				if method == "/google.spanner.v1.Spanner/Commit" && serving.Operation(ctx) != "" {
					commits = append(commits, ctx.Err() == nil)
				}
				return invoke(ctx, method, req, reply, cc, opts...)
			}))
	})
	s.SetAttemptTimeout(hang)
	lease := holdAs(t, s, "run", runstore.LeaseSpec{Owner: "holder", TTL: runstore.MaxTTL, Strict: true})
	late, commits = func() { ahead.Store(int64(runstore.MaxTTL)) }, nil
	commit(t, s, appending(lease, "after a suspend"))
	if want := []bool{false, true}; !slices.Equal(commits, want) {
		t.Errorf("commits that were in time: got %v, want %v: one for each guard, and the first too late", commits, want)
	}
	commits = nil
	ahead.Store(0) // the time of day steps back, which makes no lease longer or shorter
	commit(t, s, appending(lease, "after a step back"))
	if want := []bool{true}; !slices.Equal(commits, want) {
		t.Errorf("commits that were in time after a step back: got %v, want %v", commits, want)
	}
	if events, err := s.ReadJournal(t.Context(), "run", 1, 10); err != nil || len(events) != 2 {
		t.Errorf("the journal has %d events, error %v, want 2", len(events), err)
	}
}

// TestStrictLeaseBoundsCommits checks that the commit of every write under a strict lease
// is given up at the lease's expiry.
func TestStrictLeaseBoundsCommits(t *testing.T) {
	t.Parallel()
	const long = 2 * runstore.MaxTTL // the longest patience
	var left time.Duration           // that the last commit had to its deadline
	s := open(t, newDatabase(t, newest), func(o *spanner.Options) {
		o.RetryTimeout = long
		o.DialOptions = append(o.DialOptions, grpc.WithChainUnaryInterceptor(
			func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
				if method == "/google.spanner.v1.Spanner/Commit" {
					deadline, _ := ctx.Deadline()
					left = time.Until(deadline)
				}
				return invoke(ctx, method, req, reply, cc, opts...)
			}))
	})
	s.SetAttemptTimeout(long) // so that of all bounds only the lease's is near
	for name, do := range map[string]func(ctx context.Context, l runstore.Lease) error{
		"commit": func(ctx context.Context, l runstore.Lease) error {
			_, err := s.Commit(ctx, appending(l, "event"))
			return err
		},
		"commit of several runs": func(ctx context.Context, l runstore.Lease) error {
			_, err := s.CommitMulti(ctx, []runstore.Batch{signal("plain", "event"), appending(l, "event")})
			return err
		},
		"hand off": func(ctx context.Context, l runstore.Lease) error {
			_, err := s.AcquireLease(ctx, runstore.AcquireRequest{
				Run: l.Run, LeaseSpec: runstore.LeaseSpec{Owner: "next", TTL: runstore.MaxTTL}, Guards: []runstore.Guard{l.Fence()},
			})
			return err
		},
		"renew": func(ctx context.Context, l runstore.Lease) error {
			_, err := s.RenewLease(ctx, runstore.RenewRequest{Fence: l.Fence(), TTL: runstore.MaxTTL})
			return err
		},
		"release": func(ctx context.Context, l runstore.Lease) error {
			_, err := s.ReleaseLease(ctx, runstore.ReleaseRequest{Fence: l.Fence()})
			return err
		},
	} {
		for _, strict := range []bool{false, true} {
			if _, err := s.CreateRun(t.Context(), runstore.RunSpec{ID: "plain"}); err != nil {
				t.Fatal(err)
			}
			id := runstore.RunID(name)
			if strict {
				id += ", strict"
			}
			lease := holdAs(t, s, id, runstore.LeaseSpec{Owner: "holder", TTL: runstore.MaxTTL, Strict: strict})
			if err := do(t.Context(), lease); err != nil {
				t.Fatalf("%s: %v", id, err)
			}
			if bounded := left <= runstore.MaxTTL; bounded != strict {
				t.Errorf("%s: the commit is given up after %v; at the lease's expiry: got %t, want %t", id, left, bounded, strict)
			}
		}
	}
	shorter := runstore.LeaseSpec{Owner: "holder", TTL: runstore.MaxTTL / 2, Strict: true}
	longer := runstore.LeaseSpec{Owner: "holder", TTL: runstore.MaxTTL, Strict: true}
	for i, specs := range [][]runstore.LeaseSpec{{shorter, longer}, {longer, shorter}} {
		var batches []runstore.Batch
		for _, spec := range specs {
			batches = append(batches, appending(holdAs(t, s, runstore.RunID(fmt.Sprint("both ", i, spec.TTL)), spec), "event"))
		}
		if _, err := s.CommitMulti(t.Context(), batches); err != nil {
			t.Fatal(err)
		}
		if left > shorter.TTL {
			t.Errorf("a commit under two strict leases is given up after %v, behind the end of the one of %v", left, shorter.TTL)
		}
	}
}
