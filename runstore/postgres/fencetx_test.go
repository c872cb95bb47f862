package postgres_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
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
	s := open(t, with(address, "lock_timeout=2s")) // also the time after which the server ends the session
	patient := open(t, address)
	lease, conn := hold(t, s, "run"), ledger(t, address)
	tx := begin(t, conn, pgx.ReadCommitted)
	// FenceTx comes last: the session may end as soon as it returns.
	if err := errors.Join(pay(t.Context(), tx), s.FenceTx(t.Context(), tx, lease.Fence())); err != nil {
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

// A savepoint protects no transaction: a rollback to it would release the lock, and a refusal would
// undo the changes after it only. So FenceTx refuses a nested transaction and one with an open
// savepoint, and none of the transaction's changes are committed.
func TestFenceInASavepoint(t *testing.T) {
	t.Parallel()
	address := database(t)
	s := open(t, address)
	lease, zombie := hold(t, s, "run"), hold(t, s, "zombie")
	if _, err := preempt(t.Context(), s, "zombie"); err != nil {
		t.Fatal(err)
	}
	exec(t, connect(t, address), `CREATE TABLE public.payments (run text, payee text)`)
	for _, test := range []struct {
		name  string
		fence runstore.Fence
		inner func(tx pgx.Tx) (pgx.Tx, error)
	}{
		{"nested", lease.Fence(), func(tx pgx.Tx) (pgx.Tx, error) { return tx.Begin(t.Context()) }},
		{"nested and not current", zombie.Fence(), func(tx pgx.Tx) (pgx.Tx, error) { return tx.Begin(t.Context()) }},
		{"savepoint", lease.Fence(), func(tx pgx.Tx) (pgx.Tx, error) {
			_, err := tx.Exec(t.Context(), `SAVEPOINT mine`)
			return tx, err
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			tx := begin(t, connect(t, address), pgx.ReadCommitted)
			if err := pay(t.Context(), tx); err != nil {
				t.Fatal(err)
			}
			inner, err := test.inner(tx)
			if err != nil {
				t.Fatal(err)
			}
			if err := s.FenceTx(t.Context(), inner, test.fence); err == nil {
				t.Error("the savepoint was fenced")
			} else if test.fence == lease.Fence() && !errors.Is(err, runstore.ErrInvalid) {
				t.Errorf("got %v, want ErrInvalid", err)
			}
			_ = inner.Commit(t.Context())
			if err := tx.Commit(t.Context()); err == nil {
				t.Error("the transaction committed all the same")
			}
		})
	}
	if n := payments(t, address); n != 0 {
		t.Errorf("%d payments", n)
	}
}

// A released savepoint before FenceTx, and one after it, are no obstacle; nor is a foreign key to
// the run, whose check shares the row's lock.
func TestFenceBesideSavepoints(t *testing.T) {
	t.Parallel()
	address := database(t)
	s := open(t, address)
	lease, conn := hold(t, s, "run"), ledger(t, address)
	exec(t, conn, `CREATE TABLE public.orders (run bytea REFERENCES tapestore.runs (id))`)
	other := begin(t, connect(t, address), pgx.ReadCommitted) // shares the row's lock until the end
	tx := begin(t, conn, pgx.ReadCommitted)
	order := func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), `INSERT INTO public.orders VALUES ('run')`)
		return err
	}
	sub, err := tx.Begin(t.Context())
	if err := errors.Join(err, order(other), order(tx), order(sub), pay(t.Context(), sub), sub.Commit(t.Context())); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := s.FenceTx(t.Context(), tx, lease.Fence()); err != nil {
			t.Fatal(err)
		}
	}
	sub, err = tx.Begin(t.Context())
	if err := errors.Join(err, pay(t.Context(), sub), sub.Rollback(t.Context()), tx.Commit(t.Context()), other.Commit(t.Context())); err != nil {
		t.Error(err)
	}
	tx = begin(t, conn, pgx.ReadCommitted)
	sub, err = tx.Begin(t.Context())
	if err := errors.Join(err, order(sub), sub.Commit(t.Context()), s.FenceTx(t.Context(), tx, lease.Fence()), tx.Commit(t.Context())); err != nil {
		t.Errorf("after a check of a foreign key in a savepoint: %v", err)
	}
	if n := payments(t, address); n != 1 {
		t.Errorf("%d payments, want 1", n)
	}
}

// stuck is a transaction whose server has fallen silent.
type stuck struct{ pgx.Tx }

func (stuck) QueryRow(context.Context, string, ...any) pgx.Row { return stuckRow{} }

func (stuck) Exec(ctx context.Context, _ string, _ ...any) (pgconn.CommandTag, error) {
	<-ctx.Done()
	return pgconn.CommandTag{}, ctx.Err()
}

func (stuck) Rollback(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

type stuckRow struct{}

func (stuckRow) Scan(...any) error { return errors.New("no answer") }

// The rollback of a refused transaction takes no longer than a connection attempt.
func TestRollbackIsBounded(t *testing.T) {
	t.Parallel()
	address := database(t)
	s := open(t, address)
	fence := hold(t, s, "run").Fence()
	ended := make(chan error, 1)
	tx := stuck{begin(t, connect(t, address), pgx.ReadCommitted)}
	go func() { ended <- s.FenceTx(t.Context(), tx, fence) }()
	select {
	case err := <-ended:
		if !errors.Is(err, runstore.ErrUnavailable) {
			t.Errorf("got %v, want ErrUnavailable", err)
		}
		if !tx.Conn().IsClosed() {
			t.Error("the connection is open, with the transaction in it")
		}
	case <-time.After(time.Minute):
		t.Error("FenceTx waits for ever")
	}
}

// A fenced transaction delays its own run and the feed, but no write of another run.
func TestFencedTransactionDelaysTheFeed(t *testing.T) {
	t.Parallel()
	address := database(t)
	s := open(t, address)
	lease, other, conn := hold(t, s, "run"), hold(t, s, "other"), ledger(t, address)
	tx := begin(t, conn, pgx.ReadCommitted)
	if err := s.FenceTx(t.Context(), tx, lease.Fence()); err != nil {
		t.Fatal(err)
	}
	own := make(chan error, 20)
	for range cap(own) {
		go func() {
			_, err := s.Commit(t.Context(), appending(lease, "own"))
			own <- err
		}()
	}
	awaitLocked(t, address, 1)
	for range 20 {
		commit(t, s, appending(other, "other"))
	}
	if _, err := s.RenewLease(t.Context(), runstore.RenewRequest{Fence: other.Fence(), TTL: time.Minute}); err != nil {
		t.Error(err)
	}
	if events, err := s.ReadFeed(t.Context(), runstore.FeedQuery{Limit: 100}); err != nil || len(events) != 0 {
		t.Errorf("%d events, %v; want none before the transaction ends", len(events), err)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Error(err)
	}
	for range cap(own) {
		if err := <-own; err != nil {
			t.Error(err)
		}
	}
	if events, err := s.ReadFeed(t.Context(), runstore.FeedQuery{Limit: 100}); err != nil || len(events) != 40 {
		t.Errorf("%d events, %v; want 40", len(events), err)
	}
}

// A fence that a failover lost is judged as a commit judges it: the store is behind until its epoch
// is raised, and the fence is not current afterwards.
func TestFenceOfALostGrant(t *testing.T) {
	t.Parallel()
	address := database(t)
	s := open(t, address)
	conn, lost := connect(t, address), hold(t, s, "run")
	lost.Token++ // as granted by a history that is lost
	for _, want := range []error{runstore.ErrStoreBehind, runstore.ErrFenced} {
		if _, err := s.Commit(t.Context(), appending(lost, "event")); !errors.Is(err, want) {
			t.Errorf("commit: %v, want %v", err, want)
		}
		if err := s.FenceTx(t.Context(), begin(t, conn, pgx.ReadCommitted), lost.Fence()); !errors.Is(err, want) {
			t.Errorf("transaction: %v, want %v", err, want)
		}
		if _, err := s.RaiseEpoch(t.Context(), "test"); err != nil {
			t.Fatal(err)
		}
	}
}

// FenceTx works in every mode in which pgx executes statements, as poolers need them, and under
// every isolation level.
func TestFenceInEveryMode(t *testing.T) {
	t.Parallel()
	address := database(t)
	s := open(t, address)
	lease := hold(t, s, "run")
	for _, mode := range []string{"cache_statement", "cache_describe", "describe_exec", "exec", "simple_protocol"} {
		conn := connect(t, with(address, "default_query_exec_mode="+mode))
		for _, level := range []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable} {
			tx := begin(t, conn, level)
			if err := errors.Join(s.FenceTx(t.Context(), tx, lease.Fence()), tx.Commit(t.Context())); err != nil {
				t.Errorf("%s, %s: %v", mode, level, err)
			}
		}
	}
}
