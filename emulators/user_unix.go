//go:build unix

package emulators

import (
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
)

// account is the user that an engine runs as; nil means our own.
type account struct{ uid, gid uint32 }

// engineAccount returns the account for an engine that refuses root: the first of these users that
// exists. It returns nil if this process is not root.
func engineAccount(names ...string) (*account, error) {
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
		return &account{uint32(uid), uint32(gid)}, nil
	}
	return nil, fmt.Errorf("running as root, and none of the users %v is there to run the server as", names)
}

// ownerOf returns the account that a file belongs to; nil means our own.
func ownerOf(info os.FileInfo) *account {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || int(stat.Uid) == os.Geteuid() {
		return nil
	}
	return &account{stat.Uid, stat.Gid}
}

// isOurs reports whether a file belongs to our user.
func isOurs(info os.FileInfo) bool { return ownerOf(info) == nil }

// apply makes cmd run as the account.
func (a *account) apply(cmd *exec.Cmd) {
	if a == nil {
		return
	}
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Credential = &syscall.Credential{Uid: a.uid, Gid: a.gid}
}

// own makes the account the owner of a file.
func (a *account) own(path string) error {
	if a == nil {
		return nil
	}
	return os.Chown(path, int(a.uid), int(a.gid))
}

// canReach returns an error if the account cannot enter some directory of a path.
func (a *account) canReach(path string) error {
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
		case stat.Uid == a.uid:
			enter = 0o100
		case stat.Gid == a.gid:
			enter = 0o010
		}
		if uint32(info.Mode().Perm())&enter == 0 {
			return fmt.Errorf("the user %d, whom the server runs as, cannot enter %s (mode %v)", a.uid, dir, info.Mode().Perm())
		}
		if dir == filepath.Dir(dir) {
			return nil
		}
	}
}

// temporaryRoot returns where temporary directories are made: the system's place, or /tmp if this
// process is root and another user could not enter that place.
func temporaryRoot() string {
	dir := os.TempDir()
	anybody := &account{uid: ^uint32(0) - 1, gid: ^uint32(0) - 1}
	if os.Geteuid() == 0 && anybody.canReach(dir) != nil {
		return "/tmp"
	}
	if real, err := filepath.EvalSymlinks(dir); err == nil { // as /proc and ps show it
		return real
	}
	return dir
}
