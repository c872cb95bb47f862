package sqlite

import (
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"runtime/debug"
	"sync/atomic"

	sqlite3 "modernc.org/sqlite/lib"
)

// damage records the corruption that the handles of one opening have found in their database. Once
// one of them has found any, writes are refused: on a damaged tree, one more written page may
// overwrite what a repair would still find. Reads continue, and fail where they meet damage. Only
// opening the store again clears the record.
//
// SQLite keeps no checksums. It detects a page that is not a page and a row that is not a row, but
// not a flipped bit within a value.
type damage struct {
	path   string
	logger *slog.Logger
	first  atomic.Pointer[error]
}

// note records err if it reports damage, and logs the first such error.
func (d *damage) note(err error) {
	if err != nil && d != nil && isDamage(err) {
		d.noteFirst(err)
	}
}

// noteFirst is separate from note because its argument escapes to the heap, and note is called
// after every statement.
func (d *damage) noteFirst(err error) {
	if !d.first.CompareAndSwap(nil, &err) {
		return
	}
	d.logger.Error("the database is damaged: writes are refused from now on; restore a backup, "+
		"or look at what PRAGMA integrity_check finds", "file", d.path, "error", err)
}

// refusal returns the error with which writes are refused, nil while no damage is known.
func (d *damage) refusal() error {
	first := d.first.Load()
	if first == nil {
		return nil
	}
	return &damagedError{fmt.Sprintf("writes to file %s are refused, because it is damaged: %v", d.path, *first)}
}

// damagedError reports a row that no program of this package has written, or a write that was
// refused because of damage.
type damagedError struct{ text string }

func (e *damagedError) Error() string { return e.text }

func damaged(format string, args ...any) error {
	return &damagedError{fmt.Sprintf(format, args...)}
}

// isDamage reports whether err reports damage: SQLite has found a corrupt page or a file that is no
// longer a database, or a row cannot be decoded. When the store is opened, explain reports a file
// that is not a database as invalid input instead.
func isDamage(err error) bool {
	var found *damagedError
	if errors.As(err, &found) {
		return true
	}
	return code(err) == sqlite3.SQLITE_CORRUPT || code(err) == sqlite3.SQLITE_NOTADB
}

// catchDamage runs f, which scans rows, and returns an error if a type conversion in f panics. That
// happens for a row of a form that no program of this package writes. It is damage, and the panic
// must not leave the writer's other callers waiting.
func (db *database) catchDamage(f func() error) (err error) {
	defer func() {
		switch fault := recover().(type) {
		case nil:
		case runtime.Error:
			err = damaged("a row cannot be read: %v", fault)
			db.opts.Logger.Error("a row of the database cannot be read", "file", db.path, "fault", fault, "stack", string(debug.Stack()))
		default:
			panic(fault)
		}
		db.damage.note(err)
	}()
	return f()
}
