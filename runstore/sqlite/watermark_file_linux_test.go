package sqlite

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// A kernel or sandbox without statx (before Linux 4.11; some filters of system calls) has another
// call for the identity of a file. Without one, each commit would remove the watermark, and each
// opening would raise the epoch.
func TestFileIdentityWithoutStatx(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	want, err := idAtPath(path)
	if err != nil {
		t.Fatal(err)
	}
	former := statxCall
	t.Cleanup(func() { statxCall = former })
	for _, missing := range []error{unix.ENOSYS, unix.EPERM} {
		statxCall = func(int, string, int, int, *unix.Statx_t) error { return missing }
		at, err1 := idAtPath(path)
		open, err2 := idOfFile(file)
		if err1 != nil || err2 != nil || !at.same(want) || !open.same(want) {
			t.Errorf("%v: got %v, %v and %v, %v; want %v", missing, at, err1, open, err2, want)
		}
		if _, err := idAtPath(path + " absent"); !os.IsNotExist(err) {
			t.Errorf("%v: got %v for an absent file", missing, err)
		}
	}
}
