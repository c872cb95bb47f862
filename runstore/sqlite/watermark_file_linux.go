package sqlite

import (
	"os"

	"golang.org/x/sys/unix"
)

// fileID identifies a file.
type fileID struct {
	dev, ino uint64
}

func (id fileID) same(other fileID) bool { return id == other }

// idOfFile returns the identity of an open file.
func idOfFile(f *os.File) (fileID, error) { return statx(int(f.Fd()), "", unix.AT_EMPTY_PATH) }

// idAtPath returns the identity of the file that is at a path now.
//
// It requests no times. From Linux 6.13 a request for a file's times makes the next write stamp the
// file anew ("multigrain timestamps"), and the stamp would be part of the next commit's sync: 50 µs
// of 200 µs (BenchmarkLoneWriter). Otherwise the times change with the kernel's tick only.
func idAtPath(path string) (fileID, error) { return statx(unix.AT_FDCWD, path, 0) }

func statx(dir int, path string, flags int) (fileID, error) {
	for {
		var at unix.Statx_t
		err := unix.Statx(dir, path, flags, unix.STATX_INO, &at)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return fileID{}, &os.PathError{Op: "statx", Path: path, Err: err}
		}
		return fileID{dev: uint64(at.Dev_major)<<32 | uint64(at.Dev_minor), ino: at.Ino}, nil
	}
}
