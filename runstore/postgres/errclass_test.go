package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/puddle/v2"

	"github.com/tapestore/tapestore/runstore/postgres"
)

func serverError(severity, code string) error {
	return &pgconn.PgError{Severity: severity, SeverityUnlocalized: severity, Code: code, Message: "whatever it says"}
}

// safe is an error that pgx reports as having occurred before it sent anything.
type safe struct{ error }

func (safe) SafeToRetry() bool { return true }

// The class of an error says whether the statement was applied.
func TestClassify(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		err  error
		want string
	}{
		// The statement was rolled back, and a repeat may succeed.
		{serverError("ERROR", "40001"), "retryable"},
		{serverError("ERROR", "40P01"), "retryable"},
		{serverError("ERROR", "25006"), "retryable"},
		{serverError("ERROR", "26000"), "retryable"},
		{serverError("ERROR", "0A000"), "retryable"},
		{&pgconn.PgError{SeverityUnlocalized: "ERROR", Code: "23505", ConstraintName: "events_position"}, "retryable"},
		// It was rolled back, and a repeat would fail.
		{&pgconn.PgError{SeverityUnlocalized: "ERROR", Code: "23505", ConstraintName: "events_pkey"}, "rolled back"},
		{serverError("ERROR", "55P03"), "rolled back"},
		{serverError("ERROR", "57014"), "rolled back"},
		{serverError("ERROR", "53100"), "rolled back"},
		{serverError("ERROR", "42501"), "rolled back"},
		{serverError("ERROR", "42P01"), "rolled back"},
		{serverError("ERROR", "22P02"), "rolled back"},
		{serverError("ERROR", "XX000"), "rolled back"},
		// The session ended, perhaps after the commit.
		{serverError("FATAL", "57P01"), "ambiguous"},
		{serverError("FATAL", "57P02"), "ambiguous"},
		{serverError("FATAL", "57P03"), "ambiguous"},
		{serverError("FATAL", "57P05"), "ambiguous"},
		{serverError("FATAL", "25P03"), "ambiguous"},
		{serverError("FATAL", "XX000"), "ambiguous"},
		{serverError("PANIC", "58030"), "ambiguous"},
		{serverError("FATAL", "08006"), "ambiguous"},
		{serverError("ERROR", "08P01"), "ambiguous"},
		{serverError("FATAL", ""), "ambiguous"},
		{&pgconn.PgError{Severity: "FATAL", Code: "58000"}, "ambiguous"}, // of a proxy that leaves out the field V
		{&pgconn.PgError{Severity: "ERROR", Code: "58000"}, "rolled back"},
		// The connection broke, or the driver gave up.
		{io.ErrUnexpectedEOF, "ambiguous"},
		{io.EOF, "ambiguous"},
		{&net.OpError{Op: "read", Err: syscall.ECONNRESET}, "ambiguous"},
		{context.DeadlineExceeded, "ambiguous"},
		{context.Canceled, "ambiguous"},
		{pgconn.ErrConnClosed, "ambiguous"},
		{errors.New("anything else"), "ambiguous"},
		// Nothing was sent.
		{safe{io.EOF}, "retryable"},
		{fmt.Errorf("in words: %w", safe{io.EOF}), "retryable"},
		{postgres.NotSent(io.EOF), "retryable"},
		{postgres.NotSent(context.Canceled), "retryable"},
		{postgres.NotSent(pgconn.ErrConnClosed), "retryable"},
		{postgres.NotSent(&net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}), "retryable"},
		{postgres.NotSent(serverError("FATAL", "57P03")), "retryable"},
		{postgres.NotSent(serverError("FATAL", "53300")), "retryable"},
		// Connecting will fail again.
		{postgres.NotSent(serverError("FATAL", "28P01")), "rolled back"},
		{postgres.NotSent(serverError("FATAL", "28000")), "rolled back"},
		{postgres.NotSent(serverError("FATAL", "3D000")), "rolled back"},
		{postgres.NotSent(serverError("FATAL", "22023")), "rolled back"},
		{postgres.NotSent(serverError("ERROR", "42P01")), "rolled back"},
		{postgres.NotSent(serverError("FATAL", "")), "retryable"},
		// The handle was closed.
		{puddle.ErrClosedPool, "closed"},
		{postgres.NotSent(puddle.ErrClosedPool), "closed"},
	} {
		if got := postgres.ErrClass(tc.err); got != tc.want {
			t.Errorf("%v (%T): got %s, want %s", tc.err, tc.err, got, tc.want)
		}
	}
}
