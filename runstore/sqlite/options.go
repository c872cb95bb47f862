package sqlite

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/tapestore/tapestore/runstore/adapter"
	"github.com/tapestore/tapestore/runstore/adapter/outcome"
)

// Memory is the path of a database that lives as long as its handle.
const Memory = ":memory:"

// Synchronous selects when an acknowledged commit is on disk.
type Synchronous string

const (
	// Full syncs the write-ahead log at every commit, so acknowledged commits survive a power cut.
	// It is the default.
	Full Synchronous = "FULL"
	// Normal leaves the sync to the operating system. A power cut or a crash of the system may lose
	// the last acknowledged commits, grants among them; a crash of the process loses nothing. So the
	// first opening after each boot of the host raises the epoch, which ends all leases, if the store
	// was opened with Normal before, whether commits were lost or not. Other systems than Linux report
	// no boot: there the operator must raise the epoch after a power cut or a crash of the system.
	Normal Synchronous = "NORMAL"
)

// Options adjusts a store; nil means the defaults.
type Options struct {
	// Synchronous is Full by default.
	Synchronous Synchronous
	// MaxGroup is the maximum number of concurrent writes that share one transaction and one sync:
	// 512 by default, 1 turns group commit off.
	MaxGroup int
	// Readers is how many reads run at a time: by default as many as there are processors, and at
	// least 4.
	Readers int
	// MustExist refuses a file that does not exist instead of creating it.
	MustExist bool
	// ReadOnly opens an existing store for inspection: nothing is created, migrated or set, no
	// epoch is raised, and every write is refused with ErrUnsupported. After a kill of the last writer,
	// Close copies the log into the file, as SQLite does.
	ReadOnly bool
	// Logger receives an error when the database is found to be damaged. Nil means slog.Default.
	Logger *slog.Logger
	// Clock provides the host's clocks; tests replace it.
	Clock HostClock

	vfs       string // the name of SQLite's file system (VFS); empty is SQLite's own
	sweepRows int64  // how many rows of a purged run one operation deletes, for tests
	maxLog    int64  // the size in bytes from which the log is truncated, for tests
}

func (o *Options) withDefaults() (Options, error) {
	var opts Options
	if o != nil {
		opts = *o
	}
	if opts.Synchronous == "" {
		opts.Synchronous = Full
	}
	if opts.MaxGroup == 0 {
		opts.MaxGroup = 512
	}
	if opts.sweepRows == 0 {
		opts.sweepRows = sweepRows
	}
	if opts.maxLog == 0 {
		opts.maxLog = maxLog
	}
	if opts.Readers == 0 {
		opts.Readers = max(4, runtime.GOMAXPROCS(0))
	}
	if opts.Logger == nil {
		opts.Logger = slog.Default()
	}
	if opts.Clock == nil {
		opts.Clock = newSystemClock()
	}
	opts.MustExist = opts.MustExist || opts.ReadOnly
	var problems []error
	if opts.Synchronous != Full && opts.Synchronous != Normal {
		problems = append(problems, adapter.Invalid("synchronous", "%q is neither FULL nor NORMAL", opts.Synchronous))
	}
	if opts.MaxGroup < 1 || opts.MaxGroup > 10_000 {
		problems = append(problems, adapter.Invalid("group", "%d is out of range, the limits are 1 and 10000", opts.MaxGroup))
	}
	if opts.Readers < 1 || opts.Readers > 1000 {
		problems = append(problems, adapter.Invalid("readers", "%d is out of range, the limits are 1 and 1000", opts.Readers))
	}
	return opts, errors.Join(problems...)
}

// checkPath refuses paths that cannot be a database file, with a clearer message than SQLite's. It
// returns the absolute path, because the store must not move with the process's working directory.
func checkPath(path string, mustExist bool) (string, error) {
	field := "store URL"
	if path == "" {
		return "", adapter.Invalid(field, "has no file; write sqlite:FILE or sqlite::memory:")
	}
	if strings.ContainsRune(path, 0) {
		return "", adapter.Invalid(field, "the file name holds a NUL byte")
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	info, err := os.Stat(abs)
	if err == nil && !info.Mode().IsRegular() {
		return "", adapter.Invalid(field, "%s is no regular file", path)
	}
	if err != nil && mustExist {
		return "", adapter.Invalid(field, "there is no file %s", path)
	}
	if dir, err := os.Stat(filepath.Dir(abs)); err != nil || !dir.IsDir() {
		return "", adapter.Invalid(field, "there is no directory %s", filepath.Dir(path))
	}
	abs = resolve(abs)
	return abs, checkLog(abs)
}

// checkLog refuses a backup that was put over the file of a database whose log is left. SQLite pairs the
// two by name, and would replay the newer pages of the log onto the backup.
//
// It recognizes a backup that was made by VACUUM INTO or SQLite's backup API. The versions in such a file's
// header (https://www.sqlite.org/fileformat.html#file_format_version_numbers) are 1, and SQLite sets and syncs
// the 2 of a database with a log before it creates the log. The log is looked at first, because another
// process may create it meanwhile. A plain copy of the file cannot be recognized.
//
// Reading the header closes a descriptor of the file, which would end locks of POSIX, see explain.
func checkLog(path string) error {
	log, err := os.Stat(path + "-wal")
	if err != nil || log.Size() == 0 || !sqlite.OFDLockingEnabled() {
		return nil
	}
	file, err := os.Open(path)
	if err != nil {
		return nil // SQLite reports it
	}
	defer func() { _ = file.Close() }()
	var versions [2]byte
	if _, err := file.ReadAt(versions[:], 18); err != nil || versions != [2]byte{1, 1} {
		return nil
	}
	return adapter.Invalid("store URL", "file %s is a backup, and the log %[1]s-wal is of the database that was there before; "+
		"to restore the backup delete %[1]s-wal and %[1]s-shm, and keep %[1]s-witness", path)
}

// resolve resolves the links of a path as SQLite does, also links that lead to no file yet. So all links to a
// file lead to the same watermark, which is in the directory of the file. A path that cannot be resolved is
// left to SQLite, which refuses it.
func resolve(path string) string {
	for range 100 { // links that lead to links
		if real, err := filepath.EvalSymlinks(path); err == nil {
			return real
		}
		dir, err := filepath.EvalSymlinks(filepath.Dir(path))
		if err != nil {
			break
		}
		path = filepath.Join(dir, filepath.Base(path))
		target, err := os.Readlink(path)
		if err != nil {
			break // no link: the file will be created here
		}
		if !filepath.IsAbs(target) {
			target = filepath.Join(dir, target)
		}
		path = target
	}
	return path
}

// explain adds to SQLite's error the name of the file and what to check. A process that has run out
// of file descriptors gets the same code as a process that may not open the file; explain opens
// another file to distinguish the two. It must not open the database: where locks are those of POSIX
// (README.md), closing any descriptor of a file ends all locks that the process has on it, also those of
// a store that is open.
func explain(path string, err error) error {
	if code(err) == sqlite3.SQLITE_CANTOPEN {
		file, openErr := os.Open(os.DevNull)
		if openErr == nil {
			_ = file.Close()
		}
		if errors.Is(openErr, syscall.EMFILE) || errors.Is(openErr, syscall.ENFILE) {
			return outcome.Unavailable(errors.Join(openErr, err))
		}
	}
	if isDamage(err) && code(err) != sqlite3.SQLITE_NOTADB {
		return fmt.Errorf("file %s: %w", path, err)
	}
	hint, ok := map[int]string{
		sqlite3.SQLITE_CANTOPEN: "it cannot be opened or created; are it and its directory writable?",
		sqlite3.SQLITE_READONLY: "it cannot be written; are it and its directory writable?",
		sqlite3.SQLITE_NOTADB:   "it is not a database",
	}[code(err)]
	if !ok {
		return err
	}
	if code(err) == sqlite3.SQLITE_NOTADB {
		return outcome.WithKind(adapter.Invalid("store URL", "file %s: %s", path, hint), err)
	}
	return outcome.Unavailable(fmt.Errorf("file %s: %s: %w", path, hint, err)) // the URL is well-formed
}
