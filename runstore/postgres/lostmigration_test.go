package postgres_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/postgres"
)

// A failover loses the last migration, as it may lose the last commits. A handle that is open repeats the
// migration over its next connection; one that may not migrate applies nothing until another has done so.
func TestFailoverLosesTheMigration(t *testing.T) {
	t.Parallel()
	for _, migrates := range []bool{true, false} {
		t.Run(fmt.Sprint("migrates: ", migrates), func(t *testing.T) {
			t.Parallel()
			address := database(t)
			params := []string{"default_query_exec_mode=exec"}
			if !migrates {
				params = append(params, "migrate=no", "retry_timeout=100ms")
			}
			s, conn := open(t, with(address, params...)), connect(t, address)
			a, b := hold(t, s, "a"), hold(t, s, "b")
			// The server is now one of the version before, and has none of the handle's connections.
			last := get[int](t, conn, schemaVersion)
			exec(t, conn, `DROP FUNCTION tapestore.require_applied(tapestore.answer)`)
			exec(t, conn, `DELETE FROM tapestore.migrations WHERE version = $1`, last)
			exec(t, conn, `SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()`)
			both := []runstore.Batch{appending(a, "a1"), appending(b, "b1")}
			_, err := s.CommitMulti(t.Context(), both)
			if !migrates {
				if err == nil || !strings.Contains(err.Error(), "migration is turned off") {
					t.Errorf("got error %v, want one that says that migration is turned off", err)
				}
				open(t, address)
				_, err = s.CommitMulti(t.Context(), both)
			}
			if err != nil {
				t.Errorf("after the failover: %v", err)
			}
			if got := get[int](t, conn, schemaVersion); got != last {
				t.Errorf("got version %d, want %d", got, last)
			}
		})
	}
}

// Operations of a handle that may not migrate wait until another handle has repeated the migration.
func TestOperationsWaitForTheMigration(t *testing.T) {
	t.Parallel()
	address := database(t)
	var connections atomic.Int64
	s := open(t, with(address, "default_query_exec_mode=exec", "migrate=no", "retry_timeout=1h"), func(c *pgxpool.Config, _ *postgres.Options) {
		c.AfterConnect = func(context.Context, *pgx.Conn) error {
			connections.Add(1)
			return nil
		}
	})
	conn := connect(t, address)
	lease := hold(t, s, "run")
	exec(t, conn, `DELETE FROM tapestore.migrations WHERE version = $1`, get[int](t, conn, schemaVersion))
	exec(t, conn, `SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()`)
	before, done := connections.Load(), make(chan error, 2)
	go func() {
		_, err := s.GetRun(context.WithoutCancel(t.Context()), "run")
		done <- err
	}()
	go func() {
		_, err := s.Commit(context.WithoutCancel(t.Context()), appending(lease, "x"))
		done <- err
	}()
	await(t, "connections that are refused", func() bool { return connections.Load() >= before+6 || len(done) == cap(done) })
	open(t, address)
	for range cap(done) {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}
