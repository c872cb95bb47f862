package spanner

import (
	"strconv"
	"strings"
	"time"

	"cloud.google.com/go/spanner/apiv1/spannerpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/tapestore/tapestore/internal/grpcproxy"
)

// snapshot is a read-only transaction, represented by its read timestamp alone: each read
// runs at that timestamp, without a transaction. The emulator remembers only the last 32
// transactions of a session, and each read is one.
type snapshot struct {
	session    string // the client's session
	emulatorID string // the emulator's transaction id
	at         time.Time
}

func (t snapshot) id() []byte {
	return []byte(txID(t.session, []byte(t.emulatorID)) + "\x00" + strconv.FormatInt(t.at.UnixNano(), 10))
}

func parseSnapshot(id []byte) (t snapshot, ok bool) {
	parts := strings.Split(string(id), "\x00")
	if len(parts) != 3 {
		return t, false
	}
	nanos, err := strconv.ParseInt(parts[2], 10, 64)
	return snapshot{session: parts[0], emulatorID: parts[1], at: time.Unix(0, nanos)}, err == nil
}

func (t snapshot) options() *spannerpb.TransactionOptions {
	return &spannerpb.TransactionOptions{Mode: &spannerpb.TransactionOptions_ReadOnly_{ReadOnly: &spannerpb.TransactionOptions_ReadOnly{
		TimestampBound: &spannerpb.TransactionOptions_ReadOnly_ReadTimestamp{ReadTimestamp: timestamppb.New(t.at)},
	}}}
}

// rewriteForSnapshot returns the request with the emulator's form of the transaction: a single-use
// read at the snapshot's timestamp or, for a partitioned read, a real transaction.
func (s *shim) rewriteForSnapshot(t snapshot, req statement) (proto.Message, error) {
	parts := false
	switch req := req.(type) {
	case *spannerpb.PartitionQueryRequest, *spannerpb.PartitionReadRequest:
		parts = true
	case interface{ GetPartitionToken() []byte }:
		parts = len(req.GetPartitionToken()) > 0
	}
	if !parts {
		return rewriteRequest(req, req.GetSession(), &spannerpb.TransactionSelector{Selector: &spannerpb.TransactionSelector_SingleUse{SingleUse: t.options()}}), nil
	}
	session, real, err := s.partitionTransaction(t, databaseOf(req))
	return rewriteRequest(req, session, &spannerpb.TransactionSelector{Selector: &spannerpb.TransactionSelector_Id{Id: real}}), err
}

// partitionTransaction returns a read-only transaction at the snapshot's timestamp, on a session of
// its own. Partitioned reads need one. It is never ended, because no call announces the end of the
// snapshot.
func (s *shim) partitionTransaction(t snapshot, database string) (session string, real []byte, err error) {
	s.partitionMu.Lock()
	defer s.partitionMu.Unlock()
	id := string(t.id())
	if id, ok := s.partitionTxs[id]; ok {
		session, real, _ := strings.Cut(id, "\x00")
		return session, []byte(real), nil
	}
	session, err = s.onSession(s.ctx, database, func(session string) error {
		began, err := s.client.BeginTransaction(s.ctx, &spannerpb.BeginTransactionRequest{Session: session, Options: t.options()})
		real = began.GetId()
		return err
	})
	if err == nil {
		s.partitionTxs[id] = txID(session, real)
	}
	return session, real, err
}

// beginTransaction answers BeginTransaction, for transactions of any kind.
func (s *shim) beginTransaction(a *rpc, req *spannerpb.BeginTransactionRequest) error {
	if req.GetOptions().GetReadOnly() != nil {
		_, began, err := s.beginSnapshot(a, req)
		if err != nil {
			return err
		}
		return sendMessage(a, began)
	}
	tx, began, err := s.begin(a.ServerStream.Context(), req)
	if err != nil {
		return err
	}
	if err = sendMessage(a, began); err != nil || a.sent == 0 {
		tx.abort() // no client knows its id
	}
	return err
}

// beginSnapshot begins a read-only transaction on the client's own session.
func (s *shim) beginSnapshot(a *rpc, req *spannerpb.BeginTransactionRequest) (t snapshot, began *spannerpb.Transaction, err error) {
	asked := req.Options.GetReadOnly().GetReturnReadTimestamp()
	req = shallow(req)
	req.MutationKey = nil
	req.Options = proto.CloneOf(req.Options)
	req.Options.GetReadOnly().ReturnReadTimestamp = true
	began, err = s.client.BeginTransaction(outgoing(a.Context(), a.ServerStream.Context()), req)
	if err != nil {
		return t, nil, err
	}
	if began.ReadTimestamp == nil {
		return t, nil, status.Error(codes.Internal, "the emulator does not return the timestamp of a read-only transaction")
	}
	t = snapshot{session: req.Session, emulatorID: string(began.Id), at: began.ReadTimestamp.AsTime()}
	began.Id = t.id()
	if !asked {
		began.ReadTimestamp = nil
	}
	return t, began, nil
}

// beginSnapshotWith begins a read-only transaction with its first statement.
func (s *shim) beginSnapshotWith(a *rpc, method, name string, req statement) error {
	t, began, err := s.beginSnapshot(a, &spannerpb.BeginTransactionRequest{Session: req.GetSession(), Options: req.GetTransaction().GetBegin()})
	if err != nil {
		return err
	}
	addressed, err := s.rewriteForSnapshot(t, req)
	if err != nil {
		return err
	}
	return s.relay(outgoing(a.Context(), a.ServerStream.Context()), method, addressed, func(frame grpcproxy.Frame) error {
		frame, _, err := putTransaction(name, frame, began)
		if err != nil {
			return err
		}
		return a.sendFrame(frame)
	})
}
