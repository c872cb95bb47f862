package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tapestore/tapestore/conformance"
	"github.com/tapestore/tapestore/conformance/engines"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/postgres"
)

// callersPool makes a pool as a program makes its own, with nothing of the store's.
func callersPool(t conformance.T, address string, params ...string) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), with(address, params...))
	if err != nil {
		t.Fatalf("make a pool: %v", err)
	}
	t.Cleanup(pool.Close)
	return pool
}

func TestConformanceOverACallersPool(t *testing.T) {
	s := server(t)
	conformance.RunCases(t, conformance.Harness{Tier: s.Engine().Tier, New: func(t conformance.T) conformance.Instance {
		address := engines.NewPostgresDatabase(t, s)
		return conformance.Instance{Open: func(ctx context.Context) (runstore.RunStore, error) {
			return postgres.New(ctx, callersPool(t, address), nil)
		}}
	}},
		"I1/one-winner-per-round-of-an-acquire-race",
		"I3/zombie-whole-batch-is-refused",
		"I3/zombie-multi-run-commit-is-refused",
		"I3/appends-to-many-runs-at-once-are-fenced-one-by-one",
		"I4/a-batch-applies-whole",
		"I4/a-commit-over-several-runs-applies-whole",
		"I5/a-long-journal-reads-whole-in-pages",
		"I8/a-repeat-gets-the-first-result",
		"I9/runnable-runs-come-in-order-and-in-pages",
		"I10/a-tailing-reader-misses-nothing",
		"I10/a-commit-wakes-who-waits",
		"I11/a-closed-store-answers-nothing-else",
		"I12/payloads-of-any-byte-come-back",
	)
}

// The connections of a migration and of wake-ups are made with the hooks of the pool, which may set
// credentials that expire and the role.
func TestHooksOfThePoolMakeEveryConnection(t *testing.T) {
	t.Parallel()
	for _, shared := range []bool{true, false} {
		t.Run(fmt.Sprint("shared=", shared), func(t *testing.T) {
			t.Parallel()
			address := emptyDatabase(t)
			config, err := pgxpool.ParseConfig(address)
			if err != nil {
				t.Fatal(err)
			}
			user := config.ConnConfig.User
			config.ConnConfig.User = "set by the hook"
			config.BeforeConnect = func(_ context.Context, c *pgx.ConnConfig) error { c.User = user; return nil }
			config.AfterConnect = func(ctx context.Context, c *pgx.Conn) error {
				_, err := c.Exec(ctx, "SET application_name = 'after connecting'")
				return err
			}
			opts := &postgres.Options{RetryTimeout: patience, StatementTimeout: patience, LockTimeout: patience}
			var s *postgres.Store
			if shared {
				pool, poolErr := pgxpool.NewWithConfig(t.Context(), config)
				if poolErr != nil {
					t.Fatal(poolErr)
				}
				t.Cleanup(pool.Close)
				s, err = postgres.New(t.Context(), pool, opts)
			} else {
				s, err = postgres.Open(t.Context(), config, opts)
			}
			if err != nil {
				t.Fatalf("over connections of the hooks: %v", err)
			}
			t.Cleanup(func() { _ = s.Close() })
			if _, err := s.Wakeups(t.Context()); err != nil {
				t.Fatal(err)
			}
			got := get[[]string](t, connect(t, address), `SELECT array_agg(DISTINCT application_name) FROM pg_stat_activity
				WHERE datname = current_database() AND query LIKE 'LISTEN%'`)
			if want := []string{"after connecting"}; !slices.Equal(got, want) {
				t.Errorf("sessions that listen: got %q, want %q", got, want)
			}
		})
	}
}

// A hook that fails leaves no connection, and what it was for is not done: the migration of an empty database.
// The next opening, with a hook that succeeds, migrates it.
func TestHookThatFailsConnectsNothing(t *testing.T) {
	t.Parallel()
	errHook := errors.New("no credentials today")
	for name, set := range map[string]func(c *pgxpool.Config, err error){
		"before": func(c *pgxpool.Config, err error) {
			c.BeforeConnect = func(context.Context, *pgx.ConnConfig) error { return err }
		},
		"after": func(c *pgxpool.Config, err error) {
			c.AfterConnect = func(context.Context, *pgx.Conn) error { return err }
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			address := emptyDatabase(t)
			open := func(hook error) (*postgres.Store, error) {
				config, err := pgxpool.ParseConfig(address)
				if err != nil {
					t.Fatal(err)
				}
				set(config, hook)
				return postgres.Open(t.Context(), config, &postgres.Options{RetryTimeout: time.Millisecond})
			}
			if s, err := open(errHook); !errors.Is(err, errHook) || runstore.OutcomeOf(err) != runstore.NotApplied {
				if err == nil {
					_ = s.Close()
				}
				t.Errorf("opening with a hook that fails: got %v, want the hook's error, not applied", err)
			}
			admin := connect(t, address)
			if n := get[int](t, admin, `SELECT count(*) FROM pg_namespace WHERE nspname = 'tapestore'`); n != 0 {
				t.Error("the database was migrated though the hook failed")
			}
			s, err := open(nil)
			if err != nil {
				t.Fatalf("opening with a hook that succeeds: %v", err)
			}
			_ = s.Close()
		})
	}
}

// The pool stays the caller's: the store closes nothing and changes no session.
func TestNewLeavesThePoolAsItIs(t *testing.T) {
	t.Parallel()
	pool := callersPool(t, database(t), "pool_max_conns=2")
	settings := func() (all string) {
		const text = `SELECT string_agg(name || '=' || setting, ' ' ORDER BY name) FROM pg_settings WHERE source = 'session' OR name = 'search_path'`
		return get[string](t, pool, text)
	}
	before := settings()
	one, err := postgres.New(t.Context(), pool, nil)
	if err != nil {
		t.Fatal(err)
	}
	other, err := postgres.New(t.Context(), pool, &postgres.Options{Schema: "other"})
	if err != nil {
		t.Fatalf("a store in another schema, over the same pool: %v", err)
	}
	for _, s := range []*postgres.Store{one, other} {
		if created, err := s.CreateRun(t.Context(), runstore.RunSpec{ID: "run"}); err != nil || !created.New {
			t.Errorf("create: %+v, %v", created, err)
		}
	}
	if err := one.Close(); err != nil {
		t.Error(err)
	}
	if _, err := one.GetRun(t.Context(), "run"); !errors.Is(err, runstore.ErrClosed) {
		t.Errorf("the closed store: %v, want ErrClosed", err)
	}
	if _, err := other.GetRun(t.Context(), "run"); err != nil {
		t.Errorf("the other store: %v", err)
	}
	if err := other.Close(); err != nil {
		t.Error(err)
	}
	if after := settings(); after != before {
		t.Errorf("the sessions have %s, had %s", after, before)
	}
}

// Each connection of the pool is checked before its first use, however late it is made.
func TestNewChecksEachConnection(t *testing.T) {
	t.Parallel()
	address, empty := database(t), emptyDatabase(t)
	for param, want := range map[string]string{
		"default_transaction_isolation=serializable": "default_transaction_isolation",
		"synchronous_commit=off":                     "synchronous_commit",
	} {
		_, err := postgres.New(t.Context(), callersPool(t, address, param), &postgres.Options{RetryTimeout: time.Millisecond})
		if !errors.Is(err, runstore.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("a pool with %s: %v, want ErrInvalid that names it", param, err)
		}
	}
	pool := callersPool(t, empty, "default_transaction_isolation=serializable")
	if _, err := postgres.New(t.Context(), pool, nil); err == nil {
		t.Error("opened over serializable sessions")
	}
	if n := get[int64](t, pool, `SELECT count(*) FROM pg_namespace WHERE nspname = 'tapestore'`); n != 0 {
		t.Error("a schema was made for a pool that the store refuses")
	}
	pool = callersPool(t, address, "pool_max_conns=1")
	s, err := postgres.New(t.Context(), pool, &postgres.Options{RetryTimeout: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	if _, err := s.GetRun(t.Context(), "run"); !errors.Is(err, runstore.ErrNotFound) {
		t.Fatalf("got %v, want ErrNotFound", err)
	}
	// What every new session of the role has from now on.
	exec(t, pool, `DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_isolation = serializable', current_database()); END $$`)
	if _, err := s.GetRun(t.Context(), "run"); !errors.Is(err, runstore.ErrNotFound) {
		t.Errorf("the connection that was checked: %v, want ErrNotFound", err)
	}
	pool.Reset()
	if _, err := s.GetRun(t.Context(), "run"); !errors.Is(err, runstore.ErrInvalid) {
		t.Errorf("a new connection: %v, want ErrInvalid", err)
	}
	pool.Reset()
	if _, err := s.CreateRun(t.Context(), runstore.RunSpec{ID: "run"}); runstore.OutcomeOf(err) != runstore.NotApplied {
		t.Errorf("a write on a new connection: %v, want that it was not applied", err)
	}
	if n := get[int64](t, pool, `SELECT count(*) FROM tapestore.runs`); n != 0 {
		t.Errorf("the refused write left %d runs", n)
	}
	if _, err := postgres.New(t.Context(), nil, nil); !errors.Is(err, runstore.ErrInvalid) {
		t.Errorf("no pool: %v, want ErrInvalid", err)
	}
}
