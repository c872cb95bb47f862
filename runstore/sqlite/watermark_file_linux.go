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

// statxCall is unix.Statx; a test replaces it.
var statxCall = unix.Statx

func statx(dir int, path string, flags int) (fileID, error) {
	for {
		var at unix.Statx_t
		err := statxCall(dir, path, flags, unix.STATX_INO, &at)
		if err == unix.EINTR {
			continue
		}
		if err == unix.ENOSYS || err == unix.EPERM { // before Linux 4.11, or refused by a sandbox
			return fstatat(dir, path, flags)
		}
		if err != nil {
			return fileID{}, &os.PathError{Op: "statx", Path: path, Err: err}
		}
		return fileID{dev: uint64(at.Dev_major)<<32 | uint64(at.Dev_minor), ino: at.Ino}, nil
	}
}

// fstatat is statx for systems without it.
func fstatat(dir int, path string, flags int) (fileID, error) {
	for {
		var at unix.Stat_t
		err := unix.Fstatat(dir, path, &at, flags)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return fileID{}, &os.PathError{Op: "fstatat", Path: path, Err: err}
		}
		dev := uint64(at.Dev)
		return fileID{dev: uint64(unix.Major(dev))<<32 | uint64(unix.Minor(dev)), ino: at.Ino}, nil
	}
}
