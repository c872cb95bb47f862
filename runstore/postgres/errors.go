package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/puddle/v2"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter/outcome"
)

var (
	// errNoAnswer and errDisagree cannot happen while the statements, the functions and
	// package rules agree.
	errNoAnswer = errors.New("postgres: a write answered without a row")
	errDisagree = errors.New("postgres: the check of the statement and that of the rules disagree")
)

// retryableIndexes are the unique indexes whose violation a retry resolves: the retry has another
// transaction number (see feed.go), another time where an index entry had the same one, or a newer
// snapshot, which contains the id or the record (see commitStatements).
var retryableIndexes = []string{"events_position", "places_pkey", "batches_pkey", "records_pkey"}

// errClass is the class of an error: whether the statement may have been applied, and whether a
// retry helps.
type errClass int

const (
	// classAmbiguous: the statement may have been applied.
	classAmbiguous errClass = iota
	// classRolledBack: the statement was rolled back, and a retry would fail too.
	classRolledBack
	// classRetryable: the statement was not applied, and a retry may succeed.
	classRetryable
	// classClosed: the handle is closed.
	classClosed
)

// notSent marks an error that occurred before anything was sent.
type notSent struct{ error }

func (e notSent) Unwrap() error { return e.error }

// classify returns the class of an error, by the driver's types and the SQLSTATE, never by the
// text. A statement outside a transaction block is a transaction of its own, so ERROR means that it
// was rolled back. FATAL ends the session and may come after the commit.
func classify(err error) errClass {
	var unsent notSent
	var server *pgconn.PgError
	switch {
	case errors.Is(err, puddle.ErrClosedPool):
		return classClosed
	case errors.As(err, new(oldSchema)):
		return classRetryable
	case errors.As(err, &server):
		switch code := server.Code; {
		case errors.As(err, &unsent) && permanent(code):
			return classRolledBack
		case errors.As(err, &unsent):
			return classRetryable
		case code == "40001", code == "40P01", // serialization failure, deadlock
			code == "25006",                  // read-only: a standby before its promotion, or a primary that is shutting down
			code == "26000", code == "0A000", // a plan that was lost with its session, or is invalid after a migration
			code == "23505" && slices.Contains(retryableIndexes, server.ConstraintName):
			return classRetryable
		case strings.HasPrefix(code, "08"), strings.HasPrefix(code, "57P"), code == "40003": // 40003: statement completion unknown
			return classAmbiguous
		case severity(server) == "FATAL" || severity(server) == "PANIC":
			return classAmbiguous
		default:
			return classRolledBack
		}
	case errors.As(err, &unsent):
		return classRetryable
	case errors.Is(err, pgconn.ErrConnClosed):
		// pgx returns ErrConnClosed, and reports it as safe to retry, also for a connection that
		// broke after a batch or a simple query was sent: its reader of several results looks
		// ahead, closes the connection at the error and then reports that closing.
		return classAmbiguous
	case pgconn.SafeToRetry(err):
		return classRetryable
	default:
		return classAmbiguous
	}
}

// severity returns the severity of an error. A proxy may leave out the field that is not localized.
func severity(server *pgconn.PgError) string {
	return cmp.Or(server.SeverityUnlocalized, server.Severity)
}

// rejected returns the error of an operation whose class is classRolledBack. Nothing was applied.
// It is ErrUnsupported if the statement names something that the schema does not have because a
// newer program has migrated it since this handle was opened (see migrations); rejected then reads
// the schema's version. It is ErrTooLarge if no position is left for an event, and ErrUnavailable
// otherwise.
func (e *engine) rejected(ctx context.Context, err error) error {
	var server *pgconn.PgError
	if errors.As(err, &server) && server.Code == "23514" && server.ConstraintName == "events_position_limit" {
		return outcome.WithKind(&runstore.InputError{Kind: runstore.ErrTooLarge, Field: "position", Problem: fmt.Sprintf(
			"the store has none left for an event, the limit is %d", runstore.MaxPosition)}, err)
	}
	if undefined(err) {
		newer := e.readOnce(ctx, func(q *query) error {
			_, err := e.schemaVersion(q.ctx, q.conn)
			return err
		})
		if errors.Is(newer, runstore.ErrUnsupported) {
			return outcome.WithKind(newer, err)
		}
	}
	return outcome.Unavailable(outcome.Cause(ctx, err))
}

// undefined reports whether err is for a function, a table or a column that the schema does not
// have.
func undefined(err error) bool {
	var server *pgconn.PgError
	return errors.As(err, &server) && slices.Contains([]string{"42883", "42P01", "42703"}, server.Code)
}

// isolatable reports whether an error may concern one statement or batch alone, so that its
// neighbours in the transaction may succeed without it.
func isolatable(err error) bool {
	var server *pgconn.PgError
	return classify(err) == classRolledBack && !timedOut(err) || errors.As(err, &server) && server.Code == "23505"
}

// timedOut reports whether the server ended a statement for its duration or for a lock that another
// session holds. Its neighbours would fare no better alone.
func timedOut(err error) bool {
	var server *pgconn.PgError
	return errors.As(err, &server) && (server.Code == "55P03" || server.Code == "57014")
}

// permanent reports whether an error of connecting would recur: wrong credentials (28), no such
// database (3D), a parameter that the server refuses (22, 42).
func permanent(code string) bool {
	return slices.ContainsFunc([]string{"28", "3D", "22", "42"}, func(class string) bool { return strings.HasPrefix(code, class) })
}
