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

// damage is what the handles of one opening know of their database's corruption. From the
// moment in which one of them meets it, writes are refused: on a damaged tree, one page
// more may overwrite what a repair would still find. Reads go on, and fail where they
// meet damage. Only opening the store again forgets it.
//
// SQLite keeps no checksums. It notices a page that is no page and a row that is no row,
// but not a bit that has flipped within a value.
type damage struct {
	path   string
	logger *slog.Logger
	first  atomic.Pointer[error]
}

// note remembers err if it tells of damage, and logs the first that does.
func (d *damage) note(err error) {
	if err != nil && d != nil && isDamage(err) {
		d.noteFirst(err)
	}
}

// noteFirst is apart from note because its argument is moved to the heap, and note is called
// after every statement.
func (d *damage) noteFirst(err error) {
	if !d.first.CompareAndSwap(nil, &err) {
		return
	}
	d.logger.Error("the database is damaged: writes are refused from now on; restore a backup, "+
		"or look at what PRAGMA integrity_check finds", "file", d.path, "error", err)
}

// refusal returns the error with which writes are refused; nil while no damage is known.
func (d *damage) refusal() error {
	first := d.first.Load()
	if first == nil {
		return nil
	}
	return &damagedError{fmt.Sprintf("writes to file %s are refused, because it is damaged: %v", d.path, *first)}
}

// damagedError tells of a row that no program of this package has written, or of a write
// that is refused for damage.
type damagedError struct{ text string }

func (e *damagedError) Error() string { return e.text }

func damaged(format string, args ...any) error {
	return &damagedError{fmt.Sprintf(format, args...)}
}

// isDamage reports whether err tells of damage. A file that is no database when it is
// opened is another one's; a file that ceases to be one is damaged.
func isDamage(err error) bool {
	var found *damagedError
	if errors.As(err, &found) {
		return true
	}
	return code(err) == sqlite3.SQLITE_CORRUPT || code(err) == sqlite3.SQLITE_NOTADB
}

// intact runs f, which scans rows. A row of another shape than every program of this
// package writes makes a conversion in f panic. That is damage, and it must not leave
// the writer's other callers waiting.
func (s *core) catchDamage(f func() error) (err error) {
	defer func() {
		switch fault := recover().(type) {
		case nil:
		case runtime.Error:
			err = damaged("a row cannot be read: %v", fault)
			s.opts.Logger.Error("a row of the database cannot be read", "file", s.path, "fault", fault, "stack", string(debug.Stack()))
		default:
			panic(fault)
		}
		s.damage.note(err)
	}()
	return f()
}
