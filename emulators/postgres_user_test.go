//go:build unix

package emulators

import (
	"os"
	"path/filepath"
	"testing"
)

func TestRootDropsItsPrivileges(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("not root: there is nothing to drop")
	}
	s := startPostgres(t, nil)
	if s.local.account == nil || s.local.account.uid == 0 {
		t.Fatalf("the server's account is %v, want one that is not root", s.local.account)
	}
	// The server writes this file itself.
	info, err := os.Stat(filepath.Join(s.local.data, "postmaster.pid"))
	if err != nil {
		t.Fatal(err)
	}
	if owner := ownerOf(info); owner == nil || *owner != *s.local.account {
		t.Errorf("the server runs as %v, want %v", owner, s.local.account)
	}
}

func TestDirectoryThatTheServerCannotReach(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("not root: the server is the same user as we")
	}
	startPostgres(t, nil)
	closed := filepath.Join(t.TempDir(), "closed")
	if err := os.Mkdir(closed, 0o700); err != nil {
		t.Fatal(err)
	}
	_, err := Postgres(t.Context(), &PostgresOptions{Dir: filepath.Join(closed, "data")})
	if err == nil || !contains(err, "cannot enter") {
		t.Errorf("got %v, want to hear which directory is closed", err)
	}
}
