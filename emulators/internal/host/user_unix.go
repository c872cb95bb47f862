//go:build unix

package host

import (
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
)

// Account is the user that an engine runs as; nil means our own.
type Account struct{ UID, GID uint32 }

// EngineAccount returns the account for an engine that refuses root: the first of these users that
// exists. It returns nil if this process is not root.
func EngineAccount(names ...string) (*Account, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	for _, name := range names {
		found, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err := strconv.ParseUint(found.Uid, 10, 32)
		if err != nil {
			return nil, err
		}
		gid, err := strconv.ParseUint(found.Gid, 10, 32)
		if err != nil {
			return nil, err
		}
		return &Account{uint32(uid), uint32(gid)}, nil
	}
	return nil, fmt.Errorf("running as root, and none of the users %v is there to run the server as", names)
}

// OwnerOf returns the account that a file belongs to; nil means our own.
func OwnerOf(info os.FileInfo) *Account {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || int(stat.Uid) == os.Geteuid() {
		return nil
	}
	return &Account{stat.Uid, stat.Gid}
}

// isOurs reports whether a file belongs to our user.
func isOurs(info os.FileInfo) bool { return OwnerOf(info) == nil }

// Apply makes cmd run as the account.
func (a *Account) Apply(cmd *exec.Cmd) {
	if a == nil {
		return
	}
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Credential = &syscall.Credential{Uid: a.UID, Gid: a.GID}
}

// Own makes the account the owner of a file.
func (a *Account) Own(path string) error {
	if a == nil {
		return nil
	}
	return os.Chown(path, int(a.UID), int(a.GID))
}

// CanReach returns an error if the account cannot enter some directory of a path.
func (a *Account) CanReach(path string) error {
	if a == nil {
		return nil
	}
	for dir := path; ; dir = filepath.Dir(dir) {
		info, err := os.Stat(dir)
		if err != nil {
			return err
		}
		stat, ok := info.Sys().(*syscall.Stat_t)
		if !ok {
			return nil
		}
		enter := uint32(0o001)
		switch { // the first that applies decides
		case stat.Uid == a.UID:
			enter = 0o100
		case stat.Gid == a.GID:
			enter = 0o010
		}
		if uint32(info.Mode().Perm())&enter == 0 {
			return fmt.Errorf("the user %d, whom the server runs as, cannot enter %s (mode %v)", a.UID, dir, info.Mode().Perm())
		}
		if dir == filepath.Dir(dir) {
			return nil
		}
	}
}

// TemporaryRoot returns where temporary directories are made: the system's place, or /tmp if this
// process is root and another user could not enter that place.
func TemporaryRoot() string {
	dir := os.TempDir()
	anybody := &Account{UID: ^uint32(0) - 1, GID: ^uint32(0) - 1}
	if os.Geteuid() == 0 && anybody.CanReach(dir) != nil {
		return "/tmp"
	}
	if real, err := filepath.EvalSymlinks(dir); err == nil { // as /proc and ps show it
		return real
	}
	return dir
}
