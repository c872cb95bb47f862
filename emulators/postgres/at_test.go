package postgres

import (
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/tapestore/tapestore/emulators"
)

// A server that somebody else runs is used, and left as it was.
func TestAt(t *testing.T) {
	t.Parallel()
	own := startServer(t, nil)
	s, err := At(t.Context(), own.URL())
	if err != nil {
		t.Fatal(err)
	}
	if e := s.Engine(); e.Tier != emulators.TierService || e.Version != own.Engine().Version {
		t.Errorf("it is %s, want %s as a service", e, own.Engine())
	}
	if err := s.Kill(); !errors.Is(err, emulators.ErrNotOwned) {
		t.Errorf("kill: %v, want ErrNotOwned", err)
	}
	made, err := s.NewDatabase(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	for name, want := range map[string]bool{made.Name: false, "postgres": true} {
		if got := hasDatabase(t, own, name); got != want {
			t.Errorf("database %s is there: %v, want %v", name, got, want)
		}
	}
	if _, err := At(t.Context(), "host=127.0.0.1"); err == nil || !strings.Contains(err.Error(), "postgres://user@host") {
		t.Errorf("an address of the other form: %v, want the form to write", err)
	}
}

// A database that is kept is made once, and stays.
func TestKeepDatabase(t *testing.T) {
	t.Parallel()
	own := startServer(t, nil)
	s, err := At(t.Context(), own.URL())
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		address, err := s.KeepDatabase(t.Context(), `kept "so"`)
		if err != nil {
			t.Fatal(err)
		}
		config, err := pgx.ParseConfig(address)
		if err != nil || config.Database != `kept "so"` {
			t.Errorf("the URL leads to %v, %v", config, err)
		}
	}
	if err := s.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	if !hasDatabase(t, own, `kept "so"`) {
		t.Error("it is gone")
	}
}

func hasDatabase(t *testing.T, s *Server, name string) (there bool) {
	t.Helper()
	if err := s.admin(t.Context(), func(c *pgx.Conn) error {
		return c.QueryRow(t.Context(), "SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)", name).Scan(&there)
	}); err != nil {
		t.Fatal(err)
	}
	return there
}
