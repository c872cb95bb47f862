package emulators

import (
	"context"
	"time"

	"cloud.google.com/go/spanner/apiv1/spannerpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// commit answers a Commit. A repeated Commit of a transaction gets the same reply each time.
// Replies are kept for the last 10,000 transactions.
func (s *spannerShim) commit(a *spannerRPC, req *spannerpb.CommitRequest) error {
	var c *spannerCommit
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
	return sendSpanner(a, c.res)
}

// failedCommit returns a commit that has failed with err.
func failedCommit(err error) *spannerCommit {
	c := &spannerCommit{done: make(chan struct{}), err: err}
	close(c.done)
	return c
}

// startCommit starts the transaction's commit, or returns the commit that was started before.
func (tx *spannerTx) startCommit(client context.Context, req *spannerpb.CommitRequest) *spannerCommit {
	tx.mu.Lock()
	defer tx.mu.Unlock()
	switch tx.state {
	case spannerTxOpen:
	case spannerTxAborted:
		return failedCommit(errSpannerTxAborted())
	case spannerTxRolledBack:
		return failedCommit(status.Error(codes.FailedPrecondition, "Cannot commit a transaction after it has been rolled back."))
	default:
		return tx.commit
	}
	req = shallow(req)
	req.Session, req.Transaction = tx.session, &spannerpb.CommitRequest_TransactionId{TransactionId: tx.emulatorID}
	req.PrecommitToken = nil
	tx.commit = &spannerCommit{done: make(chan struct{})}
	if !tx.shim.background(func() { tx.runCommit(client, req) }) {
		return failedCommit(errSpannerStopped)
	}
	tx.state = spannerTxCommitting
	tx.idle.Stop()
	return tx.commit
}

// runCommit commits even if the client no longer waits: the client may ask again. A transaction
// that could not be committed is rolled back before its client gets the error, so that other
// transactions can run by then.
func (tx *spannerTx) runCommit(client context.Context, req *spannerpb.CommitRequest) {
	c := tx.commit
	defer close(c.done)
	c.res, c.err = tx.shim.client.Commit(spannerOutgoing(tx.shim.ctx, client), req)
	state := spannerTxCommitted
	switch {
	case c.err == nil:
	case status.Code(c.err) == codes.Aborted, isTransactionLost(c.err):
		state = spannerTxAborted
		c.err = spannerAborted("%s", status.Convert(c.err).Message())
	default:
		state = spannerTxFailed
	}
	tx.mu.Lock()
	tx.state = state
	tx.mu.Unlock()
	if state == spannerTxCommitted {
		tx.forgetReplies()
		tx.shim.finishTx(tx)
	} else {
		tx.release()
	}
}

// commitOnce commits mutations without a transaction. As on the service, a repeated call may apply
// them again.
func (s *spannerShim) commitOnce(client context.Context, req *spannerpb.CommitRequest) *spannerCommit {
	database := spannerDatabaseOf(req)
	req = shallow(req)
	req.PrecommitToken = nil
	req.Transaction = &spannerpb.CommitRequest_SingleUseTransaction{SingleUseTransaction: withoutPrevious(req.GetSingleUseTransaction())}
	c := &spannerCommit{done: make(chan struct{})}
	if !s.background(func() {
		defer close(c.done)
		var session string
		session, c.err = s.onSession(s.ctx, database, func(session string) (err error) {
			req.Session = session
			c.res, err = s.client.Commit(spannerOutgoing(s.ctx, client), req)
			return err
		})
		if c.err == nil {
			s.releaseSession(database, session)
		}
		c.err = retriable(c.err)
	}) {
		return failedCommit(errSpannerStopped)
	}
	return c
}

// rollback answers a Rollback.
func (s *spannerShim) rollback(a *spannerRPC, req *spannerpb.RollbackRequest) error {
	if tx := s.find(req.TransactionId); tx != nil {
		if err := tx.rollback(a.Context()); err != nil {
			return err
		}
	}
	// An unknown transaction counts as rolled back, as on the service.
	return a.sendFrame(nil)
}

// rollback rolls the transaction back, after a commit in flight has ended.
func (tx *spannerTx) rollback(ctx context.Context) error {
	tx.mu.Lock()
	if tx.state == spannerTxCommitting {
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
	case spannerTxOpen:
		tx.state = spannerTxRolledBack
		tx.idle.Stop()
		tx.mu.Unlock()
		tx.release()
		return nil
	case spannerTxCommitted:
		tx.mu.Unlock()
		return status.Error(codes.FailedPrecondition, "Cannot rollback a transaction after it has been committed.")
	}
	tx.mu.Unlock()
	return nil
}

// batchWrite implements BatchWrite, which the emulator lacks: it commits each group by itself,
// which is all that the service promises. A group waits while another transaction blocks it.
func (s *spannerShim) batchWrite(a *spannerRPC, req *spannerpb.BatchWriteRequest) error {
	for i, group := range req.MutationGroups {
		c := s.commitGroup(a, req, group)
		if err := a.Context().Err(); err != nil {
			return status.FromContextError(err).Err()
		}
		res := &spannerpb.BatchWriteResponse{Indexes: []int32{int32(i)}}
		if res.Status = status.Convert(c.err).Proto(); c.err == nil {
			res.Status, res.CommitTimestamp = status.New(codes.OK, "").Proto(), c.res.CommitTimestamp
		}
		if err := sendSpanner(a, res); err != nil {
			return err
		}
	}
	return nil
}

// commitGroup commits one group of mutations and retries while it is aborted.
func (s *spannerShim) commitGroup(a *spannerRPC, req *spannerpb.BatchWriteRequest, group *spannerpb.BatchWriteRequest_MutationGroup) *spannerCommit {
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for until := time.Now().Add(spannerAnswerTimeout); ; {
		c := s.commitOnce(a.ServerStream.Context(), &spannerpb.CommitRequest{
			Session: req.Session, RequestOptions: proto.CloneOf(req.RequestOptions), Mutations: group.Mutations,
			Transaction: &spannerpb.CommitRequest_SingleUseTransaction{SingleUseTransaction: spannerReadWrite()},
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
