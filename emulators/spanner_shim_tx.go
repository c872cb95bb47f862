package emulators

import (
	"context"
	"strings"
	"sync"
	"time"

	"cloud.google.com/go/spanner/apiv1/spannerpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// spannerTxState is the state of a transaction of the shim.
type spannerTxState int

const (
	spannerTxOpen spannerTxState = iota
	spannerTxCommitting
	spannerTxCommitted
	spannerTxFailed // the commit failed; rolled back
	spannerTxRolledBack
	spannerTxAborted
)

// spannerTx is a read-write or partitioned DML transaction. While it is open, no other transaction
// uses its session.
type spannerTx struct {
	shim        *spannerShim
	id          string // the client's id
	database    string
	session     string
	emulatorID  []byte // the emulator's id
	partitioned bool

	mu     sync.Mutex
	state  spannerTxState
	busy   int         // calls in flight
	idle   *time.Timer // expires the transaction; runs while no call is in flight
	commit *spannerCommit
	dml    map[int64]*spannerReply
}

// spannerCommit is the result of a commit, shared by all calls that ask for it: on the service a
// Commit may be repeated until its reply arrives.
type spannerCommit struct {
	done chan struct{}
	res  *spannerpb.CommitResponse
	err  error
}

// begin begins a transaction. It uses only the metadata of the client's context and not its
// deadline, because a transaction that has begun must be recorded.
func (s *spannerShim) begin(client context.Context, req *spannerpb.BeginTransactionRequest) (*spannerTx, *spannerpb.Transaction, error) {
	database := spannerDatabaseOf(req)
	req = shallow(req)
	req.MutationKey = nil
	req.Options = withoutPrevious(req.Options)
	var began *spannerpb.Transaction
	session, err := s.onSession(s.ctx, database, func(session string) (err error) {
		req.Session = session
		began, err = s.client.BeginTransaction(spannerOutgoing(s.ctx, client), req)
		return err
	})
	if err != nil {
		return nil, nil, retriable(err)
	}
	tx := &spannerTx{
		shim: s, id: spannerID(session, began.Id), database: database, session: session, emulatorID: began.Id,
		partitioned: req.Options.GetPartitionedDml() != nil, dml: map[int64]*spannerReply{},
	}
	tx.mu.Lock()
	tx.idle = time.AfterFunc(s.idle, tx.expire)
	tx.mu.Unlock()
	s.mu.Lock()
	s.txs[tx.id] = tx
	s.mu.Unlock()
	began.Id = []byte(tx.id)
	return tx, began, nil
}

// withoutPrevious removes the id of the previous attempt, which is the shim's and unknown to the
// emulator.
func withoutPrevious(options *spannerpb.TransactionOptions) *spannerpb.TransactionOptions {
	if options.GetReadWrite() == nil {
		return options
	}
	options = proto.CloneOf(options) // it is small
	options.GetReadWrite().MultiplexedSessionPreviousTransactionId = nil
	return options
}

// enter starts a read or query of the transaction; leave ends it.
func (tx *spannerTx) enter() error {
	tx.mu.Lock()
	defer tx.mu.Unlock()
	switch tx.state {
	case spannerTxOpen:
		tx.busy++
		tx.idle.Stop()
		return nil
	case spannerTxAborted:
		return errSpannerTxAborted()
	default:
		return status.Error(codes.FailedPrecondition, "Cannot start a read or query within a transaction after Commit() or Rollback() has been called.")
	}
}

func (tx *spannerTx) leave() {
	tx.mu.Lock()
	defer tx.mu.Unlock()
	if tx.busy--; tx.busy == 0 && tx.state == spannerTxOpen {
		tx.idle.Reset(tx.shim.idle)
	}
}

func errSpannerTxAborted() error { return spannerAborted("Transaction was aborted.") }

// expire aborts a transaction that has been idle for too long.
func (tx *spannerTx) expire() {
	tx.mu.Lock()
	busy := tx.busy > 0
	tx.mu.Unlock()
	if !busy {
		tx.abort()
	}
}

// abort rolls the transaction back, so that its further calls get ABORTED. It reports false for a
// transaction that is or may be committed, or that its client has rolled back.
func (tx *spannerTx) abort() bool {
	tx.mu.Lock()
	switch tx.state {
	case spannerTxAborted:
		tx.mu.Unlock()
		return true
	case spannerTxOpen:
	default:
		tx.mu.Unlock()
		return false
	}
	tx.state = spannerTxAborted
	tx.idle.Stop()
	tx.mu.Unlock()
	tx.release()
	return true
}

// release rolls the transaction back in the emulator, which can then run others, and releases the
// session.
func (tx *spannerTx) release() {
	if !tx.partitioned {
		ctx, cancel := context.WithTimeout(tx.shim.ctx, spannerAnswerTimeout)
		defer cancel()
		// An error means that the emulator has dropped the transaction itself.
		_, _ = tx.shim.client.Rollback(ctx, &spannerpb.RollbackRequest{Session: tx.session, TransactionId: tx.emulatorID})
	}
	tx.forgetReplies() // repeated calls are refused before they look for a reply
	tx.shim.finishTx(tx)
}

// mapError returns the client's error for an error of the emulator in this transaction.
func (tx *spannerTx) mapError(err error) error {
	if (status.Code(err) == codes.Aborted || isTransactionLost(err)) && tx.abort() {
		return spannerAborted("%s", status.Convert(err).Message())
	}
	return err
}

// isTransactionLost reports whether an error means that the emulator no longer has the transaction.
// The emulator runs one read-write transaction per database at a time. A later one may have
// replaced it, which the emulator reports in several ways. On the service, too, a transaction may
// have to yield to others; it then gets ABORTED.
//
// The error codes are shared with other errors, so the messages decide. A client cannot cause these
// errors by itself, because only the shim ends the transactions on its sessions.
func isTransactionLost(err error) bool {
	message := status.Convert(err).Message()
	switch status.Code(err) {
	case codes.NotFound:
		return strings.HasPrefix(message, "Transaction not found")
	case codes.FailedPrecondition:
		return strings.HasPrefix(message, "Invalid transaction ID") ||
			strings.HasPrefix(message, "Cannot read or query using a transaction after it has been committed or rolledback") ||
			strings.HasPrefix(message, "Cannot commit a transaction after it has been rolled back")
	}
	return false
}

// retriable adds the retry delay to the emulator's ABORTED, so that clients rerun the transaction
// soon.
func retriable(err error) error {
	if status.Code(err) == codes.Aborted {
		return spannerAborted("%s", status.Convert(err).Message())
	}
	return err
}
