//go:build unix

package postgres_test

import (
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// directory creates a directory that a server running as another user can enter.
func directory(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "tapestore-test-")
	if err == nil {
		err = os.Chmod(dir, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// copyData makes a standby of the data that a server left in a directory.
func copyData(t *testing.T, from, to string) {
	t.Helper()
	from, to = filepath.Join(from, "data"), filepath.Join(to, "data")
	put := func(path string, info fs.FileInfo, content []byte) error {
		err := os.WriteFile(path, content, info.Mode().Perm())
		if owner, ok := info.Sys().(*syscall.Stat_t); ok && err == nil {
			err = os.Chown(path, int(owner.Uid), int(owner.Gid))
		}
		return err
	}
	err := filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		target := to + strings.TrimPrefix(path, from)
		if !d.IsDir() {
			content, err := os.ReadFile(path)
			if err != nil || d.Name() == "postmaster.pid" {
				return err
			}
			return put(target, info, content)
		}
		if err := os.Mkdir(target, info.Mode().Perm()); err != nil {
			return err
		}
		if owner, ok := info.Sys().(*syscall.Stat_t); ok {
			return os.Chown(target, int(owner.Uid), int(owner.Gid))
		}
		return nil
	})
	if err == nil {
		var info fs.FileInfo
		if info, err = os.Stat(filepath.Join(to, "PG_VERSION")); err == nil {
			err = put(filepath.Join(to, "standby.signal"), info, nil)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
}

// at returns a database's URL on another server.
func at(t *testing.T, address, host string) string {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	u.Host = host
	return u.String()
}
