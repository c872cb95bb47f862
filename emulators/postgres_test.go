package emulators

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
)

// postgresForTest starts a server of the test's own.
func postgresForTest(t *testing.T, opts *PostgresOptions) *PostgresServer {
	t.Helper()
	s, err := Postgres(t.Context(), opts)
	Require(t, err)
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return s
}

// run runs statements on a connection of their own.
func run(t *testing.T, url string, statements ...string) {
	t.Helper()
	if err := tryExec(t.Context(), url, statements...); err != nil {
		t.Fatal(err)
	}
}

func tryExec(ctx context.Context, url string, statements ...string) error {
	c, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer closeConn(ctx, c)
	for _, statement := range statements {
		if _, err := c.Exec(ctx, statement); err != nil {
			return err
		}
	}
	return nil
}

// ask runs a query that answers one value.
func ask[V any](t *testing.T, url, query string) V {
	t.Helper()
	c, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer closeConn(t.Context(), c)
	var v V
	if err := c.QueryRow(t.Context(), query).Scan(&v); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return v
}

func TestDatabaseFromTemplate(t *testing.T) {
	s := postgresForTest(t, nil)
	t.Log(s.Engine(), s.URL())
	name, err := s.Template(t.Context(), "v1", func(ctx context.Context, url string) error {
		return tryExec(ctx, url, "CREATE TABLE kept (n int)", "INSERT INTO kept VALUES (7)")
	})
	if err != nil {
		t.Fatal(err)
	}
	d, err := s.NewDatabase(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	if got := ask[int](t, d.URL, "SELECT n FROM kept"); got != 7 {
		t.Errorf("the copy holds %d, want 7", got)
	}
	if err := d.Drop(t.Context()); err != nil {
		t.Error(err)
	}
}
