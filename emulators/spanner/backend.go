package spanner

import (
	"context"
	"path"
	"sync"
	"time"

	"cloud.google.com/go/spanner/apiv1/spannerpb"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/tapestore/tapestore/internal/grpcproxy"
)

// backend is one process of the emulator, from start to end, with the proxy's state of its
// transactions.
type backend struct {
	conn    *grpc.ClientConn
	forward grpc.StreamHandler
	shim    *shim // nil if transactions are passed on unchanged
	txLog   txLog // of transactions that are passed on unchanged
}

func newBackend(conn *grpc.ClientConn, shimmed bool, idle time.Duration) *backend {
	b := &backend{conn: conn, forward: grpcproxy.Handler(conn), txLog: txLog{committed: map[string]bool{}}}
	if shimmed {
		b.shim = newShim(conn, idle)
	}
	return b
}

// close ends the RPCs in flight.
func (b *backend) close() error {
	if b.shim != nil {
		b.shim.close()
	}
	return b.conn.Close()
}

// deleteSessions deletes the proxy's sessions from an emulator that keeps running.
func (b *backend) deleteSessions(ctx context.Context) error {
	if b.shim == nil {
		return nil
	}
	return b.shim.deleteSessions(ctx)
}

// databaseDropped removes the state of a database that was dropped.
func (b *backend) databaseDropped(database string) {
	if b.shim != nil {
		b.shim.databaseDropped(database)
	}
}

// isReadWrite reports whether a request begins, belongs to, commits or rolls back a read-write
// transaction.
func (b *backend) isReadWrite(req proto.Message) bool {
	switch req := req.(type) {
	case *spannerpb.CommitRequest, *spannerpb.RollbackRequest, *spannerpb.ExecuteBatchDmlRequest, *spannerpb.BatchWriteRequest:
		return true
	case *spannerpb.BeginTransactionRequest:
		return req.GetOptions().GetReadWrite() != nil
	case statement:
		selector := req.GetTransaction()
		return selector.GetBegin().GetReadWrite() != nil || selector.GetSingleUse().GetReadWrite() != nil ||
			b.isReadWriteID(req.GetSession(), selector.GetId())
	}
	return false
}

// isReadWriteID reports whether an id is that of a read-write transaction.
func (b *backend) isReadWriteID(session string, id []byte) bool {
	if id == nil {
		return false
	}
	if b.shim != nil {
		tx := b.shim.find(id)
		return tx != nil && !tx.partitioned
	}
	known, _ := b.txLog.lookup(txID(session, id))
	return known
}

// execute passes an RPC to the emulator and its reply back.
func (b *backend) execute(a *rpc, method string, req proto.Message) error {
	if b.shim != nil {
		if handled, err := b.shim.serve(a, method, req); handled {
			return err
		}
		return b.forward(nil, a)
	}
	id := transactionOf(req)
	if commit, ok := req.(*spannerpb.CommitRequest); ok && id != nil {
		a.inspect = func([]byte) { b.txLog.add(txID(commit.Session, id), true) }
	} else if b.isReadWrite(req) && id == nil {
		a.inspect = func(first []byte) {
			if session, id := begunBy(path.Base(method), req, first); id != nil {
				b.txLog.add(txID(session, id), false)
			}
		}
	}
	return b.forward(nil, a)
}

// abort rolls back the request's transaction, if any, so that the request may be answered with
// ABORTED. It reports false where that would be untrue: for a transaction that is committed or
// unknown.
func (b *backend) abort(req proto.Message) bool {
	id := transactionOf(req)
	if id == nil {
		return true
	}
	if b.shim != nil {
		tx := b.shim.find(id)
		return tx != nil && tx.abort()
	}
	named, ok := req.(interface{ GetSession() string })
	if !ok {
		return false
	}
	if _, committed := b.txLog.lookup(txID(named.GetSession(), id)); committed {
		return false
	}
	ctx, cancel := context.WithTimeout(context.Background(), answerTimeout)
	defer cancel()
	_, err := spannerpb.NewSpannerClient(b.conn).Rollback(ctx, &spannerpb.RollbackRequest{Session: named.GetSession(), TransactionId: id})
	return err == nil
}

// begunBy returns the session and the id of the transaction that a request began, from the
// first message of its reply; a nil id means none.
func begunBy(method string, req proto.Message, first []byte) (session string, id []byte) {
	if named, ok := req.(interface{ GetSession() string }); ok {
		session = named.GetSession()
	}
	switch method {
	case "BeginTransaction":
		var t spannerpb.Transaction
		if proto.Unmarshal(first, &t) == nil {
			return session, t.Id
		}
	case "ExecuteBatchDml":
		var r spannerpb.ExecuteBatchDmlResponse
		if proto.Unmarshal(first, &r) == nil && len(r.ResultSets) > 0 {
			return session, r.ResultSets[0].GetMetadata().GetTransaction().GetId()
		}
	case "ExecuteSql", "Read":
		var r spannerpb.ResultSet
		if proto.Unmarshal(first, &r) == nil {
			return session, r.GetMetadata().GetTransaction().GetId()
		}
	case "ExecuteStreamingSql", "StreamingRead":
		var r spannerpb.PartialResultSet
		if proto.Unmarshal(first, &r) == nil {
			return session, r.GetMetadata().GetTransaction().GetId()
		}
	}
	return session, nil
}

// txLog holds the ids of read-write transactions that are passed on unchanged, and whether
// they are known to be committed.
type txLog struct {
	mu        sync.Mutex
	committed map[string]bool
	order     []string
}

// lookup reports whether the transaction is known, and whether it is committed.
func (n *txLog) lookup(id string) (known, committed bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	committed, known = n.committed[id]
	return known, committed
}

// add records a transaction. Only the last 10,000 are kept, because not every transaction's end is
// seen.
func (n *txLog) add(id string, committed bool) {
	const most = 10_000
	n.mu.Lock()
	defer n.mu.Unlock()
	if _, ok := n.committed[id]; !ok {
		n.order = append(n.order, id)
	}
	if n.committed[id] = committed; len(n.order) > most {
		delete(n.committed, n.order[0])
		n.order = n.order[1:]
	}
}
