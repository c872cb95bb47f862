package postgres_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/postgres"
)

// ledger is a table of a user's, in the store's database.
func ledger(t *testing.T, address string) *pgx.Conn {
	t.Helper()
	conn := connect(t, address)
	exec(t, conn, `CREATE TABLE public.payments (run text, payee text)`)
	return conn
}

func payments(t *testing.T, address string) int {
	t.Helper()
	return get[int](t, connect(t, address), `SELECT count(*) FROM public.payments`)
}

func begin(t *testing.T, conn *pgx.Conn, level pgx.TxIsoLevel) pgx.Tx {
	t.Helper()
	tx, err := conn.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: level})
	if err != nil {
		t.Fatal(err)
	}
	return tx
}

func pay(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, `INSERT INTO public.payments VALUES ('run', 'payee')`)
	return err
}

// preempt grants the lease of a run to another owner.
func preempt(ctx context.Context, s *postgres.Store, id runstore.RunID) (runstore.Granted, error) {
	return s.AcquireLease(ctx, runstore.AcquireRequest{Run: id, Preempt: "test", LeaseSpec: runstore.LeaseSpec{Owner: "successor", TTL: time.Minute}})
}

// A transaction under the current grant commits, by either interface.
func TestFencedTransactionCommits(t *testing.T) {
	t.Parallel()
	address := database(t)
	s := open(t, address)
	lease, conn := hold(t, s, "run"), ledger(t, address)
	tx := begin(t, conn, pgx.ReadCommitted)
	if err := s.FenceTx(t.Context(), tx, lease.Fence()); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(pay(t.Context(), tx), tx.Commit(t.Context())); err != nil {
		t.Fatal(err)
	}
	db, err := sql.Open("pgx", address)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	other, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.FenceSQLTx(t.Context(), other, lease.Fence()); err != nil {
		t.Fatal(err)
	}
	if _, err := other.ExecContext(t.Context(), `INSERT INTO public.payments VALUES ('run', 'payee')`); err != nil {
		t.Fatal(err)
	}
	if err := other.Commit(); err != nil {
		t.Fatal(err)
	}
	if n := payments(t, address); n != 2 {
		t.Errorf("%d payments, want 2", n)
	}
	// The limit on idle transactions ends with the transaction.
	if limit := get[string](t, conn, `SHOW idle_in_transaction_session_timeout`); limit != "0" {
		t.Errorf("idle_in_transaction_session_timeout is %s after the transaction", limit)
	}
}

// A holder that was paused before its transaction changes nothing: FenceTx refuses, and a caller
// that ignores the error cannot commit. The same holds for other fences that are not current.
func TestFencedTransactionOfAZombie(t *testing.T) {
	t.Parallel()
	address := database(t)
	s := open(t, address)
	conn := ledger(t, address)
	zombie := hold(t, s, "run")
	if _, err := preempt(t.Context(), s, "run"); err != nil {
		t.Fatal(err)
	}
	released := hold(t, s, "released")
	if _, err := s.ReleaseLease(t.Context(), runstore.ReleaseRequest{Fence: released.Fence()}); err != nil {
		t.Fatal(err)
	}
	purged := hold(t, s, "purged")
	purge := runstore.NewBatch("purged", purged.Fence())
	purge.Purge = true
	if _, err := s.Commit(t.Context(), purge); err != nil {
		t.Fatal(err)
	}
	strict, err := s.CreateRun(t.Context(), runstore.RunSpec{ID: "strict", Lease: &runstore.LeaseSpec{Owner: "holder", TTL: runstore.MinTTL, Strict: true}})
	if err != nil {
		t.Fatal(err)
	}
	await(t, "the strict lease expires", func() bool { now, err := s.Now(t.Context()); return err == nil && now.After(strict.Lease.ExpiresAt) })
	for _, test := range []struct {
		name  string
		fence runstore.Fence
		want  error
	}{
		{"preempted", zombie.Fence(), runstore.ErrFenced},
		{"released", released.Fence(), runstore.ErrFenced},
		{"purged", purged.Fence(), runstore.ErrNotFound},
		{"strict and expired", strict.Lease.Fence(), runstore.ErrLeaseExpired},
		{"none", runstore.Fence{}, runstore.ErrInvalid},
	} {
		t.Run(test.name, func(t *testing.T) {
			tx := begin(t, conn, pgx.ReadCommitted)
			if err := pay(t.Context(), tx); err != nil {
				t.Fatal(err)
			}
			if err := s.FenceTx(t.Context(), tx, test.fence); !errors.Is(err, test.want) {
				t.Errorf("got %v, want %v", err, test.want)
			}
			if err := tx.Commit(t.Context()); err == nil {
				t.Error("the transaction committed all the same")
			}
		})
	}
	var fenced *runstore.FencedError
	if err := s.FenceTx(t.Context(), begin(t, conn, pgx.ReadCommitted), zombie.Fence()); !errors.As(err, &fenced) || fenced.Holder.Owner != "successor" || fenced.Current != 2 {
		t.Errorf("got %v, want the successor and its token", err)
	}
	if n := payments(t, address); n != 0 {
		t.Errorf("%d payments of holders without a lease", n)
	}
}

// A takeover waits for a fenced transaction, whose changes so come before the next grant.
func TestTakeoverWaitsForAFencedTransaction(t *testing.T) {
	t.Parallel()
	address := database(t)
	s := open(t, address)
	lease, conn := hold(t, s, "run"), ledger(t, address)
	tx := begin(t, conn, pgx.ReadCommitted)
	if err := s.FenceTx(t.Context(), tx, lease.Fence()); err != nil {
		t.Fatal(err)
	}
	granted := make(chan error, 1)
	go func() {
		_, err := preempt(t.Context(), s, "run")
		granted <- err
	}()
	awaitLocked(t, address, 1)
	if err := errors.Join(pay(t.Context(), tx), tx.Commit(t.Context())); err != nil {
		t.Error(err)
	}
	if err := <-granted; err != nil {
		t.Error(err)
	}
	if n := payments(t, address); n != 1 {
		t.Errorf("%d payments, want 1", n)
	}
}

// A process that is paused in a fenced transaction does not keep its successor waiting for ever:
// the server ends its session, and when it wakes, it commits nothing.
func TestPausedTransactionLosesItsSession(t *testing.T) {
	t.Parallel()
	address := database(t)
	s := open(t, with(address, "lock_timeout=300ms"))
	patient := open(t, with(address, "lock_timeout=1m"))
	lease, conn := hold(t, s, "run"), ledger(t, address)
	tx := begin(t, conn, pgx.ReadCommitted)
	if err := errors.Join(s.FenceTx(t.Context(), tx, lease.Fence()), pay(t.Context(), tx)); err != nil {
		t.Fatal(err)
	}
	if _, err := preempt(t.Context(), patient, "run"); err != nil { // waits until the server has ended the session
		t.Fatal(err)
	}
	if err := tx.Commit(t.Context()); err == nil {
		t.Error("the paused process committed after the takeover")
	}
	if n := payments(t, address); n != 0 {
		t.Errorf("%d payments of the paused process", n)
	}
}

// A serializable transaction that began before the takeover is refused too, with the server's error.
func TestSerializableTransactionOfAZombie(t *testing.T) {
	t.Parallel()
	address := database(t)
	s := open(t, address)
	lease, conn := hold(t, s, "run"), ledger(t, address)
	tx := begin(t, conn, pgx.Serializable)
	if err := pay(t.Context(), tx); err != nil { // takes the snapshot
		t.Fatal(err)
	}
	if _, err := preempt(t.Context(), s, "run"); err != nil {
		t.Fatal(err)
	}
	err := s.FenceTx(t.Context(), tx, lease.Fence())
	if !errors.Is(err, runstore.ErrUnavailable) || postgres.SQLState(err) != "40001" {
		t.Errorf("got %v, want ErrUnavailable because of a serialization failure", err)
	}
	if err := tx.Commit(t.Context()); err == nil {
		t.Error("the transaction committed all the same")
	}
}
