package spanner

import (
	"context"
	"time"

	"cloud.google.com/go/spanner/apiv1/spannerpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/tapestore/tapestore/emulators/internal/host"
)

// commit answers a Commit. A repeated Commit of a transaction gets the same reply each time.
// Replies are kept for the last 10,000 transactions.
func (s *shim) commit(a *rpc, req *spannerpb.CommitRequest) error {
	var c *commitResult
	if req.GetSingleUseTransaction() != nil {
		c = s.commitOnce(a.ServerStream.Context(), req)
	} else {
		tx := s.find(req.GetTransactionId())
		if tx == nil {
			// Not ABORTED: that would say that nothing was changed.
			return status.Error(codes.NotFound, "Transaction not found.")
		}
		c = tx.startCommit(a.ServerStream.Context(), req)
	}
	select {
	case <-c.done:
	case <-a.Context().Done():
		return status.FromContextError(a.Context().Err()).Err()
	}
	if c.err != nil {
		return c.err
	}
	return sendMessage(a, c.res)
}

// failedCommit returns a commit that has failed with err.
func failedCommit(err error) *commitResult {
	c := &commitResult{done: make(chan struct{}), err: err}
	close(c.done)
	return c
}

// startCommit starts the transaction's commit, or returns the commit that was started before.
func (tx *transaction) startCommit(client context.Context, req *spannerpb.CommitRequest) *commitResult {
	tx.mu.Lock()
	defer tx.mu.Unlock()
	switch tx.state {
	case txOpen:
	case txAborted:
		return failedCommit(errTxAborted())
	case txRolledBack:
		return failedCommit(status.Error(codes.FailedPrecondition, "Cannot commit a transaction after it has been rolled back."))
	default:
		return tx.commit
	}
	req = shallow(req)
	req.Session, req.Transaction = tx.session, &spannerpb.CommitRequest_TransactionId{TransactionId: tx.emulatorID}
	req.PrecommitToken = nil
	tx.commit = &commitResult{done: make(chan struct{})}
	if !tx.shim.background(func() { tx.runCommit(client, req) }) {
		return failedCommit(errStopped)
	}
	tx.state = txCommitting
	tx.idle.Stop()
	return tx.commit
}

// runCommit commits even if the client no longer waits: the client may ask again. A transaction
// that could not be committed is rolled back before its client gets the error, so that other
// transactions can run by then.
func (tx *transaction) runCommit(client context.Context, req *spannerpb.CommitRequest) {
	c := tx.commit
	defer close(c.done)
	c.res, c.err = tx.shim.client.Commit(outgoing(tx.shim.ctx, client), req)
	state := txCommitted
	switch {
	case c.err == nil:
	case status.Code(c.err) == codes.Aborted, isTransactionLost(c.err):
		state = txAborted
		c.err = aborted("%s", status.Convert(c.err).Message())
	default:
		state = txFailed
	}
	tx.mu.Lock()
	tx.state = state
	tx.mu.Unlock()
	if state == txCommitted {
		tx.forgetReplies()
		tx.shim.finishTx(tx)
	} else {
		tx.release()
	}
}

// commitOnce commits mutations without a transaction. As on the service, a repeated call may apply
// them again.
func (s *shim) commitOnce(client context.Context, req *spannerpb.CommitRequest) *commitResult {
	database := databaseOf(req)
	req = shallow(req)
	req.PrecommitToken = nil
	req.Transaction = &spannerpb.CommitRequest_SingleUseTransaction{SingleUseTransaction: withoutPrevious(req.GetSingleUseTransaction())}
	c := &commitResult{done: make(chan struct{})}
	if !s.background(func() {
		defer close(c.done)
		var session string
		session, c.err = s.onSession(s.ctx, database, func(session string) (err error) {
			req.Session = session
			c.res, err = s.client.Commit(outgoing(s.ctx, client), req)
			return err
		})
		if c.err == nil {
			s.releaseSession(database, session)
		}
		c.err = retriable(c.err)
	}) {
		return failedCommit(errStopped)
	}
	return c
}

// rollback answers a Rollback.
func (s *shim) rollback(a *rpc, req *spannerpb.RollbackRequest) error {
	if tx := s.find(req.TransactionId); tx != nil {
		if err := tx.rollback(a.Context()); err != nil {
			return err
		}
	}
	// An unknown transaction counts as rolled back, as on the service.
	return a.sendFrame(nil)
}

// rollback rolls the transaction back, after a commit in flight has ended.
func (tx *transaction) rollback(ctx context.Context) error {
	tx.mu.Lock()
	if tx.state == txCommitting {
		done := tx.commit.done
		tx.mu.Unlock()
		select {
		case <-done:
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		}
		tx.mu.Lock()
	}
	switch tx.state {
	case txOpen:
		tx.state = txRolledBack
		tx.idle.Stop()
		tx.mu.Unlock()
		tx.release()
		return nil
	case txCommitted:
		tx.mu.Unlock()
		return status.Error(codes.FailedPrecondition, "Cannot rollback a transaction after it has been committed.")
	}
	tx.mu.Unlock()
	return nil
}

// batchWrite implements BatchWrite, which the emulator lacks: it commits each group by itself,
// which is all that the service promises. A group waits while another transaction blocks it.
func (s *shim) batchWrite(a *rpc, req *spannerpb.BatchWriteRequest) error {
	for i, group := range req.MutationGroups {
		c := s.commitGroup(a, req, group)
		if err := a.Context().Err(); err != nil {
			return status.FromContextError(err).Err()
		}
		res := &spannerpb.BatchWriteResponse{Indexes: []int32{int32(i)}}
		if res.Status = status.Convert(c.err).Proto(); c.err == nil {
			res.Status, res.CommitTimestamp = status.New(codes.OK, "").Proto(), c.res.CommitTimestamp
		}
		if err := sendMessage(a, res); err != nil {
			return err
		}
	}
	return nil
}

// commitGroup commits one group of mutations and retries while it is aborted.
func (s *shim) commitGroup(a *rpc, req *spannerpb.BatchWriteRequest, group *spannerpb.BatchWriteRequest_MutationGroup) *commitResult {
	ticker := time.NewTicker(host.PollInterval)
	defer ticker.Stop()
	for until := time.Now().Add(answerTimeout); ; {
		c := s.commitOnce(a.ServerStream.Context(), &spannerpb.CommitRequest{
			Session: req.Session, RequestOptions: proto.CloneOf(req.RequestOptions), Mutations: group.Mutations,
			Transaction: &spannerpb.CommitRequest_SingleUseTransaction{SingleUseTransaction: readWrite()},
		})
		<-c.done // closes at the end of the shim at the latest
		if status.Code(c.err) != codes.Aborted || time.Now().After(until) {
			return c
		}
		select {
		case <-ticker.C:
		case <-a.Context().Done():
			return c
		}
	}
}
