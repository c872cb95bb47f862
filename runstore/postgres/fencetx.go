package postgres

import (
	"context"
	"database/sql"
	"errors"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter"
)

// FenceTx fences a transaction of the caller's, on a connection of the caller's to the database of
// the store, so that the caller's own tables are protected as runs are: the transaction commits only
// if the fence is the run's current grant when it commits.
//
// FenceTx locks the run's row until the transaction ends. A takeover waits for that, so every
// change of the transaction comes before the next grant. The holder's own commits and heartbeats
// wait too, so keep the transaction shorter than a heartbeat, and call FenceTx right before the
// changes. If the process is paused in the transaction, the server ends the session after
// Options.LockTimeout and undoes the changes (idle_in_transaction_session_timeout, set for this
// transaction only).
//
// Call FenceTx outside of savepoints and nested transactions: a rollback to a savepoint would release
// the lock. The feed of all runs shows no event that is committed after FenceTx until the
// transaction has ended. The transaction's role needs SELECT and UPDATE on tapestore.runs, and SELECT
// on tapestore.store.
//
// FenceTx judges by the server that the transaction is on. After a failover that lost commits, the
// store raises the epoch on the first connection that it makes itself, and until then a transaction
// of the caller's finds the grants of before the loss.
//
// On an error FenceTx rolls the transaction back, with the transaction around it if tx is nested, so
// that a caller that ignores the error commits nothing. Errors: ErrFenced, ErrLeaseExpired (strict
// leases, judged when FenceTx runs), ErrStoreBehind, ErrNotFound; ErrInvalid without a fence or
// inside of a savepoint; ErrUnavailable, with the driver's error as its cause, if a statement
// failed, for example because the transaction is serializable and the row has changed since it
// began (SQLSTATE 40001).
func (s *Store) FenceTx(ctx context.Context, tx pgx.Tx, f runstore.Fence) error {
	return s.fenceTx(f, func(text string, args []any, targets ...any) error {
		return tx.QueryRow(ctx, s.engine.sql(text), args...).Scan(targets...)
	}, func() error { return rollback(ctx, tx) })
}

// rollback rolls back a transaction with all its savepoints. The rollback of a nested pgx.Tx ends
// at its savepoint, so the whole transaction is restarted first. The nested rollback then fails,
// because its savepoint is gone, and what the caller does in the outer transaction fails too.
func rollback(ctx context.Context, tx pgx.Tx) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), connectTimeout)
	defer cancel()
	if _, err := tx.Exec(ctx, "ROLLBACK AND CHAIN"); err != nil && !errors.Is(err, pgx.ErrTxClosed) {
		return tx.Conn().Close(ctx) // the server undoes the changes
	}
	return tx.Rollback(ctx)
}

// FenceSQLTx is [Store.FenceTx] for a transaction of package database/sql, with any driver that
// takes parameters as $1.
func (s *Store) FenceSQLTx(ctx context.Context, tx *sql.Tx, f runstore.Fence) error {
	return s.fenceTx(f, func(text string, args []any, targets ...any) error {
		return tx.QueryRowContext(ctx, s.engine.sql(text), args...).Scan(targets...)
	}, tx.Rollback)
}

func (s *Store) fenceTx(f runstore.Fence, row func(text string, args []any, targets ...any) error, rollback func() error) error {
	err := s.checkFence(f, row)
	if err == nil {
		return nil
	}
	_ = rollback() // a transaction that cannot be rolled back cannot commit either
	var kind *runstore.InputError
	if errors.As(err, &kind) {
		return err
	}
	switch runstore.KindOf(err) {
	case runstore.ErrFenced, runstore.ErrLeaseExpired, runstore.ErrStoreBehind, runstore.ErrNotFound:
		return &runstore.OpError{Op: "fence transaction", Run: f.Run(), Err: err}
	default:
		return &runstore.OpError{Op: "fence transaction", Run: f.Run(), Err: runstore.ErrUnavailable, Cause: err}
	}
}

// checkFence locks the run's row and judges the fence.
func (s *Store) checkFence(f runstore.Fence, row func(text string, args []any, targets ...any) error) error {
	if f.IsZero() {
		return adapter.Invalid("fence", "is missing")
	}
	var ignored any
	limit := strconv.FormatInt(s.engine.opts.LockTimeout.Milliseconds(), 10)
	if err := row(sqlFenceLimitIdle, []any{limit}, &ignored); err != nil && !noRows(err) { // no row: the session has a lower limit
		return err
	}
	var h nullHead
	if err := row(sqlFenceLock, []any{[]byte(f.Run())}, h.targets()...); noRows(err) {
		return runstore.ErrNotFound
	} else if err != nil {
		return err
	}
	// The time is read after the lock, in a statement of its own: one that waits for a lock may have
	// evaluated its columns before.
	var now pgtype.Timestamptz
	var epoch int64
	var nested bool
	if err := row(sqlFenceJudge, []any{[]byte(f.Run())}, &now, &epoch, &nested); err != nil {
		return err
	}
	if nested {
		return adapter.Invalid("transaction", "has an open savepoint, and a rollback to it would end the protection: call FenceTx outside")
	}
	head := h.head(f.Run())
	head.Epoch = runstore.Epoch(epoch)
	return head.Fence(f, now.Time.UTC().Truncate(time.Microsecond))
}

func noRows(err error) bool { return errors.Is(err, pgx.ErrNoRows) || errors.Is(err, sql.ErrNoRows) }
