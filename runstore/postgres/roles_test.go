package postgres_test

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/tapestore/tapestore/conformance"
	"github.com/tapestore/tapestore/conformance/effort"
	"github.com/tapestore/tapestore/conformance/engines"
	postgresemulator "github.com/tapestore/tapestore/emulators/postgres"
	"github.com/tapestore/tapestore/runstore"
)

// privileges returns the statements of the page for another role.
func privileges(t *testing.T, app string) string {
	t.Helper()
	page, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, block, found := strings.Cut(string(page), "```sql\n-- as the migrating role\n")
	block, _, closed := strings.Cut(block, "```")
	if !found || !closed {
		t.Fatal("README.md has no block that begins with -- as the migrating role")
	}
	return strings.ReplaceAll(block, "tapestore_app", app)
}

// With the privileges that the page grants, the store does all that the contract
// has, and its role cannot change the schema.
func TestLeastPrivilege(t *testing.T) {
	t.Parallel()
	host := server(t)
	base, err := host.NewDatabase(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	migrator, app := role(t, host.URL()), role(t, host.URL())
	drop := func() {
		if err := base.Drop(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(drop) // before the roles, which it needs
	admin := connect(t, base.URL)
	exec(t, admin, "GRANT CREATE ON DATABASE "+base.Name+" TO "+migrator)
	if err := admin.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := open(t, with(base.URL, "user="+migrator)).Close(); err != nil {
		t.Fatal(err)
	}
	owner := connect(t, with(base.URL, "user="+migrator))
	if _, err := owner.PgConn().Exec(t.Context(), privileges(t, app)).ReadAll(); err != nil {
		t.Fatal(err)
	}
	exec(t, owner, "CREATE TABLE tapestore.of_a_later_migration ()")
	if err := owner.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	newDatabase := func(t conformance.T) postgresemulator.Database {
		db, err := host.NewDatabase(t.Context(), base.Name)
		if err != nil {
			t.Fatalf("create a database: %v", err)
		}
		t.Cleanup(func() {
			if err := db.Drop(context.Background()); err != nil {
				t.Errorf("drop %s: %v", db.Name, err)
			}
		})
		return db
	}
	asApp := func(db postgresemulator.Database) string { return with(db.URL, "user="+app, "migrate=no") }

	t.Run("schema", func(t *testing.T) {
		conn := connect(t, with(newDatabase(t).URL, "user="+app))
		exec(t, conn, "SELECT FROM tapestore.of_a_later_migration")
		for _, statement := range []string{
			"DROP TABLE tapestore.runs", "ALTER TABLE tapestore.runs ADD COLUMN x integer", "CREATE TABLE tapestore.mine ()",
			"TRUNCATE tapestore.runs", "CREATE SCHEMA mine", "DROP FUNCTION tapestore.raise_epoch",
		} {
			var denied *pgconn.PgError
			if _, err := conn.Exec(t.Context(), statement); !errors.As(err, &denied) || denied.Code != "42501" {
				t.Errorf("%s: got %v, want insufficient_privilege", statement, err)
			}
		}
	})
	t.Run("epoch", func(t *testing.T) {
		s := open(t, asApp(newDatabase(t)))
		lease := hold(t, s, "run")
		if epoch, err := s.RaiseEpoch(t.Context(), "test"); err != nil || epoch != 1 {
			t.Fatalf("got epoch %d, %v", epoch, err)
		}
		if _, err := s.Commit(t.Context(), appending(lease, "zombie")); !errors.Is(err, runstore.ErrFenced) {
			t.Errorf("got %v, want ErrFenced", err)
		}
	})
	t.Run("another incarnation", func(t *testing.T) {
		db := newDatabase(t)
		exec(t, connect(t, db.URL), "UPDATE tapestore.store SET timeline = timeline + 1")
		epochs, err := open(t, asApp(db), quiet).Epochs(t.Context())
		if err != nil || len(epochs) != 1 {
			t.Errorf("got epochs %+v, %v, want one", epochs, err)
		}
	})
	h := conformance.Harness{New: func(t conformance.T) conformance.Instance {
		db := newDatabase(t)
		return conformance.Instance{
			Open: func(ctx context.Context) (runstore.RunStore, error) { return engines.OpenPostgres(ctx, asApp(db), nil) },
			BlockWriters: func(t conformance.T) (func(ctx context.Context, n int) error, func()) {
				return engines.StallPostgres(t, db.URL, "")
			},
		}
	}}
	t.Run("settling", func(t *testing.T) {
		w := &wire{}
		s := open(t, asApp(newDatabase(t)), w.through)
		lease := hold(t, s, "run")
		for _, harm := range []harm{loseRequest, loseReply} {
			w.lose(harm, "")
			commit(t, s, appending(lease, "settled"))
		}
		wantJournal(t, s, "run", "settled", "settled")
	})
	t.Run("conformance", func(t *testing.T) {
		if !effort.Full() {
			t.Logf("reduced: %d cases instead of all of I1, I3, I4 and I10", len(casesOfPrivileges))
		}
		conformance.RunCases(t, h, effort.Choose(casesOfPrivileges, casesOf("I1", "I3", "I4", "I10"))...)
	})
}

// casesOfPrivileges are cases that together send every statement of the adapter.
var casesOfPrivileges = []string{
	"I1/released-lease-is-free-at-once",
	"I2/token-survives-purge-and-re-creation",
	"I2/epochs-are-listed-with-their-reasons",
	"I3/appends-to-many-runs-at-once-are-fenced-one-by-one",
	"I3/renewal-never-shortens-a-lease",
	"I3/zombie-whole-batch-is-refused",
	"I3/zombie-multi-run-commit-is-refused",
	"I4/a-batch-applies-whole",
	"I4/a-commit-over-several-runs-applies-whole",
	"I4/purge-removes-a-run-whole",
	"I6/records-read-by-key-prefix-and-page",
	"I8/a-repeat-gets-the-first-result",
	"I9/runs-are-listed-by-creation",
	"I9/runnable-runs-come-in-order-and-in-pages",
	"I9/entries-come-in-order",
	"I10/the-feed-holds-every-event-once",
	"I10/a-commit-wakes-who-waits",
}

// casesOf returns the names of the cases of guarantees.
func casesOf(guarantees ...string) (names []string) {
	for _, c := range conformance.Cases() {
		if slices.Contains(guarantees, c.Guarantee) {
			names = append(names, c.Guarantee+"/"+c.Name)
		}
	}
	return names
}
