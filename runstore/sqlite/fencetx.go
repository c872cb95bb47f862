package sqlite

import (
	"context"
	"database/sql"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter"
	"github.com/tapestore/tapestore/runstore/adapter/rules"
)

// FenceTx fences a transaction of the caller's, on a connection of the caller's to the database
// file of the store, so that the caller's own tables are protected as runs are: the transaction
// commits only if the fence is the run's current grant when it commits.
//
// FenceTx takes SQLite's write lock, which the transaction keeps until its end. No grant is made
// meanwhile, and no other write of any run either, so keep the transaction short and call FenceTx
// right before the changes. A process that is paused in the transaction stops all writers of the
// file until it goes on or ends: its late commit is no late write, because no other holder can have
// been granted the lease.
//
// The connection must be one of modernc.org/sqlite, the driver of the store. Within a process, another
// SQLite library would not see the locks of this one, and could damage the file.
//
// The store must have created the file: it refuses one that another application has begun. Tables
// of the application are added later; user_version and application_id belong to the store.
//
// Begin the transaction as IMMEDIATE, or call FenceTx before the transaction has read anything.
// Otherwise it fails if another connection has written since (SQLITE_BUSY_SNAPSHOT).
//
// On an error FenceTx rolls the transaction back, so that a caller that ignores the error commits
// nothing. Errors: ErrFenced, ErrLeaseExpired (strict leases, judged when FenceTx runs),
// ErrStoreBehind, ErrNotFound; ErrInvalid without a fence; ErrUnavailable, with the driver's error as
// its cause, if a statement failed, for example because the file was locked for longer than the
// connection's busy_timeout.
func (s *Store) FenceTx(ctx context.Context, tx *sql.Tx, f runstore.Fence) error {
	err := s.checkFence(ctx, tx, f)
	if err == nil {
		return nil
	}
	_ = tx.Rollback() // a transaction that cannot be rolled back cannot commit either
	switch runstore.KindOf(err) {
	case runstore.ErrInvalid:
		return err
	case runstore.ErrFenced, runstore.ErrLeaseExpired, runstore.ErrStoreBehind, runstore.ErrNotFound, runstore.ErrClosed:
		return &runstore.OpError{Op: "fence transaction", Run: f.Run(), Err: err}
	default:
		return &runstore.OpError{Op: "fence transaction", Run: f.Run(), Err: runstore.ErrUnavailable, Cause: err}
	}
}

// checkFence takes the write lock and judges the fence.
func (s *Store) checkFence(ctx context.Context, tx *sql.Tx, f runstore.Fence) error {
	if f.IsZero() {
		return adapter.Invalid("fence", "is missing")
	}
	locked, err := tx.ExecContext(ctx, sqlFenceLock, []byte(f.Run()))
	if err != nil {
		return err
	}
	if n, err := locked.RowsAffected(); err != nil {
		return err
	} else if n == 0 {
		return runstore.ErrNotFound
	}
	var token, state, strict, expires, epoch int64
	var grant string
	var owner, reactor []byte
	if err := tx.QueryRowContext(ctx, sqlFenceRead, []byte(f.Run())).Scan(&token, &grant, &state, &owner, &reactor, &strict, &expires, &epoch); err != nil {
		return err
	}
	var now time.Time
	if err := s.engine.read(ctx, func(*conn) error {
		now, _ = s.engine.clock.now() // unlike Now it never writes, which the transaction would block
		return nil
	}); err != nil {
		return err
	}
	head := rules.Head{
		Run:   runstore.Run{ID: f.Run(), Token: runstore.Token(token), ExpiresAt: runstore.FromMicros(expires)},
		Grant: runstore.GrantID(grant), State: rules.GrantState(state), Epoch: runstore.Epoch(epoch),
	}
	if head.State == rules.Current {
		head.Holder = runstore.Holder{
			Owner: runstore.Owner(owner), Reactor: runstore.Reactor(reactor), Token: head.Token, ExpiresAt: head.ExpiresAt, Strict: strict != 0,
		}
	}
	return head.Fence(f, now)
}
