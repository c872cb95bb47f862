package spanner

import (
	"cmp"
	"context"

	"cloud.google.com/go/spanner"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter"
)

// FenceTx fences a read-write transaction of the caller's, in the database of the store, so that
// the caller's own tables are protected as runs are: the transaction commits only if the fence is
// the run's current grant when it commits.
//
// FenceTx locks the run's row (an exclusive lock, by one statement). Spanner keeps the lock until
// the commit or aborts the transaction, so every change comes before the next grant. The holder's
// own commits and heartbeats wait too, so keep the transaction shorter than a heartbeat. Spanner
// may abort a transaction that is idle for 10 s, so that a paused process does not keep its
// successor waiting.
//
// The store must have been opened in the database before it got tables of the caller's: it refuses
// to create its own beside others.
//
// Call FenceTx in the function that the client reruns, and return its error from there unchanged:
// an aborted transaction is run again, with a new check. After any other error FenceTx has added a
// mutation that fails, so that a caller that ignores the error commits nothing.
//
// Errors: ErrFenced, ErrLeaseExpired (strict leases, judged when FenceTx runs), ErrStoreBehind,
// ErrNotFound; ErrInvalid without a fence; the client's own error if the statement failed.
func (s *Store) FenceTx(ctx context.Context, tx *spanner.ReadWriteTransaction, f runstore.Fence) error {
	err := s.engine.checkFence(ctx, tx, f)
	if err == nil {
		return nil
	}
	// The row exists, so the commit fails.
	_ = tx.BufferWrite([]*spanner.Mutation{spanner.Insert("Store", []string{"One", "Epoch", "Incarnation", "Ended"}, []any{1, 0, "", true})}) // fails for a transaction that has ended
	switch runstore.KindOf(err) {
	case runstore.ErrFenced, runstore.ErrLeaseExpired, runstore.ErrStoreBehind, runstore.ErrNotFound:
		return &runstore.OpError{Op: "fence transaction", Run: f.Run(), Err: err}
	default:
		return err
	}
}

// checkFence locks the run's row and judges the fence.
func (s *engine) checkFence(ctx context.Context, tx *spanner.ReadWriteTransaction, f runstore.Fence) error {
	if f.IsZero() {
		return adapter.Invalid("fence", "is missing")
	}
	all, err := s.guard(ctx, tx, []*request{{run: f.Run()}}, false)
	if err != nil {
		return err
	}
	g := all[0]
	refusal, err := s.judge(ctx, tx, g, func() error {
		head, err := g.judged()
		if err != nil {
			return err
		}
		return head.Fence(f, g.now())
	})
	return cmp.Or(err, refusal)
}
