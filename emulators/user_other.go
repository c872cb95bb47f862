//go:build !unix

package emulators

import (
	"os"
	"os/exec"
)

// account is the user that an engine runs as: always our own here.
type account struct{}

func engineAccount(...string) (*account, error) { return nil, nil }

func ownerOf(os.FileInfo) *account { return nil }

func isOurs(os.FileInfo) bool { return true }

func (*account) apply(*exec.Cmd) {}

func (*account) own(string) error { return nil }

func (*account) canReach(string) error { return nil }

func temporaryRoot() string { return os.TempDir() }
