package sqlite

import (
	"errors"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/tapestore/tapestore/runstore"
)

// opError names the operation and the run in an error of the contract; an error
// of the engine that nothing classified becomes ErrUnavailable, because only a
// COMMIT leaves an outcome unknown, and the writer says so where it does.
func opError(op string, id runstore.RunID, err error) error {
	if err == nil {
		return nil
	}
	var faulted *fault
	if errors.As(err, &faulted) {
		return &runstore.OpError{Op: op, Run: id, Err: faulted.kind, Cause: faulted.cause}
	}
	if runstore.KindOf(err) == runstore.ErrUnknownOutcome && !errors.Is(err, runstore.ErrUnknownOutcome) {
		return &runstore.OpError{Op: op, Run: id, Err: kindOf(err), Cause: err}
	}
	return &runstore.OpError{Op: op, Run: id, Err: err}
}

// fault is an error of the engine or the context whose outcome is known.
type fault struct{ kind, cause error }

func (f *fault) Error() string   { return f.kind.Error() + ": " + f.cause.Error() }
func (f *fault) Unwrap() []error { return []error{f.kind, f.cause} }

func unavailable(cause error) error { return &fault{kindOf(cause), cause} }
func unknown(cause error) error     { return &fault{runstore.ErrUnknownOutcome, cause} }

// kindOf classifies an error of a statement that was not a COMMIT, so that
// nothing was applied.
func kindOf(err error) error {
	switch code(err) {
	case sqlite3.SQLITE_NOTADB:
		return runstore.ErrInvalid
	case sqlite3.SQLITE_TOOBIG:
		return runstore.ErrTooLarge
	default:
		return runstore.ErrUnavailable
	}
}

// code returns SQLite's primary result code, 0 for another error.
func code(err error) int {
	var e *sqlite.Error
	if !errors.As(err, &e) {
		return 0
	}
	return e.Code() & 0xff
}

func isBusy(err error) bool {
	return code(err) == sqlite3.SQLITE_BUSY || code(err) == sqlite3.SQLITE_LOCKED
}
