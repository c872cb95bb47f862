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

// Where a transaction of the shim is in its life.
type spannerTxState int

const (
	spannerTxOpen spannerTxState = iota
	spannerTxCommitting
	spannerTxCommitted
	spannerTxFailed // to commit, and rolled back
	spannerTxRolledBack
	spannerTxAborted
)

// spannerTx is a read-write transaction, or one of partitioned DML, which is on a
// session of its own as long as it is open.
type spannerTx struct {
	shim        *spannerShim
	id          string // as the client knows it
	database    string
	session     string
	emulatorID  []byte // id, as the emulator knows it
	partitioned bool

	mu     sync.Mutex
	state  spannerTxState
	busy   int         // calls under way
	idle   *time.Timer // runs while there are none
	commit *spannerCommit
	dml    map[int64]*spannerReply
}

// spannerCommit is what came of a commit, for everybody who asks for it: on the service
// a Commit may be repeated until its answer arrives.
type spannerCommit struct {
	done chan struct{}
	res  *spannerpb.CommitResponse
	err  error
}

// begin begins a transaction. The client's context is only for what it says: a
// transaction that has begun must be known.
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

// withoutPrevious drops the id of the attempt before: it is none of the emulator's.
func withoutPrevious(options *spannerpb.TransactionOptions) *spannerpb.TransactionOptions {
	if options.GetReadWrite() == nil {
		return options
	}
	options = proto.CloneOf(options) // it is small
	options.GetReadWrite().MultiplexedSessionPreviousTransactionId = nil
	return options
}

// enter begins a read or query of the transaction, which leave ends.
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

// expire ends a transaction of which nobody has heard for long.
func (tx *spannerTx) expire() {
	tx.mu.Lock()
	busy := tx.busy > 0
	tx.mu.Unlock()
	if !busy {
		tx.abort()
	}
}

// abort rolls the transaction back, so that whatever is asked of it is answered with
// ABORTED. It reports false for one that has been committed, or may have been, or was
// rolled back by its client.
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

// release rolls back what is left of the transaction in the emulator, which then may
// give others their turn, and gives back the session.
func (tx *spannerTx) release() {
	if !tx.partitioned {
		ctx, cancel := context.WithTimeout(tx.shim.ctx, spannerAnswerTimeout)
		defer cancel()
		// Its failure is the emulator's: that has dropped the transaction itself.
		_, _ = tx.shim.client.Rollback(ctx, &spannerpb.RollbackRequest{Session: tx.session, TransactionId: tx.emulatorID})
	}
	tx.forgetReplies() // repeated calls don't get there any more
	tx.shim.finishTx(tx)
}

// failed is what the client is told of an error of the emulator in this transaction.
func (tx *spannerTx) mapError(err error) error {
	if (status.Code(err) == codes.Aborted || isTransactionLost(err)) && tx.abort() {
		return spannerAborted("%s", status.Convert(err).Message())
	}
	return err
}

// isTransactionLost tells whether an error is about a transaction that the emulator no longer
// has. The emulator runs one read-write transaction per database at a time; a later one
// may have taken the place of ours, and there is more than one way in which it says so.
// On the service a transaction has to yield to others too, and is told ABORTED.
//
// Their codes are those of other errors too, so the messages decide; a client cannot
// bring them about by itself, because nobody but the shim ends what is on its sessions.
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

// retriable makes clients run a transaction again that the emulator aborts.
func retriable(err error) error {
	if status.Code(err) == codes.Aborted {
		return spannerAborted("%s", status.Convert(err).Message())
	}
	return err
}
