package sqlite

import (
	"errors"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter/outcome"
)

// classify returns the error of an operation, an unclassified one as unavailable. Only a COMMIT
// leaves an outcome unknown, and the writer classifies the errors of COMMIT itself.
func classify(_ runstore.RunID, err error) error {
	if outcome.Definite(err) {
		return err
	}
	return unavailable(err)
}

// unavailable classifies the error of a statement other than COMMIT, after which nothing was applied.
func unavailable(cause error) error {
	kind := runstore.ErrUnavailable
	switch {
	case isDamage(cause):
		kind = runstore.ErrCorrupt
	case code(cause) == sqlite3.SQLITE_TOOBIG:
		kind = runstore.ErrTooLarge
	}
	return outcome.WithKind(kind, cause)
}

// code returns SQLite's primary result code, 0 for an error that is not SQLite's.
func code(err error) int {
	var e *sqlite.Error
	if !errors.As(err, &e) {
		return 0
	}
	return e.Code() & 0xff
}

// errLocked reports that another process has the watermark locked.
var errLocked = errors.New("the witness file is locked by another process")

// isBusy reports whether err means that another process writes at the moment.
func isBusy(err error) bool {
	return errors.Is(err, errLocked) || code(err) == sqlite3.SQLITE_BUSY || code(err) == sqlite3.SQLITE_LOCKED
}
