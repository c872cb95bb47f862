package sqlite_test

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/tapestore/tapestore/conformance/engines/embedded"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/sqlite"
)

// userTables opens a store, and its file once more with a table of a user's.
func userTables(t *testing.T) (*sqlite.Store, *sql.DB) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "app.db")
	s := openFile(t, path)
	db, err := sql.Open("sqlite", "file:"+path+"?_txlock=immediate&_pragma=busy_timeout(60000)")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	if _, err := db.ExecContext(t.Context(), `CREATE TABLE payments (run TEXT, payee TEXT)`); err != nil {
		t.Fatal(err)
	}
	return s, db
}

func grant(t *testing.T, s *sqlite.Store, id runstore.RunID, spec runstore.LeaseSpec) runstore.Lease {
	t.Helper()
	created, err := s.CreateRun(t.Context(), runstore.RunSpec{ID: id, Lease: &spec})
	if err != nil {
		t.Fatal(err)
	}
	return created.Lease
}

func preempt(ctx context.Context, s *sqlite.Store, id runstore.RunID) error {
	_, err := s.AcquireLease(ctx, runstore.AcquireRequest{Run: id, Preempt: "test", LeaseSpec: runstore.LeaseSpec{Owner: "successor", TTL: time.Minute}})
	return err
}

// payUnder pays in a transaction that is fenced. fenced is called after FenceTx.
func payUnder(ctx context.Context, s *sqlite.Store, db *sql.DB, f runstore.Fence, fenced func()) (err, commit error) {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err, err
	}
	err = s.FenceTx(ctx, tx, f)
	fenced()
	_, _ = tx.ExecContext(ctx, `INSERT INTO payments VALUES ('run', 'payee')`) // a caller that ignores the error
	return err, tx.Commit()
}

func wantPayments(t *testing.T, db *sql.DB, want int) {
	t.Helper()
	var n int
	if err := db.QueryRowContext(t.Context(), `SELECT count(*) FROM payments`).Scan(&n); err != nil || n != want {
		t.Errorf("%d payments, %v; want %d", n, err, want)
	}
}

// A takeover waits for a transaction under the current grant, whose changes so come before the next
// grant. Afterwards a transaction of the former holder is refused.
func TestTakeoverWaitsForAFencedTransaction(t *testing.T) {
	s, db := userTables(t)
	lease := grant(t, s, "run", runstore.LeaseSpec{Owner: "holder", TTL: time.Minute})
	granted := make(chan error, 1)
	err, commit := payUnder(t.Context(), s, db, lease.Fence(), func() {
		go func() { granted <- preempt(context.WithoutCancel(t.Context()), s, "run") }()
		select {
		case err := <-granted:
			t.Errorf("the lease was granted (%v) while a fenced transaction was open", err)
		case <-time.After(20 * time.Millisecond): // the takeover may be this late; then it proves nothing
		}
	})
	if err := errors.Join(err, commit, <-granted); err != nil {
		t.Fatal(err)
	}
	wantPayments(t, db, 1)

	var fenced *runstore.FencedError
	err, commit = payUnder(t.Context(), s, db, lease.Fence(), func() {})
	if !errors.As(err, &fenced) || fenced.Holder.Owner != "successor" || fenced.Current != 2 || commit == nil {
		t.Errorf("got %v, and %v of the commit; want the successor and its token, and no commit", err, commit)
	}
	wantPayments(t, db, 1)
	// The store's own writes go on after a transaction of the user's.
	if err := preempt(t.Context(), s, "run"); err != nil {
		t.Error(err)
	}
}

// Another process sets the store clock forward, after the host was suspended, and grants a strict lease that
// then expires. A transaction under that lease is judged by the clock as it was set.
func TestFencedTransactionUnderAClockThatWasSet(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "app.db")
	h := embedded.NewHost()
	s, other := openAt(t, path, h), openAt(t, path, h)
	db, err := sql.Open("sqlite", "file:"+path+"?_txlock=immediate&_pragma=busy_timeout(60000)")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	h.SetWall(time.Hour)
	lease := grant(t, other, "run", runstore.LeaseSpec{Owner: "holder", TTL: time.Minute, Strict: true})
	h.Advance(2 * time.Minute)
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.FenceTx(t.Context(), tx, lease.Fence()); !errors.Is(err, runstore.ErrLeaseExpired) {
		t.Errorf("a transaction under a strict lease that has expired: got %v, want ErrLeaseExpired", err)
	}
}

// A transaction under a fence that is not current is refused and rolled back.
func TestFencedTransactionIsRefused(t *testing.T) {
	s, db := userTables(t)
	released := grant(t, s, "released", runstore.LeaseSpec{Owner: "holder", TTL: time.Minute})
	if _, err := s.ReleaseLease(t.Context(), runstore.ReleaseRequest{Fence: released.Fence()}); err != nil {
		t.Fatal(err)
	}
	purged := grant(t, s, "purged", runstore.LeaseSpec{Owner: "holder", TTL: time.Minute})
	purge := runstore.NewBatch("purged", purged.Fence())
	purge.Purge = true
	if _, err := s.Commit(t.Context(), purge); err != nil {
		t.Fatal(err)
	}
	strict := grant(t, s, "strict", runstore.LeaseSpec{Owner: "holder", TTL: runstore.MinTTL, Strict: true})
	for now := (time.Time{}); !now.After(strict.ExpiresAt); {
		var err error
		if now, err = s.Now(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for _, test := range []struct {
		name  string
		fence runstore.Fence
		want  error
	}{
		{"released", released.Fence(), runstore.ErrFenced},
		{"purged", purged.Fence(), runstore.ErrNotFound},
		{"strict and expired", strict.Fence(), runstore.ErrLeaseExpired},
		{"none", runstore.Fence{}, runstore.ErrInvalid},
	} {
		if err, commit := payUnder(t.Context(), s, db, test.fence, func() {}); !errors.Is(err, test.want) || commit == nil {
			t.Errorf("%s: got %v, and %v of the commit; want %v and no commit", test.name, err, commit, test.want)
		}
	}
	wantPayments(t, db, 0)
}

// A deferred transaction that has read before another connection wrote cannot be fenced any more.
func TestStaleTransactionIsNotFenced(t *testing.T) {
	s, db := userTables(t)
	lease := grant(t, s, "run", runstore.LeaseSpec{Owner: "holder", TTL: time.Minute})
	conn, err := db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	tx, err := conn.BeginTx(t.Context(), &sql.TxOptions{ReadOnly: true}) // begins as DEFERRED
	if err != nil {
		t.Fatal(err)
	}
	var n int
	if err := tx.QueryRowContext(t.Context(), `SELECT count(*) FROM payments`).Scan(&n); err != nil {
		t.Fatal(err)
	}
	if err := preempt(t.Context(), s, "run"); err != nil {
		t.Fatal(err)
	}
	if err := s.FenceTx(t.Context(), tx, lease.Fence()); !errors.Is(err, runstore.ErrUnavailable) && !errors.Is(err, runstore.ErrFenced) {
		t.Errorf("got %v, want that the transaction is refused", err)
	}
	if err := tx.Commit(); err == nil {
		t.Error("the transaction committed all the same")
	}
}

// A fence that a restored backup lost is judged as a commit judges it: the store is behind until its
// epoch is raised, and the fence is not current afterwards.
func TestFenceOfALostGrant(t *testing.T) {
	t.Parallel()
	s, db := userTables(t)
	lost := grant(t, s, "run", runstore.LeaseSpec{Owner: "holder", TTL: time.Minute})
	lost.Token += 2 // as granted by a history that is lost
	for _, want := range []error{runstore.ErrStoreBehind, runstore.ErrFenced} {
		b := runstore.NewBatch("run", lost.Fence())
		b.Append("event", nil)
		if _, err := s.Commit(t.Context(), b); !errors.Is(err, want) {
			t.Errorf("commit: %v, want %v", err, want)
		}
		if err, _ := payUnder(t.Context(), s, db, lost.Fence(), func() {}); !errors.Is(err, want) {
			t.Errorf("transaction: %v, want %v", err, want)
		}
		if _, err := s.RaiseEpoch(t.Context(), "test"); err != nil {
			t.Fatal(err)
		}
	}
}
