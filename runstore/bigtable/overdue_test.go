package bigtable_test

import (
	"context"
	"errors"
	"maps"
	"path"
	"reflect"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/bigtable"
	"github.com/tapestore/tapestore/runstore/serving"
)

// The copy of a write is under way when its caller gives up, and the time that the write had ends. A repeat is
// refused as not applied, through the same handle or another one, and changes nothing. The copy arrives after
// that, and is not applied.
func TestRefusalOfARepeatStaysTrue(t *testing.T) {
	t.Parallel()
	writes := maps.Clone(strictWrites)
	writes["release without writes"] = func(ctx context.Context, s *bigtable.Store, l runstore.Lease) error {
		_, err := s.ReleaseLease(ctx, runstore.ReleaseRequest{Fence: l.Fence()})
		return err
	}
	writes["renewal without progress"] = func(ctx context.Context, s *bigtable.Store, l runstore.Lease) error {
		req := runstore.RenewRequest{ID: "renewal", Fence: l.Fence(), TTL: runstore.MaxTTL}
		status := runstore.Status(7)
		req.Writes.Status = &status
		_, err := s.RenewLease(ctx, req)
		return err
	}
	for what, write := range writes {
		for _, by := range []string{"the handle", "another handle"} {
			t.Run(what+"/repeated by "+by, func(t *testing.T) {
				t.Parallel()
				spec, want := runstore.LeaseSpec{Owner: "holder", Strict: true}, runstore.ErrLeaseExpired
				if what == "renewal without progress" {
					spec, want = runstore.LeaseSpec{Owner: "holder"}, runstore.ErrNoProgress
				}
				refusedAfterItsTime(t, spec, write, by == "the handle", want)
			})
		}
	}
}

// underWay returns a lease on "run" under which the handle s has made a write whose caller gave up. m keeps the
// write's conditional mutation. The lease, or its MaxStall unless it is strict, ends soon.
func underWay(t *testing.T, s *bigtable.Store, m *mail, spec runstore.LeaseSpec, write func(context.Context, *bigtable.Store, runstore.Lease) error) runstore.Lease {
	if _, err := s.CreateRun(t.Context(), runstore.RunSpec{ID: "run"}); err != nil {
		t.Fatal(err)
	}
	for last := 100 * time.Millisecond; ; last *= 4 { // until the write is sent in time
		if spec.TTL = last; !spec.Strict {
			spec.TTL, spec.MaxStall = runstore.MaxTTL, last
		}
		granted, err := s.AcquireLease(t.Context(), runstore.AcquireRequest{Run: "run", LeaseSpec: spec, Preempt: "test"})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		m.then = cancel
		m.arm()
		err = write(ctx, s, granted.Lease)
		cancel()
		if m.disarm(); m.kept == nil {
			continue
		}
		if runstore.OutcomeOf(err) != runstore.Unknown {
			t.Fatalf("the write that is under way: got %v, want an unknown outcome", err)
		}
		return granted.Lease
	}
}

func refusedAfterItsTime(t *testing.T, spec runstore.LeaseSpec, write func(context.Context, *bigtable.Store, runstore.Lease) error, same bool, want error) {
	table, m := newTable(t), &mail{}
	s, other := openBare(t, table, m.through), openBare(t, table)
	lease := underWay(t, s, m, spec, write)
	run, err := other.GetRun(t.Context(), "run")
	if err != nil {
		t.Fatal(err)
	}
	isPast(t, other, run.Holder.ProgressedAt.Add(run.Holder.MaxStall))
	if spec.Strict {
		isPast(t, other, run.ExpiresAt)
	}
	before := shape(t, other)
	if same {
		err = write(t.Context(), s, lease)
	} else {
		err = write(t.Context(), other, lease)
	}
	if !errors.Is(err, want) || runstore.OutcomeOf(err) != runstore.NotApplied {
		t.Errorf("the repeat: got %v, want %v", err, want)
	}
	if m.deliver(t, false) {
		t.Errorf("the repeat got %v, and the first copy was applied after that", err)
	}
	after, err := other.GetRun(t.Context(), "run")
	if got := shape(t, other); err != nil || got != before || !reflect.DeepEqual(after, run) {
		t.Errorf("%v, the refusal and the late copy changed\n%s, %+v\nto\n%s, %+v", err, before, run, got, after)
	}
}

// The copy of a commit arrives while its repeat is refused for the end of the strict lease. The repeat finds the
// commit applied. A handle whose last reading of the clock took long may still take the lease for live, and send the
// repeat instead of refusing it; its outcome is then unknown, and the test begins anew.
func TestCopyArrivesDuringTheRefusal(t *testing.T) {
	t.Parallel()
	for range 10 {
		if err := copyDuringRefusal(t); err == nil || !errors.Is(err, bigtable.ErrLate) {
			return
		}
	}
	t.Error("the repeat was never refused")
}

func copyDuringRefusal(t *testing.T) error {
	t.Helper()
	table, m := newTable(t), &mail{}
	var between atomic.Pointer[func()] // called before the next conditional mutation of a commit
	s := openBare(t, table, m.through)
	other := openBare(t, table, func(o *bigtable.Options) {
		o.DialOptions = append(o.DialOptions, grpc.WithChainUnaryInterceptor(
			func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
				if path.Base(method) == swaps && serving.Operation(ctx) == "commit" {
					if f := between.Swap(nil); f != nil {
						(*f)()
					}
				}
				return invoke(ctx, method, req, reply, cc, opts...)
			}))
	})
	lease := underWay(t, s, m, runstore.LeaseSpec{Owner: "holder", Strict: true}, strictWrites["commit"])
	isPast(t, other, lease.ExpiresAt)
	applied := false
	deliver := func() { applied = m.deliver(t, false) }
	between.Store(&deliver)
	err := strictWrites["commit"](t.Context(), other, lease)
	if errors.Is(err, bigtable.ErrLate) {
		return err
	}
	if !applied || err != nil {
		t.Errorf("got error %v, want none; the first copy was applied: %t, want true", err, applied)
	}
	seqs(t, other, 1)
	return err
}

// The write that makes a refusal for the end of the strict lease final is lost. The repeat has an unknown outcome
// then: the first copy may still be applied.
func TestLostRefusalOfARepeat(t *testing.T) {
	t.Parallel()
	table, first, refusal := newTable(t), &mail{}, &mail{}
	s, other := openBare(t, table, first.through), openBare(t, table, refusal.through)
	lease := underWay(t, s, first, runstore.LeaseSpec{Owner: "holder", Strict: true}, strictWrites["commit"])
	isPast(t, other, lease.ExpiresAt)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	refusal.then = cancel
	refusal.arm()
	err := strictWrites["commit"](ctx, other, lease)
	if refusal.disarm(); runstore.OutcomeOf(err) != runstore.Unknown {
		t.Errorf("the repeat: got %v, want an unknown outcome", err)
	}
	if !first.deliver(t, false) {
		t.Error("the first copy was refused, so this test shows nothing")
	}
	if refusal.deliver(t, false) {
		t.Error("the refusal was applied to the revision that the first copy has made")
	}
	seqs(t, other, 1)
}
