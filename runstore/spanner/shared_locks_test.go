package spanner_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/spanner/apiv1/spannerpb"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/spanner"
)

// sharedLocks makes up for the emulator, which admits one read-write transaction at a time to a
// database. A transaction whose first statement takes shared locks only reads what is committed, and
// leaves other transactions open that have read the same rows. Its commit aborts them. The service
// does the same.
func sharedLocks(o *spanner.Options) {
	o.DialOptions = append(o.DialOptions,
		grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, begin grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			stream, err := begin(ctx, desc, cc, method, opts...)
			return &sharedStream{ClientStream: stream}, err
		}),
		grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			switch r := req.(type) {
			case *spannerpb.RollbackRequest:
				if string(r.GetTransactionId()) == sharedTransaction {
					return nil
				}
			case *spannerpb.CommitRequest:
				if string(r.GetTransactionId()) == sharedTransaction {
					r = proto.CloneOf(r)
					r.Transaction = &spannerpb.CommitRequest_SingleUseTransaction{SingleUseTransaction: &spannerpb.TransactionOptions{
						Mode: &spannerpb.TransactionOptions_ReadWrite_{ReadWrite: &spannerpb.TransactionOptions_ReadWrite{}},
					}}
					req = r
				}
			}
			return invoke(ctx, method, req, reply, cc, opts...)
		}))
}

// sharedTransaction is the id of each transaction that holds shared locks only.
const sharedTransaction = "shared"

// sharedStream is a statement's stream. It sends a statement that begins a transaction with shared
// locks as a strong read.
type sharedStream struct {
	grpc.ClientStream
	shared bool
}

func (s *sharedStream) SendMsg(m any) error {
	if r, ok := m.(*spannerpb.ExecuteSqlRequest); ok && r.GetTransaction().GetBegin() != nil && !strings.Contains(r.GetSql(), "LOCK_SCANNED_RANGES=exclusive") {
		s.shared = true
		r = proto.CloneOf(r)
		r.Transaction = &spannerpb.TransactionSelector{Selector: &spannerpb.TransactionSelector_SingleUse{SingleUse: &spannerpb.TransactionOptions{
			Mode: &spannerpb.TransactionOptions_ReadOnly_{ReadOnly: &spannerpb.TransactionOptions_ReadOnly{
				TimestampBound: &spannerpb.TransactionOptions_ReadOnly_Strong{Strong: true},
			}},
		}}}
		r.RequestOptions.TransactionTag = ""
		m = r
	}
	return s.ClientStream.SendMsg(m)
}

func (s *sharedStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if r, ok := m.(*spannerpb.PartialResultSet); ok && err == nil && s.shared && r.GetMetadata() != nil {
		r.Metadata.Transaction = &spannerpb.Transaction{Id: []byte(sharedTransaction)}
	}
	return err
}

// TestRefusalAfterAStrictLeaseStaysTrue checks that a repeat which is refused as not applied keeps an
// earlier copy out (I11). The commit of a write under a strict lease is under way when its caller
// gives up, and the lease ends. A repeat through another handle is ErrLeaseExpired. Then the commit
// arrives, and must not be applied.
func TestRefusalAfterAStrictLeaseStaysTrue(t *testing.T) {
	t.Parallel()
	for name, do := range map[string]func(ctx context.Context, s *spanner.Store, l runstore.Lease) error{
		"commit": func(ctx context.Context, s *spanner.Store, l runstore.Lease) error {
			b := appending(l, "late")
			b.ID = "id"
			_, err := s.Commit(ctx, b)
			return err
		},
		"release": func(ctx context.Context, s *spanner.Store, l runstore.Lease) error {
			_, err := s.ReleaseLease(ctx, runstore.ReleaseRequest{Fence: l.Fence(), Writes: someWrites()})
			return err
		},
		"handoff": func(ctx context.Context, s *spanner.Store, l runstore.Lease) error {
			_, err := s.AcquireLease(ctx, runstore.AcquireRequest{
				Run: l.Run, LeaseSpec: runstore.LeaseSpec{Owner: "successor", TTL: runstore.MaxTTL, Grant: "handoff"},
				Guards: []runstore.Guard{l.Fence()}, Writes: someWrites(),
			})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var tr trick
			var m mail
			p := newDatabase(t, newest)
			s, other := open(t, p, tr.through), open(t, p, sharedLocks)
			began := time.Now()
			hold(t, s, "another") // as long as it takes on this machine, many times, fits into the lease
			lease := holdAs(t, s, "run", runstore.LeaseSpec{Owner: "holder", TTL: max(2*time.Second, 20*time.Since(began)), Strict: true})
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			m.keep(&tr, cancel)
			if err := do(ctx, s, lease); !errors.Is(err, runstore.ErrUnknownOutcome) {
				t.Fatalf("the first copy: got %v, want ErrUnknownOutcome", err)
			}
			past(t, other, lease.ExpiresAt)
			if err := do(t.Context(), other, lease); runstore.OutcomeOf(err) != runstore.NotApplied || !errors.Is(err, runstore.ErrLeaseExpired) {
				t.Fatalf("the repeat: got %v, want ErrLeaseExpired", err)
			}
			late := m.deliver(sending(t.Context()))
			run, err := other.GetRun(t.Context(), "run")
			if err != nil {
				t.Fatal(err)
			}
			if late == nil || run.LastSeq != 0 {
				t.Errorf("the first copy was applied after the refusal (%v): last seq %d, holder %q", late, run.LastSeq, run.Holder.Owner)
			}
		})
	}
}
