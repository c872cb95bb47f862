//go:build !unix

package host

import (
	"os"
	"os/exec"
)

// Account is the user that an engine runs as: always our own here.
type Account struct{}

// EngineAccount returns nil.
func EngineAccount(...string) (*Account, error) { return nil, nil }

// OwnerOf returns nil.
func OwnerOf(os.FileInfo) *Account { return nil }

func isOurs(os.FileInfo) bool { return true }

// Apply does nothing.
func (*Account) Apply(*exec.Cmd) {}

// Own does nothing.
func (*Account) Own(string) error { return nil }

// CanReach returns nil.
func (*Account) CanReach(string) error { return nil }

// TemporaryRoot returns the system's place for temporary directories.
func TemporaryRoot() string { return os.TempDir() }
