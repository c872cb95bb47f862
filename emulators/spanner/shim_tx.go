package spanner

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

// txState is the state of a transaction of the shim.
type txState int

const (
	txOpen txState = iota
	txCommitting
	txCommitted
	txFailed // the commit failed; rolled back
	txRolledBack
	txAborted
)

// transaction is a read-write or partitioned DML transaction. While it is open, no other
// transaction uses its session.
type transaction struct {
	shim        *shim
	id          string // the client's id
	database    string
	session     string
	emulatorID  []byte // the emulator's id
	partitioned bool

	mu     sync.Mutex
	state  txState
	busy   int         // calls in flight
	idle   *time.Timer // expires the transaction; runs while no call is in flight
	commit *commitResult
	dml    map[int64]*numberedReply
}

// commitResult is the result of a commit, shared by all calls that ask for it: on the service a
// Commit may be repeated until its reply arrives.
type commitResult struct {
	done chan struct{}
	res  *spannerpb.CommitResponse
	err  error
}

// begin begins a transaction. It uses only the metadata of the client's context and not its
// deadline, because a transaction that has begun must be recorded.
func (s *shim) begin(client context.Context, req *spannerpb.BeginTransactionRequest) (*transaction, *spannerpb.Transaction, error) {
	database := databaseOf(req)
	req = shallow(req)
	req.MutationKey = nil
	req.Options = withoutPrevious(req.Options)
	var began *spannerpb.Transaction
	session, err := s.onSession(s.ctx, database, func(session string) (err error) {
		req.Session = session
		began, err = s.client.BeginTransaction(outgoing(s.ctx, client), req)
		return err
	})
	if err != nil {
		return nil, nil, retriable(err)
	}
	tx := &transaction{
		shim: s, id: txID(session, began.Id), database: database, session: session, emulatorID: began.Id,
		partitioned: req.Options.GetPartitionedDml() != nil, dml: map[int64]*numberedReply{},
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
func (tx *transaction) enter() error {
	tx.mu.Lock()
	defer tx.mu.Unlock()
	switch tx.state {
	case txOpen:
		tx.busy++
		tx.idle.Stop()
		return nil
	case txAborted:
		return errTxAborted()
	default:
		return status.Error(codes.FailedPrecondition, "Cannot start a read or query within a transaction after Commit() or Rollback() has been called.")
	}
}

func (tx *transaction) leave() {
	tx.mu.Lock()
	defer tx.mu.Unlock()
	if tx.busy--; tx.busy == 0 && tx.state == txOpen {
		tx.idle.Reset(tx.shim.idle)
	}
}

func errTxAborted() error { return aborted("Transaction was aborted.") }

// expire aborts a transaction that has been idle for too long.
func (tx *transaction) expire() {
	tx.mu.Lock()
	busy := tx.busy > 0
	tx.mu.Unlock()
	if !busy {
		tx.abort()
	}
}

// abort rolls the transaction back, so that its further calls get ABORTED. It reports false for a
// transaction that is or may be committed, or that its client has rolled back.
func (tx *transaction) abort() bool {
	tx.mu.Lock()
	switch tx.state {
	case txAborted:
		tx.mu.Unlock()
		return true
	case txOpen:
	default:
		tx.mu.Unlock()
		return false
	}
	tx.state = txAborted
	tx.idle.Stop()
	tx.mu.Unlock()
	tx.release()
	return true
}

// release rolls the transaction back in the emulator, which can then run others, and releases the
// session.
func (tx *transaction) release() {
	if !tx.partitioned {
		ctx, cancel := context.WithTimeout(tx.shim.ctx, answerTimeout)
		defer cancel()
		// An error means that the emulator has dropped the transaction itself.
		_, _ = tx.shim.client.Rollback(ctx, &spannerpb.RollbackRequest{Session: tx.session, TransactionId: tx.emulatorID})
	}
	tx.forgetReplies() // repeated calls are refused before they look for a reply
	tx.shim.finishTx(tx)
}

// mapError returns the client's error for an error of the emulator in this transaction.
func (tx *transaction) mapError(err error) error {
	if (status.Code(err) == codes.Aborted || isTransactionLost(err)) && tx.abort() {
		return aborted("%s", status.Convert(err).Message())
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
		return aborted("%s", status.Convert(err).Message())
	}
	return err
}
