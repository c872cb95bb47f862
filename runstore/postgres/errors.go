package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/puddle/v2"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/outcome"
)

var (
	// errNoAnswer and errDisagree cannot happen while statements, functions and
	// package rules mean the same.
	errNoAnswer = errors.New("postgres: a write answered without a row")
	errDisagree = errors.New("postgres: the check of the statement and that of the rules disagree")
)

// retried are the unique indexes that refuse a write which has another end later: under the number
// of another transaction (see feed.go), at another time, where a place was at the same one, or with
// a newer snapshot, which has the id or the record (see commitStatements).
var retryableIndexes = []string{"events_position", "places_pkey", "batches_pkey", "records_pkey"}

// fate is what an error of the engine says about the statement that met it.
type errClass int

const (
	// lost: it may have been applied.
	classAmbiguous errClass = iota
	// failed: it was rolled back, and a repeat would fail too.
	classRolledBack
	// again: it was not applied, and a repeat may succeed.
	classRetryable
	// closed: the handle was.
	classClosed
)

// notSent marks an error that came before anything was sent.
type notSent struct{ error }

func (e notSent) Unwrap() error { return e.error }

// fateOf classifies by the driver's types and the SQLSTATE, never by the text. A
// statement outside a transaction block is a transaction of its own, so an ERROR
// about it means that it was rolled back. FATAL ends the session and may come
// after the commit.
func classify(err error) errClass {
	var unsent notSent
	var server *pgconn.PgError
	switch {
	case errors.Is(err, puddle.ErrClosedPool):
		return classClosed
	case errors.As(err, &server):
		switch code := server.Code; {
		case errors.As(err, &unsent) && permanent(code):
			return classRolledBack
		case errors.As(err, &unsent):
			return classRetryable
		case code == "40001", code == "40P01", // serialization failure, deadlock
			code == "25006",                  // read-only: a standby that is about to be promoted, or a primary on its way out
			code == "26000", code == "0A000", // a plan that went with its session, or with a migration
			code == "23505" && slices.Contains(retryableIndexes, server.ConstraintName):
			return classRetryable
		case strings.HasPrefix(code, "08"), strings.HasPrefix(code, "57P"), code == "40003": // the last: completion unknown
			return classAmbiguous
		case server.SeverityUnlocalized == "FATAL" || server.SeverityUnlocalized == "PANIC":
			return classAmbiguous
		default:
			return classRolledBack
		}
	case errors.As(err, &unsent):
		return classRetryable
	case errors.Is(err, pgconn.ErrConnClosed):
		// pgx says so, and that it is safe to repeat, also of a connection that broke
		// after a batch or a simple query was sent: its reader of several results looks
		// ahead, closes at the error and then meets its own closing.
		return classAmbiguous
	case pgconn.SafeToRetry(err):
		return classRetryable
	default:
		return classAmbiguous
	}
}

// rejected returns the error of an operation whose fate is failed. A statement that names
// what the schema does not have is ErrUnsupported if a newer program has migrated the schema
// since this handle was opened (see migrations), which a look at its version shows. An event
// for which no position is left is ErrTooLarge. Every
// other is ErrUnavailable. Nothing was applied in any case.
func (s *Store) rejected(ctx context.Context, err error) error {
	var server *pgconn.PgError
	if errors.As(err, &server) && server.Code == "23514" && server.ConstraintName == "events_position_limit" {
		return outcome.WithKind(&runstore.InputError{Kind: runstore.ErrTooLarge, Field: "position", Problem: fmt.Sprintf(
			"the store has none left for an event, the limit is %d", runstore.MaxPosition)}, err)
	}
	if undefined(err) {
		newer := s.readOnce(ctx, func(q *query) error {
			_, err := s.schemaVersion(q.ctx, q.conn, len(migrations()))
			return err
		})
		if errors.Is(newer, runstore.ErrUnsupported) {
			return outcome.WithKind(newer, err)
		}
	}
	return outcome.Unavailable(outcome.Cause(ctx, err))
}

// undefined reports whether a statement names a function, a table or a column that the
// schema does not have.
func undefined(err error) bool {
	var server *pgconn.PgError
	return errors.As(err, &server) && slices.Contains([]string{"42883", "42P01", "42703"}, server.Code)
}

// spoils reports whether an error may be that of one statement or batch alone, so that its
// neighbours in a transaction may be applied without it.
func isolatable(err error) bool {
	var server *pgconn.PgError
	return classify(err) == classRolledBack && !timedOut(err) || errors.As(err, &server) && server.Code == "23505"
}

// timedOut reports whether the server gave a statement up for its time, or for a
// lock that another session holds: its neighbours would fare no better alone.
func timedOut(err error) bool {
	var server *pgconn.PgError
	return errors.As(err, &server) && (server.Code == "55P03" || server.Code == "57014")
}

// permanent errors of connecting: wrong credentials (28), no such database (3D),
// a parameter that the server does not take (22, 42).
func permanent(code string) bool {
	return slices.ContainsFunc([]string{"28", "3D", "22", "42"}, func(class string) bool { return strings.HasPrefix(code, class) })
}
