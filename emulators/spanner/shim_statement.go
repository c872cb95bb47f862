package spanner

import (
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"path"

	"cloud.google.com/go/spanner/apiv1/spannerpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/tapestore/tapestore/internal/grpcproxy"
)

// statement executes a read, a query or DML. handled is false if the emulator can answer the
// request itself, which it can if no transaction is named or a snapshot's request was rewritten.
func (s *shim) statement(a *rpc, method, name string, req statement) (handled bool, err error) {
	selector := req.GetTransaction()
	if options := selector.GetBegin(); options != nil {
		if options.GetReadOnly() != nil {
			return true, s.beginSnapshotWith(a, method, name, req)
		}
		return true, s.beginWith(a, method, name, req)
	}
	id := selector.GetId()
	if id == nil {
		return false, nil
	}
	if tx := s.find(id); tx != nil {
		return true, tx.statement(a, method, req, a.sendFrame)
	}
	if snapshot, ok := parseSnapshot(id); ok {
		addressed, err := s.rewriteForSnapshot(snapshot, req)
		if err == nil {
			a.request, err = proto.Marshal(addressed)
		}
		return err != nil, err
	}
	return true, status.Error(codes.NotFound, "Transaction not found.")
}

// beginWith begins a transaction with its first statement. It does so in two steps, so that the
// shim has the transaction's id whatever the statement returns. If the client does not get the id,
// as when the statement fails, no call can use the transaction and it is rolled back at once; the
// client begins another one.
func (s *shim) beginWith(a *rpc, method, name string, req statement) error {
	tx, began, err := s.begin(a.ServerStream.Context(), &spannerpb.BeginTransactionRequest{
		Session: req.GetSession(), Options: req.GetTransaction().GetBegin(), RequestOptions: requestOptions(req),
	})
	if err != nil {
		return err
	}
	told := false
	err = tx.statement(a, method, req, func(frame grpcproxy.Frame) error {
		frame, ok, err := putTransaction(name, frame, began)
		if err != nil {
			return err
		}
		sent := a.sent
		err = a.sendFrame(frame)
		told = told || ok && a.sent > sent
		return err
	})
	if !told {
		tx.abort()
	}
	return err
}

// putTransaction adds the transaction to the reply of the statement that began it, if frame
// is the message for it: the first with metadata. told reports whether it was added.
func putTransaction(name string, frame grpcproxy.Frame, began *spannerpb.Transaction) (_ grpcproxy.Frame, told bool, err error) {
	var message proto.Message
	var metadata *spannerpb.ResultSetMetadata
	switch name {
	case "ExecuteBatchDml":
		res := &spannerpb.ExecuteBatchDmlResponse{}
		if err = proto.Unmarshal(frame, res); err == nil && len(res.ResultSets) > 0 {
			metadata = res.ResultSets[0].GetMetadata()
		}
		message = res
	case "ExecuteStreamingSql", "StreamingRead":
		res := &spannerpb.PartialResultSet{}
		err = proto.Unmarshal(frame, res)
		message, metadata = res, res.GetMetadata()
	default:
		res := &spannerpb.ResultSet{}
		err = proto.Unmarshal(frame, res)
		message, metadata = res, res.GetMetadata()
	}
	if err != nil || metadata == nil {
		return frame, false, err
	}
	metadata.Transaction = began
	frame, err = proto.Marshal(message)
	return frame, true, err
}

// statement executes a statement of the transaction and sends its reply.
func (tx *transaction) statement(a *rpc, method string, req statement, send func(grpcproxy.Frame) error) error {
	if err := tx.enter(); err != nil {
		return err
	}
	defer tx.leave()
	client := a.ServerStream.Context()
	numbered, ok := req.(interface{ GetSeqno() int64 })
	if !ok || numbered.GetSeqno() == 0 || tx.partitioned {
		err := tx.shim.relay(outgoing(a.Context(), client), method, tx.rewrite(req), send)
		if a.Context().Err() != nil {
			return err // the client left; the transaction is unharmed
		}
		return tx.mapError(err)
	}
	r, err := tx.runNumbered(client, method, req, numbered.GetSeqno())
	if err != nil {
		return err
	}
	select {
	case <-r.done:
	case <-a.Context().Done():
		return status.FromContextError(a.Context().Err()).Err()
	}
	for _, frame := range r.frames {
		if err := send(frame); err != nil {
			return err
		}
	}
	return r.err
}

// rewrite returns the request with the session and the id that the emulator knows.
func (tx *transaction) rewrite(req statement) proto.Message {
	return rewriteRequest(req, tx.session, &spannerpb.TransactionSelector{Selector: &spannerpb.TransactionSelector_Id{Id: tx.emulatorID}})
}

// rewriteRequest returns a copy of the request with another session and transaction.
func rewriteRequest(req statement, session string, selector *spannerpb.TransactionSelector) proto.Message {
	switch req := req.(type) {
	case *spannerpb.ExecuteSqlRequest:
		req = shallow(req)
		req.Session, req.Transaction = session, selector
		return req
	case *spannerpb.ExecuteBatchDmlRequest:
		req = shallow(req)
		req.Session, req.Transaction = session, selector
		return req
	case *spannerpb.ReadRequest:
		req = shallow(req)
		req.Session, req.Transaction = session, selector
		return req
	case *spannerpb.PartitionQueryRequest:
		req = shallow(req)
		req.Session, req.Transaction = session, selector
		return req
	case *spannerpb.PartitionReadRequest:
		req = shallow(req)
		req.Session, req.Transaction = session, selector
		return req
	}
	return req
}

func requestOptions(req statement) *spannerpb.RequestOptions {
	if with, ok := req.(interface {
		GetRequestOptions() *spannerpb.RequestOptions
	}); ok {
		return with.GetRequestOptions()
	}
	return nil
}

// relay sends a request to the emulator and passes the messages of its reply to send.
func (s *shim) relay(ctx context.Context, method string, req proto.Message, send func(grpcproxy.Frame) error) error {
	frame, err := proto.Marshal(req)
	if err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	up, err := s.conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, method, grpc.ForceCodec(grpcproxy.Frames()))
	if err != nil {
		return err
	}
	if err := up.SendMsg((*grpcproxy.Frame)(&frame)); err != nil && !errors.Is(err, io.EOF) { // else RecvMsg returns the reason
		return err
	}
	if err := up.CloseSend(); err != nil {
		return err
	}
	for {
		var frame grpcproxy.Frame
		if err := up.RecvMsg(&frame); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		if err := send(frame); err != nil {
			return err
		}
	}
}

// numberedReply is the reply to a numbered statement.
type numberedReply struct {
	requestHash [sha256.Size]byte
	done        chan struct{}
	frames      []grpcproxy.Frame
	err         error
}

// runNumbered executes a statement with a sequence number, even if the client no longer waits.
// Repeated DML with the same number gets the first reply. The emulator does that too, but returns
// the rows of THEN RETURN only once. Queries have numbers as well; they are executed again.
func (tx *transaction) runNumbered(client context.Context, method string, req statement, seqno int64) (*numberedReply, error) {
	text, err := (proto.MarshalOptions{Deterministic: true}).Marshal(req)
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	asked := sha256.Sum256(text)
	tx.mu.Lock()
	defer tx.mu.Unlock()
	if known := tx.dml[seqno]; known != nil && known.requestHash == asked {
		return known, nil
	}
	r := &numberedReply{requestHash: asked, done: make(chan struct{})}
	ctx := outgoing(tx.shim.ctx, client)
	if !tx.shim.background(func() {
		defer tx.leave()
		defer close(r.done)
		err := tx.shim.relay(ctx, method, tx.rewrite(req), func(frame grpcproxy.Frame) error {
			r.frames = append(r.frames, frame)
			return nil
		})
		if err == nil {
			err = batchAborted(path.Base(method), r.frames)
		}
		if r.err = tx.mapError(err); r.err != nil {
			r.frames = nil
		}
		if r.err != nil || !isDML(path.Base(method), r.frames) {
			tx.forgetReply(seqno, r)
		}
	}) {
		return nil, errStopped
	}
	tx.busy++ // until the goroutine has ended
	if tx.dml != nil && tx.dml[seqno] == nil {
		tx.dml[seqno] = r
	}
	return r, nil
}

// batchAborted returns the error of a DML batch that another transaction aborted. The emulator
// reports it inside the reply, as it does a bad statement, where there is no field for a retry
// delay.
func batchAborted(name string, frames []grpcproxy.Frame) error {
	if name != "ExecuteBatchDml" || len(frames) == 0 {
		return nil
	}
	res := &spannerpb.ExecuteBatchDmlResponse{}
	if proto.Unmarshal(frames[0], res) != nil {
		return nil // the client gets the same error
	}
	err := status.ErrorProto(res.GetStatus())
	if status.Code(err) == codes.Aborted || isTransactionLost(err) {
		return err
	}
	return nil
}

// isDML reports whether a reply is that of DML, which has a row count.
func isDML(name string, frames []grpcproxy.Frame) bool {
	if name == "ExecuteBatchDml" || len(frames) == 0 {
		return len(frames) > 0
	}
	last := frames[len(frames)-1]
	if name == "ExecuteSql" {
		res := &spannerpb.ResultSet{}
		return proto.Unmarshal(last, res) == nil && res.GetStats().GetRowCount() != nil
	}
	res := &spannerpb.PartialResultSet{}
	return proto.Unmarshal(last, res) == nil && res.GetStats().GetRowCount() != nil
}

func (tx *transaction) forgetReply(seqno int64, r *numberedReply) {
	tx.mu.Lock()
	defer tx.mu.Unlock()
	if tx.dml[seqno] == r {
		delete(tx.dml, seqno)
	}
}

func (tx *transaction) forgetReplies() {
	tx.mu.Lock()
	defer tx.mu.Unlock()
	tx.dml = nil
}
