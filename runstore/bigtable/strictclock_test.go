package bigtable_test

import (
	"context"
	"errors"
	"path"
	"sync/atomic"
	"testing"
	"time"

	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/bigtable"
	"github.com/tapestore/tapestore/runstore/serving"
)

// The reply with the time of Bigtable's clock, by which a strict lease is live, arrives after the lease has
// ended. The write counts the lease's rest from when it asked, and is not sent.
func TestStrictLeaseEndsBehindALateClock(t *testing.T) {
	t.Parallel()
	for what, write := range strictWrites {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			clockIsLate(t, write)
		})
	}
}

func clockIsLate(t *testing.T, write func(ctx context.Context, s *bigtable.Store, l runstore.Lease) error) {
	table := newTable(t)
	other := openBare(t, table)
	var expiry atomic.Pointer[time.Time] // set while replies are late
	var read atomic.Int64                // the time in the first late reply, microseconds; 0 before
	s := openBare(t, table, func(o *bigtable.Options) {
		o.DialOptions = append(o.DialOptions, grpc.WithChainUnaryInterceptor(
			func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
				err := invoke(ctx, method, req, reply, cc, opts...)
				ends := expiry.Load()
				if path.Base(method) != clock || serving.Operation(ctx) == "" || ends == nil || err != nil {
					return err
				}
				read.CompareAndSwap(0, reply.(*bigtablepb.ReadModifyWriteRowResponse).Row.Families[0].Columns[0].Cells[0].TimestampMicros)
				await(t, "the end of the lease", func() bool {
					now, err := other.Now(context.WithoutCancel(ctx))
					return err != nil || now.After(*ends)
				})
				return nil
			}))
	})
	if _, err := s.CreateRun(t.Context(), runstore.RunSpec{ID: "run"}); err != nil {
		t.Fatal(err)
	}
	for ttl := 500 * time.Millisecond; ; ttl *= 4 { // until the clock is read before the lease ends
		granted, err := s.AcquireLease(t.Context(), runstore.AcquireRequest{
			Run: "run", LeaseSpec: runstore.LeaseSpec{Owner: "strict", TTL: ttl, Strict: true}, Preempt: "test",
		})
		if err != nil {
			t.Fatal(err)
		}
		read.Store(0)
		expiry.Store(&granted.Lease.ExpiresAt)
		err = write(t.Context(), s, granted.Lease)
		expiry.Store(nil)
		if !errors.Is(err, runstore.ErrLeaseExpired) {
			t.Errorf("a write behind the end of its strict lease: got %v, want ErrLeaseExpired", err)
		}
		if read.Load() < runstore.Micros(granted.Lease.ExpiresAt) {
			break
		}
	}
	if events, err := s.ReadJournal(t.Context(), "run", 1, 10); err != nil || len(events) != 0 {
		t.Errorf("the journal has %d events, %v, want none", len(events), err)
	}
}

// The time of day jumps, as after a suspend of the machine during which the monotonic clock stood still,
// while the reply with the time of Bigtable's clock is on its way. The write rests on no such reply: the
// clock is asked again before anything is sent.
func TestSuspendEndsAStrictWrite(t *testing.T) {
	t.Parallel()
	var ahead atomic.Int64
	var jump atomic.Bool // at the next reply with the time
	var asked, sent atomic.Int32
	s := openBare(t, newTable(t), func(o *bigtable.Options) {
		o.Clock = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
		o.DialOptions = append(o.DialOptions, grpc.WithChainUnaryInterceptor(
			func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
				err := invoke(ctx, method, req, reply, cc, opts...)
				switch {
				case serving.Operation(ctx) == "":
				case path.Base(method) == clock:
					if asked.Add(1); jump.Swap(false) {
						ahead.Store(int64(runstore.MaxTTL))
					}
				case path.Base(method) == "CheckAndMutateRow":
					sent.Add(1)
				}
				return err
			}))
	})
	if _, err := s.CreateRun(t.Context(), runstore.RunSpec{ID: "run"}); err != nil {
		t.Fatal(err)
	}
	granted, err := s.AcquireLease(t.Context(), runstore.AcquireRequest{
		Run: "run", LeaseSpec: runstore.LeaseSpec{Owner: "strict", TTL: runstore.MaxTTL, Strict: true},
	})
	if err != nil {
		t.Fatal(err)
	}
	b := runstore.NewBatch("run", granted.Lease.Fence())
	b.Append("note", nil)
	asked.Store(0)
	sent.Store(0)
	jump.Store(true)
	if _, err := s.Commit(t.Context(), b); err != nil || asked.Load() != 2 || sent.Load() != 1 {
		t.Errorf("error %v, the clock was asked %d times, want 2, and %d writes were sent, want 1", err, asked.Load(), sent.Load())
	}
}
