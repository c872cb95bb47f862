// Package filelock locks files that show other processes that their owner lives. The lock is that of
// the open file: it excludes other processes and other handles of this process, and it ends when the
// file is closed, also by the death of the process.
//
// Two systems have such locks: flock(2) on Unix, but for Solaris and AIX, and LockFileEx on Windows.
// Elsewhere, and on a file system that has no locks, [Try] fails with [errors.ErrUnsupported].
package filelock
