//go:build unix

package postgres

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/tapestore/tapestore/emulators/internal/host"
	"github.com/tapestore/tapestore/emulators/internal/hosttest"
)

func TestRootDropsItsPrivileges(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("not root: there is nothing to drop")
	}
	s := startServer(t, nil)
	if s.local.account == nil || s.local.account.UID == 0 {
		t.Fatalf("the server's account is %v, want one that is not root", s.local.account)
	}
	// The server writes this file itself.
	info, err := os.Stat(filepath.Join(s.local.data, "postmaster.pid"))
	if err != nil {
		t.Fatal(err)
	}
	if owner := host.OwnerOf(info); owner == nil || *owner != *s.local.account {
		t.Errorf("the server runs as %v, want %v", owner, s.local.account)
	}
}

func TestDirectoryThatTheServerCannotReach(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("not root: the server is the same user as we")
	}
	startServer(t, nil)
	closed := filepath.Join(t.TempDir(), "closed")
	if err := os.Mkdir(closed, 0o700); err != nil {
		t.Fatal(err)
	}
	_, err := Start(t.Context(), &Options{Dir: filepath.Join(closed, "data")})
	if err == nil || !hosttest.Contains(err, "cannot enter") {
		t.Errorf("got %v, want to hear which directory is closed", err)
	}
}
