package bigtable_test

import (
	"context"
	"errors"
	"fmt"
	"path"
	"testing"
	"time"

	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc"

	bigtableemulator "github.com/tapestore/tapestore/emulators/bigtable"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/bigtable"
	"github.com/tapestore/tapestore/runstore/serving"
)

// cutRaise raises the epoch, but not that of "run".
func cutRaise(t testing.TB, table bigtableemulator.TableName, s *bigtable.Store) {
	t.Helper()
	refused := server(t).Refuse(0, func(c bigtableemulator.Call) bool {
		return served(table, swaps)(c) && string(c.Row) == bigtable.RunKey("run")
	})
	defer refused.Stop()
	if err := cutAt(t, refused, func(ctx context.Context) error {
		_, err := s.RaiseEpoch(ctx, "test")
		return err
	}); err == nil {
		t.Fatal("the raise was finished")
	}
}

// TestLostReplyBeforeTheWrite checks that a commit is not applied, and returns ErrUnavailable, if the reply is
// lost to the conditional mutation that raises its run.
func TestLostReplyBeforeTheWrite(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	s := openBare(t, table)
	commit(t, s, appending(hold(t, s, "run"), "event"))
	cutRaise(t, table, s)
	lost := server(t).DropReplies(0, served(table, swaps))
	defer lost.Stop()
	err := cutAt(t, lost, func(ctx context.Context) error {
		_, err := s.Commit(ctx, signal("run", "unsent"))
		return err
	})
	lost.Stop()
	fails(t, err, runstore.ErrUnavailable, context.Canceled, runstore.NotApplied)
	seqs(t, s, 1)
}

// TestUnsentRaiseDeletesItsRows checks that a raise of a run leaves neither its mark nor its index entry if the
// context ends after it has written them, and before its conditional mutation is sent.
func TestUnsentRaiseDeletesItsRows(t *testing.T) {
	t.Parallel()
	table, ends := newTable(t), func() {}
	s, tbl := openBare(t, table, afterWrites(func() { ends() })), raw(t, table)
	b := appending(hold(t, s, "run"), "event")
	b.Runnable = runstore.After(0) // the raise ends the grant, and writes a new entry
	commit(t, s, b)
	cutRaise(t, table, s)
	count := func() string {
		bigtable.EmptyGarbage(t.Context(), s)
		return fmt.Sprintf("%d marks and %d index entries", len(keys(t, tbl, "m")), len(keys(t, tbl, "i")))
	}
	want := count()
	ctx, cancel := context.WithCancel(t.Context())
	ends = cancel
	_, err := s.Commit(ctx, signal("run", "unsent"))
	ends = func() {}
	fails(t, err, runstore.ErrUnavailable, context.Canceled, runstore.NotApplied)
	if got := count(); got != want {
		t.Errorf("got %s, want %s as before", got, want)
	}
	commit(t, s, signal("run", "sent"))
	seqs(t, s, 2)
}

// TestUnavailableHasACause checks that the error of a request that precedes a write has a cause, whether or not
// it was classified.
func TestUnavailableHasACause(t *testing.T) {
	t.Parallel()
	if err := bigtable.AsUnavailable("run", bigtable.ErrLongAgo); !errors.Is(err, runstore.ErrUnavailable) || !errors.Is(err, bigtable.ErrLongAgo) {
		t.Errorf("got %v, want ErrUnavailable because of %v", err, bigtable.ErrLongAgo)
	}
}

// TestRenewedLeaseIsLive checks that a handle that knows a strict lease only as it was before a renewal by
// another handle does not report its expiry: the lease was renewed before the handle asked for the time,
// meanwhile, or between its reads of the run and of the time. The first reply with the time is changed to the
// last moment before the former expiry, so the former lease has ended when the write is sent, or to the expiry.
func TestRenewedLeaseIsLive(t *testing.T) {
	t.Parallel()
	for what, write := range strictWrites {
		for _, moment := range []string{"before", "meanwhile", "between the reads"} {
			t.Run(what+", renewed "+moment, func(t *testing.T) {
				t.Parallel()
				table := newTable(t)
				var former time.Time // the expiry, while the next reply with the time is changed
				renew := func() {}
				s := openBare(t, table, func(o *bigtable.Options) {
					o.DialOptions = append(o.DialOptions, grpc.WithChainUnaryInterceptor(
						func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
							err := invoke(ctx, method, req, reply, cc, opts...)
							if path.Base(method) != clock || serving.Operation(ctx) == "" || former.IsZero() || err != nil {
								return err
							}
							cell := reply.(*bigtablepb.ReadModifyWriteRowResponse).Row.Families[0].Columns[0].Cells[0]
							cell.TimestampMicros = runstore.Micros(former) - 1
							if moment == "between the reads" {
								cell.TimestampMicros = runstore.Micros(former)
							}
							former = time.Time{}
							if moment != "before" {
								renew()
							}
							return nil
						}))
				})
				other := openBare(t, table)
				if _, err := s.CreateRun(t.Context(), runstore.RunSpec{ID: "run"}); err != nil {
					t.Fatal(err)
				}
				holder := s
				if moment == "between the reads" {
					holder = other // so that s reads the run first, and then the clock
				}
				granted, err := holder.AcquireLease(t.Context(), runstore.AcquireRequest{
					Run: "run", LeaseSpec: runstore.LeaseSpec{Owner: "strict", TTL: time.Minute, Strict: true},
				})
				if err != nil {
					t.Fatal(err)
				}
				renew = func() {
					if _, err := other.RenewLease(t.Context(), runstore.RenewRequest{Fence: granted.Lease.Fence(), TTL: runstore.MaxTTL}); err != nil {
						t.Error(err)
					}
				}
				if moment == "before" {
					renew()
				}
				former = granted.Lease.ExpiresAt
				if err := write(t.Context(), s, granted.Lease); err != nil {
					t.Errorf("a write under a lease that was renewed: %v", err)
				}
				if !former.IsZero() {
					t.Error("the write did not ask for the time")
				}
				if events, err := other.ReadJournal(t.Context(), "run", 1, 10); err != nil || len(events) != 1 {
					t.Errorf("the journal has %d events, %v, want 1", len(events), err)
				}
			})
		}
	}
}

// afterWrites has f called each time a handle has written rows for an operation.
func afterWrites(f func()) func(*bigtable.Options) {
	return func(o *bigtable.Options) {
		o.DialOptions = append(o.DialOptions,
			grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, begin grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
				stream, err := begin(ctx, desc, cc, method, opts...)
				if path.Base(method) != writes || serving.Operation(ctx) == "" {
					return stream, err
				}
				return &watched{stream, f}, err
			}))
	}
}

// TestUnsentWriteDeletesItsValues checks that a write whose context ends after it has written its large values, and
// before its conditional mutation is sent, is not applied, and leaves none of them.
func TestUnsentWriteDeletesItsValues(t *testing.T) {
	t.Parallel()
	table, ends := newTable(t), func() {}
	s, tbl := openBare(t, table, afterWrites(func() { ends() })), raw(t, table)
	hold(t, s, "run")
	b := heavy("run")
	b.Runnable = runstore.When{} // its entry would be written at the same time as the head
	ctx, cancel := context.WithCancel(t.Context())
	ends = cancel
	_, err := s.Commit(ctx, b)
	ends = func() {}
	fails(t, err, runstore.ErrUnavailable, context.Canceled, runstore.NotApplied)
	bigtable.EmptyGarbage(t.Context(), s)
	if left := len(keys(t, tbl, "d")); left > 0 {
		t.Errorf("%d rows of large values are left of a write that was not sent", left)
	}
	commit(t, s, b)
	if stored := len(keys(t, tbl, "d")); stored == 0 {
		t.Error("the write has no large values")
	}
}
