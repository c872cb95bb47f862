package fence_test

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"testing"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/tapestore/tapestore/emulators"
	postgresemulator "github.com/tapestore/tapestore/emulators/postgres"
	"github.com/tapestore/tapestore/fence"
	"github.com/tapestore/tapestore/runstore"
)

// onEachDatabase runs a test on each dialect, with a checker on a new database that also has a table
// of the service.
func onEachDatabase(t *testing.T, test func(t *testing.T, db *sql.DB, c *fence.SQL)) {
	t.Parallel()
	for _, d := range []struct {
		dialect fence.Dialect
		open    func(*testing.T) *sql.DB
	}{{fence.SQLite, openSQLite}, {fence.Postgres, openPostgres}} {
		t.Run(d.dialect.String(), func(t *testing.T) {
			t.Parallel()
			db := d.open(t)
			c := newSQL(t, db, "Fence", d.dialect)
			mustExec(t, db, `CREATE TABLE payments (payee text)`)
			test(t, db, c)
		})
	}
}

func openSQLite(t *testing.T) *sql.DB {
	t.Helper()
	return openFile(t, filepath.Join(t.TempDir(), "service.db"), "60000")
}

// openFile opens a file of SQLite with a busy_timeout in milliseconds.
func openFile(t *testing.T, path, timeout string) *sql.DB {
	t.Helper()
	return openDB(t, "sqlite", "file:"+path+"?_txlock=immediate&_pragma=busy_timeout("+timeout+")&_pragma=journal_mode(WAL)")
}

func openPostgres(t *testing.T) *sql.DB {
	t.Helper()
	server, err := postgresemulator.Shared(context.WithoutCancel(t.Context()))
	emulators.Require(t, err)
	database, err := server.NewDatabase(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := database.Drop(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	return openDB(t, "pgx", database.URL)
}

func openDB(t *testing.T, driver, address string) *sql.DB {
	t.Helper()
	db, err := sql.Open(driver, address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

func newChecker(t *testing.T, db *sql.DB, table string, dialect fence.Dialect) *fence.SQL {
	t.Helper()
	c, err := fence.NewSQL(db, table, dialect)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// newSQL returns a checker with its table, which it creates twice: a restart does.
func newSQL(t *testing.T, db *sql.DB, table string, dialect fence.Dialect) *fence.SQL {
	t.Helper()
	c := newChecker(t, db, table, dialect)
	for range 2 {
		if err := c.CreateTable(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

func mustExec(t *testing.T, db *sql.DB, statement string) {
	t.Helper()
	if _, err := db.ExecContext(t.Context(), statement); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}

func wantPayments(t *testing.T, db *sql.DB, want int) {
	t.Helper()
	var n int
	if err := db.QueryRowContext(t.Context(), `SELECT count(*) FROM payments`).Scan(&n); err != nil || n != want {
		t.Errorf("%d payments, %v; want %d", n, err, want)
	}
}

func TestSQLOrder(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, _ *sql.DB, c *fence.SQL) { checkOrder(t, c) })
}

func TestSQLInput(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, _ *sql.DB, c *fence.SQL) { checkInput(t, c) })
}

func TestSQLRaces(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, _ *sql.DB, c *fence.SQL) { checkRaces(t, c, 40) })
}

// A second checker on the table, as after a restart or on another replica, refuses what the first
// has seen.
func TestSQLIsShared(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, db *sql.DB, c *fence.SQL) {
		if err := c.Check(t.Context(), "a", 5); err != nil {
			t.Fatal(err)
		}
		dialect := fence.SQLite
		if t.Name() == "TestSQLIsShared/postgres" {
			dialect = fence.Postgres
		}
		wantStale(t, newSQL(t, db, "Fence", dialect).Check(t.Context(), "a", 4), "a", 4, 5)
		schema := map[fence.Dialect]string{fence.SQLite: "main", fence.Postgres: "public"}[dialect]
		wantStale(t, newSQL(t, db, schema+".Fence", dialect).Check(t.Context(), "a", 4), "a", 4, 5)
		if err := newSQL(t, db, "other", dialect).Check(t.Context(), "a", 4); err != nil {
			t.Errorf("another table: %v", err)
		}
	})
}

// pay pays in a transaction that checks the token. checked is called after the check. A caller that
// ignores the error of the check commits nothing.
func pay(ctx context.Context, db *sql.DB, c *fence.SQL, token runstore.Token, checked func()) (check, commit error) {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err, err
	}
	check = c.CheckTx(ctx, tx, "account", token)
	checked()
	_, _ = tx.ExecContext(ctx, `INSERT INTO payments VALUES ('payee')`)
	return check, tx.Commit()
}

// awaitBlocked returns once the database shows that what another session has begun in the
// background waits for an open transaction. done is closed when the other session has ended. On
// SQLite, which shows no waiters, it returns once a session that does not wait is refused.
func awaitBlocked(t *testing.T, db *sql.DB, done <-chan struct{}) {
	t.Helper()
	if _, ok := db.Driver().(*sqlite.Driver); ok {
		var path string
		if err := db.QueryRowContext(t.Context(), `SELECT file FROM pragma_database_list WHERE name = 'main'`).Scan(&path); err != nil {
			t.Fatal(err)
		}
		impatient := newChecker(t, openFile(t, path, "0"), "Fence", fence.SQLite)
		var failure *sqlite.Error
		if err := impatient.Check(t.Context(), "account", 1); !errors.As(err, &failure) || failure.Code() != sqlite3.SQLITE_BUSY {
			t.Errorf("another session got %v while a transaction was open, want SQLITE_BUSY", err)
		}
		return
	}
	const waits = `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock')`
	for waiting := false; !waiting; {
		select {
		case <-done:
			t.Error("another session ended while a transaction was open")
			return
		default:
		}
		if err := db.QueryRowContext(t.Context(), waits).Scan(&waiting); err != nil {
			t.Fatal(err)
		}
	}
}

// The check of a newer token waits for a transaction under the older one, and refuses the next.
func TestCheckTxIsAtomic(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, db *sql.DB, c *fence.SQL) {
		ctx := t.Context()
		var newer error
		done := make(chan struct{})
		check, commit := pay(ctx, db, c, 5, func() {
			go func() {
				defer close(done)
				newer = c.Check(context.WithoutCancel(ctx), "account", 6)
			}()
			awaitBlocked(t, db, done)
		})
		<-done
		if err := errors.Join(check, commit, newer); err != nil {
			t.Fatal(err)
		}
		wantPayments(t, db, 1)

		check, commit = pay(ctx, db, c, 5, func() {})
		wantStale(t, check, "account", 5, 6)
		if commit == nil {
			t.Error("a refused transaction was committed")
		}
		wantPayments(t, db, 1)

		if check, commit := pay(ctx, db, c, 6, func() {}); check != nil || commit != nil {
			t.Errorf("current token: %v, %v", check, commit)
		}
		wantPayments(t, db, 2)
	})
}

// A stale transaction that waits for a newer one is refused once that is committed.
func TestCheckTxWaitsForANewerToken(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, db *sql.DB, c *fence.SQL) {
		ctx := t.Context()
		if err := c.Check(ctx, "account", 5); err != nil {
			t.Fatal(err)
		}
		var stale error
		done := make(chan struct{})
		check, commit := pay(ctx, db, c, 6, func() {
			go func() {
				defer close(done)
				stale, _ = pay(context.WithoutCancel(ctx), db, c, 5, func() {})
			}()
			awaitBlocked(t, db, done)
		})
		<-done
		if err := errors.Join(check, commit); err != nil {
			t.Fatal(err)
		}
		wantStale(t, stale, "account", 5, 6)
		wantPayments(t, db, 1)
	})
}

// A transaction that is rolled back records no token.
func TestCheckTxIsRolledBack(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, db *sql.DB, c *fence.SQL) {
		tx, err := db.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(c.CheckTx(t.Context(), tx, "account", 9), tx.Rollback()); err != nil {
			t.Fatal(err)
		}
		if err := c.Check(t.Context(), "account", 5); err != nil {
			t.Errorf("a token of a transaction that was rolled back: %v", err)
		}
	})
}
