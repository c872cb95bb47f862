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

// safe is an error that pgx met before it sent anything.
type safe struct{ error }

func (safe) SafeToRetry() bool { return true }

// What an error says about the statement that met it: was it applied?
func TestFates(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		err  error
		want string
	}{
		// The statement was rolled back, and a repeat may succeed.
		{serverError("ERROR", "40001"), "again"},
		{serverError("ERROR", "40P01"), "again"},
		{serverError("ERROR", "25006"), "again"},
		{serverError("ERROR", "26000"), "again"},
		{serverError("ERROR", "0A000"), "again"},
		{&pgconn.PgError{SeverityUnlocalized: "ERROR", Code: "23505", ConstraintName: "events_position"}, "again"},
		// It was rolled back, and a repeat would fail.
		{&pgconn.PgError{SeverityUnlocalized: "ERROR", Code: "23505", ConstraintName: "events_pkey"}, "failed"},
		{serverError("ERROR", "55P03"), "failed"},
		{serverError("ERROR", "57014"), "failed"},
		{serverError("ERROR", "53100"), "failed"},
		{serverError("ERROR", "42501"), "failed"},
		{serverError("ERROR", "42P01"), "failed"},
		{serverError("ERROR", "22P02"), "failed"},
		{serverError("ERROR", "XX000"), "failed"},
		// The session ended, perhaps after the commit.
		{serverError("FATAL", "57P01"), "lost"},
		{serverError("FATAL", "57P02"), "lost"},
		{serverError("FATAL", "57P03"), "lost"},
		{serverError("FATAL", "57P05"), "lost"},
		{serverError("FATAL", "25P03"), "lost"},
		{serverError("FATAL", "XX000"), "lost"},
		{serverError("PANIC", "58030"), "lost"},
		{serverError("FATAL", "08006"), "lost"},
		{serverError("ERROR", "08P01"), "lost"},
		{serverError("FATAL", ""), "lost"},
		// The connection broke, or the driver gave up.
		{io.ErrUnexpectedEOF, "lost"},
		{io.EOF, "lost"},
		{&net.OpError{Op: "read", Err: syscall.ECONNRESET}, "lost"},
		{context.DeadlineExceeded, "lost"},
		{context.Canceled, "lost"},
		{pgconn.ErrConnClosed, "lost"},
		{errors.New("anything else"), "lost"},
		// Nothing was sent.
		{safe{io.EOF}, "again"},
		{fmt.Errorf("in words: %w", safe{io.EOF}), "again"},
		{postgres.NotSent(io.EOF), "again"},
		{postgres.NotSent(context.Canceled), "again"},
		{postgres.NotSent(pgconn.ErrConnClosed), "again"},
		{postgres.NotSent(&net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}), "again"},
		{postgres.NotSent(serverError("FATAL", "57P03")), "again"},
		{postgres.NotSent(serverError("FATAL", "53300")), "again"},
		// Connecting will fail again.
		{postgres.NotSent(serverError("FATAL", "28P01")), "failed"},
		{postgres.NotSent(serverError("FATAL", "28000")), "failed"},
		{postgres.NotSent(serverError("FATAL", "3D000")), "failed"},
		{postgres.NotSent(serverError("FATAL", "22023")), "failed"},
		{postgres.NotSent(serverError("ERROR", "42P01")), "failed"},
		{postgres.NotSent(serverError("FATAL", "")), "again"},
		// The handle was closed.
		{puddle.ErrClosedPool, "closed"},
		{postgres.NotSent(puddle.ErrClosedPool), "closed"},
	} {
		if got := postgres.ErrClass(tc.err); got != tc.want {
			t.Errorf("%v (%T): got %s, want %s", tc.err, tc.err, got, tc.want)
		}
	}
}
