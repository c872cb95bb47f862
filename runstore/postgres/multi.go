package postgres

import (
	"bytes"
	"context"
	"errors"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter/outcome"
	"github.com/tapestore/tapestore/runstore/adapter/rules"
)

// CommitMulti implements runstore.MultiCommitter, in one transaction and one round trip;
// purges take more.
func (e *engine) CommitMulti(ctx context.Context, batches []runstore.Batch) ([]runstore.Committed, error) {
	requests := make([]*request, len(batches))
	for i, b := range batches {
		requests[i] = commitRequest(b)
		requests[i].write.sharedTime = true
	}
	done, err := e.performMulti(ctx, batches, requests)
	for _, b := range batches {
		switch {
		case !b.Purge:
		case err == nil:
			e.collectAfter(ctx, b.Run())
		default:
			e.collectIfUnknown(err)
		}
	}
	return done, err
}

// performMulti is perform for batches of several runs, which are applied together or not at all.
func (e *engine) performMulti(ctx context.Context, batches []runstore.Batch, requests []*request) (done []runstore.Committed, err error) {
	err = e.retry(ctx, func() (err error) {
		for _, r := range requests {
			r.nonce = newNonce()
		}
		done, err = e.commitAll(ctx, batches, requests)
		return err
	}, func(t *outcome.Backoff) (applied bool, err error) {
		done, err = e.settleAll(ctx, requests, rules.MultiCommitID(batches), t)
		return done != nil, err
	})
	if err != nil {
		return nil, err
	}
	e.notifier.committed(requests...)
	return done, nil
}

// settleAll settles every batch of an ambiguous commit. The commit was applied to all runs if this
// attempt applied one batch (statusApplied), or if one run has the result of an earlier call, which it
// stored with the multi-commit id whole. A run that was purged since, or has evicted its result, then
// has no result left; its Committed has only Replayed set. A result without that id is of another
// commit with the same batch id, and proves nothing.
//
// If no run has a trace of the commit, and none can have lost it, the commit was not applied, and the
// voided nonces keep a late copy of it from being applied.
func (e *engine) settleAll(ctx context.Context, requests []*request, whole []byte, t *outcome.Backoff) ([]runstore.Committed, error) {
	done := make([]runstore.Committed, len(requests))
	applied, missing := false, false
	var forgotten error
	for i, r := range requests {
		switch a, err := e.settle(ctx, r, t); {
		case err == nil && a != nil:
			done[i] = a.committed()
			applied = applied || a.status == statusApplied || whole != nil && bytes.Equal(a.whole, whole)
		case err == nil:
			done[i].Replayed, missing = true, true
		case errors.Is(err, errEvicted), errors.Is(err, errPurged):
			done[i].Replayed, missing, forgotten = true, true, err
		default:
			return nil, err
		}
	}
	if applied || !missing {
		return done, nil
	}
	return nil, forgotten
}

// codeRefused is the SQLSTATE that tapestore.require_applied raises when a batch is refused.
const codeRefused = "TS001"

// commitAll sends all batches in one round trip, which is one transaction. If a batch is refused, the error is
// definite.
func (e *engine) commitAll(ctx context.Context, batches []runstore.Batch, requests []*request) ([]runstore.Committed, error) {
	runs, ids := make([][]byte, len(requests)), make([][]byte, len(requests))
	lock := &statement{sql: sqlMultiLock, args: []any{runs, ids, rules.MultiCommitID(batches)}}
	all := []*statement{lock}
	for i, r := range requests {
		runs[i], ids[i] = []byte(r.run), r.resultKey
		st := &statement{sql: sqlWriteDemand, args: r.writeArgs(int64(i) << 10), requests: []*request{r}}
		st.read, st.onConn = st.readWrite, func() { r.sent = e.clock.Read() }
		all = append(all, st)
	}
	for _, b := range batches {
		if b.History() != nil {
			all = append(all, &statement{sql: sqlHistory, args: historyArgs(b)})
		}
	}
	answers, err := e.roundTrip(ctx, all)
	done := make([]runstore.Committed, len(requests))
	for i, b := range batches {
		var server *pgconn.PgError
		if errors.As(all[1+i].err, &server) && server.Code == codeRefused {
			return nil, explainDetail(server.Detail, b)
		}
		if err == nil {
			done[i] = answers[1+i].committed()
		}
	}
	return done, err
}

// explainDetail returns the error of a refused batch, from the detail that tapestore.require_applied raised.
func explainDetail(detail string, b runstore.Batch) error {
	var a writeResult
	if err := a.fromJSON([]byte(detail), b.Run()); err != nil {
		return err
	}
	// The detail, which servers log, contains a hash of the grant id instead of the id.
	f := b.Guards().Fence
	if bytes.Equal(rules.Former(f.Grant()), []byte(a.head.Grant)) {
		a.head.Grant = f.Grant()
	}
	return a.explain(b.Guards())
}
