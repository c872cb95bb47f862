package fence_test

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"modernc.org/sqlite"

	"github.com/tapestore/tapestore/fence"
	"github.com/tapestore/tapestore/runstore"
)

func TestNewSQLRefuses(t *testing.T) {
	t.Parallel()
	db := openSQLite(t)
	for _, test := range []struct {
		db      *sql.DB
		table   string
		dialect fence.Dialect
	}{
		{nil, "fence", fence.SQLite},
		{db, "", fence.SQLite},
		{db, "a.b.c", fence.SQLite},
		{db, `x"; DROP TABLE payments; --`, fence.SQLite},
		{db, "1fence", fence.Postgres},
		{db, "a234567890123456789012345678901234567890123456789012345678901234", fence.Postgres},
		{db, "fence", 0},
		{db, "fence", 3},
	} {
		if c, err := fence.NewSQL(test.db, test.table, test.dialect); !errors.Is(err, runstore.ErrInvalid) {
			t.Errorf("table %q, %v: got %v, %v; want ErrInvalid", test.table, test.dialect, c, err)
		}
	}
}

func TestDialectString(t *testing.T) {
	t.Parallel()
	for dialect, want := range map[fence.Dialect]string{fence.Postgres: "postgres", fence.SQLite: "sqlite", 3: "dialect 3"} {
		if got := dialect.String(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// Without a usable table a check decides nothing: its outcome is unknown, and that of a transaction
// is that nothing was done.
func TestSQLErrors(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, db *sql.DB, c *fence.SQL) {
		mustExec(t, db, `DROP TABLE "Fence"`)
		if err := c.Check(t.Context(), "account", 5); !errors.Is(err, runstore.ErrUnknownOutcome) || runstore.OutcomeOf(err) != runstore.Unknown {
			t.Errorf("no table: got %v, want ErrUnknownOutcome", err)
		}
		check, commit := pay(t.Context(), db, c, 5, func() {})
		if runstore.KindOf(check) != runstore.ErrUnavailable || commit == nil {
			t.Errorf("no table: got %v and %v of the commit, want ErrUnavailable and no commit", check, commit)
		}
		wantPayments(t, db, 0)
		for _, token := range []runstore.Token{0, fence.MaxToken + 1} {
			check, commit := pay(t.Context(), db, c, token, func() {})
			if runstore.KindOf(check) != runstore.ErrInvalid || commit == nil {
				t.Errorf("token %d: got %v and %v of the commit, want ErrInvalid and no commit", token, check, commit)
			}
		}
		wantPayments(t, db, 0)

		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
		if err := c.Check(t.Context(), "account", 5); !errors.Is(err, runstore.ErrUnknownOutcome) {
			t.Errorf("closed: got %v, want ErrUnknownOutcome", err)
		}
		if err := c.CreateTable(t.Context()); err == nil {
			t.Error("closed: CreateTable succeeded")
		}
	})
}

// A check whose context ends while it waits for a lock has an unknown outcome, and a repeat
// resolves it.
func TestSQLIsInterrupted(t *testing.T) {
	t.Parallel()
	db := openPostgres(t)
	c := newSQL(t, db, "fence", fence.Postgres)
	err := checkWhileLocked(t, c, c, db, func(done <-chan struct{}, cancel context.CancelFunc) {
		awaitBlocked(t, db, done)
		cancel()
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want the context's error too", err)
	}
}

// So has a check on SQLite that waits for a lock longer than busy_timeout.
func TestSQLIsLocked(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "service.db")
	db := openFile(t, path, "60000")
	locked := newSQL(t, db, "fence", fence.SQLite)
	impatient := newSQL(t, openFile(t, path, "20"), "fence", fence.SQLite)
	err := checkWhileLocked(t, impatient, locked, db, func(done <-chan struct{}, _ context.CancelFunc) { <-done })
	var failure *sqlite.Error
	if !errors.As(err, &failure) {
		t.Errorf("got %v, want the driver's error too", err)
	}
}

// checkWhileLocked checks by c while a transaction that locked has checked is open on db. It calls
// during, which may cancel the check; done is closed when the check has ended. It returns the error
// of the check, which must be an unknown outcome.
func checkWhileLocked(t *testing.T, c, locked *fence.SQL, db *sql.DB, during func(done <-chan struct{}, cancel context.CancelFunc)) error {
	t.Helper()
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := locked.CheckTx(t.Context(), tx, "account", 5); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var waited error
	done := make(chan struct{})
	go func() {
		defer close(done)
		waited = c.Check(ctx, "account", 6)
	}()
	during(done, cancel)
	<-done
	if runstore.KindOf(waited) != runstore.ErrUnknownOutcome {
		t.Errorf("got %v, want ErrUnknownOutcome", waited)
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	if err := c.Check(t.Context(), "account", 6); err != nil {
		t.Errorf("repeat: %v", err)
	}
	wantStale(t, c.Check(t.Context(), "account", 5), "account", 5, 6)
	return waited
}

// A statement that the database does not apply as written is no check.
func TestSQLDistrustsTriggers(t *testing.T) {
	t.Parallel()
	t.Run("ignored", func(t *testing.T) {
		t.Parallel()
		db := openSQLite(t)
		c := newSQL(t, db, "fence", fence.SQLite)
		mustExec(t, db, `CREATE TRIGGER ignored BEFORE INSERT ON fence BEGIN SELECT RAISE(IGNORE); END`)
		if err := c.Check(t.Context(), "account", 5); !errors.Is(err, runstore.ErrUnknownOutcome) {
			t.Errorf("got %v, want ErrUnknownOutcome", err)
		}
	})
	t.Run("changed", func(t *testing.T) {
		t.Parallel()
		db := openPostgres(t)
		c := newSQL(t, db, "fence", fence.Postgres)
		mustExec(t, db, `CREATE FUNCTION lower_token() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.token := 1; RETURN NEW; END $$`)
		mustExec(t, db, `CREATE TRIGGER lowered BEFORE INSERT ON fence FOR EACH ROW EXECUTE FUNCTION lower_token()`)
		if err := c.Check(t.Context(), "account", 5); !errors.Is(err, runstore.ErrUnknownOutcome) {
			t.Errorf("got %v, want ErrUnknownOutcome", err)
		}
	})
}

// A check that fails only at its commit, after the database has returned the row, has not succeeded.
func TestSQLFailsAtCommit(t *testing.T) {
	t.Parallel()
	db := openPostgres(t)
	c := newSQL(t, db, "fence", fence.Postgres)
	mustExec(t, db, `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'refused at commit'; END $$`)
	mustExec(t, db, `CREATE CONSTRAINT TRIGGER refused AFTER INSERT ON fence DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION refuse()`)
	var failure *pgconn.PgError
	if err := c.Check(t.Context(), "account", 5); !errors.Is(err, runstore.ErrUnknownOutcome) || !errors.As(err, &failure) {
		t.Errorf("got %v, want ErrUnknownOutcome with the server's error", err)
	}
}

// A value of another type, as in a table that the service created wrongly, is no token.
func TestSQLDistrustsColumns(t *testing.T) {
	t.Parallel()
	db := openSQLite(t)
	mustExec(t, db, `CREATE TABLE fence (resource TEXT NOT NULL PRIMARY KEY, token)`)
	mustExec(t, db, `INSERT INTO fence VALUES ('account', 'x')`)
	c := newSQL(t, db, "fence", fence.SQLite)
	if err := c.Check(t.Context(), "account", 5); !errors.Is(err, runstore.ErrUnknownOutcome) {
		t.Errorf("got %v, want ErrUnknownOutcome", err)
	}
}

// Above READ COMMITTED a transaction fails if another has checked since its snapshot.
func TestCheckTxInASnapshot(t *testing.T) {
	t.Parallel()
	db := openPostgres(t)
	c := newSQL(t, db, "fence", fence.Postgres)
	ctx := t.Context()
	if err := c.Check(ctx, "account", 5); err != nil {
		t.Fatal(err)
	}
	tx, err := db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelRepeatableRead})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.ExecContext(ctx, `SELECT 1 FROM fence`); err != nil { // takes the snapshot
		t.Fatal(err)
	}
	if err := c.Check(ctx, "account", 6); err != nil {
		t.Fatal(err)
	}
	var failure *pgconn.PgError
	if err := c.CheckTx(ctx, tx, "account", 5); runstore.KindOf(err) != runstore.ErrUnavailable || !errors.As(err, &failure) || failure.Code != "40001" {
		t.Errorf("got %v, want ErrUnavailable with a serialization failure", err)
	}
}
