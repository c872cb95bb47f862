package tapeserver

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tape"
)

func TestTheTableNamesEveryKindOnce(t *testing.T) {
	t.Parallel()
	own := []error{errUnauthenticated, errPermission, errUnchecked}
	for _, kind := range slices.Concat(tape.Kinds(), runstore.Kinds(), own) {
		rows := 0
		for _, w := range statusTable {
			if w.kind == kind {
				rows++
			}
		}
		if rows != 1 {
			t.Errorf("%q has %d rows in the table, want 1", kind, rows)
		}
	}
	if want := len(tape.Kinds()) + len(runstore.Kinds()) + len(own); len(statusTable) != want {
		t.Errorf("the table has %d rows, want %d", len(statusTable), want)
	}
}

// A client that is told PERMISSION_DENIED does not act. BeginEffect says so for every refusal but
// the protocol's own INTERNAL and faults that pass, and keeps the reason of the table.
func TestBeginEffectRefusalsForbidToAct(t *testing.T) {
	t.Parallel()
	other := map[error]codes.Code{
		tape.ErrRefused: codes.Internal, runstore.ErrConflict: codes.Aborted, runstore.ErrUnavailable: codes.Unavailable,
		errUnchecked: codes.Unavailable, runstore.ErrClosed: codes.Unavailable, runstore.ErrUnknownOutcome: codes.Unknown,
	}
	for _, w := range statusTable {
		err := beginEffectStatus(&runstore.OpError{Op: "commit", Run: "r", Err: w.kind})
		want, passes := other[w.kind]
		if !passes {
			want = codes.PermissionDenied
		}
		if got := status.Code(err); got != want || reasonOf(err) != w.reason {
			t.Errorf("%v: %v with reason %s, want %v with %s", w.kind, got, reasonOf(err), want, w.reason)
		}
	}
	if err := beginEffectStatus(nil); err != nil {
		t.Errorf("beginEffectStatus(nil) = %v", err)
	}
}

func TestStatusOf(t *testing.T) {
	t.Parallel()
	op := func(err, cause error) error {
		return &runstore.OpError{Op: "commit", Run: "r\xff", Err: err, Cause: cause}
	}
	for _, c := range []struct {
		name string
		err  error
		code codes.Code
		text string
	}{
		{"the protocol's words are bare", tape.ErrNoSuchRun, codes.NotFound, "no such run"},
		{"scope", &tape.ScopeError{Scope: "a"}, codes.PermissionDenied, `tape store: policy violation — scope "a" not granted to run`},
		{"invalid", op(&runstore.InputError{Kind: runstore.ErrInvalid, Field: "ttl", Problem: "is odd"}, nil), codes.InvalidArgument, "ttl"},
		{"too large", op(runstore.ErrTooLarge, nil), codes.InvalidArgument, ""},
		{"conflict", op(&runstore.ConflictError{Guard: "seq"}, nil), codes.Aborted, "tape store: commit"},
		{"fenced", op(&runstore.FencedError{Presented: 1, Current: 2}, nil), codes.FailedPrecondition, "token 1"},
		{"unavailable", op(runstore.ErrUnavailable, nil), codes.Unavailable, ""},
		{"unknown outcome", op(runstore.ErrUnknownOutcome, nil), codes.Unknown, ""},
		{"unknown outcome at the deadline", op(runstore.ErrUnknownOutcome, context.DeadlineExceeded), codes.Unknown, ""},
		{"unknown outcome, and the repeat unavailable", op(runstore.ErrUnknownOutcome, op(runstore.ErrUnavailable, nil)), codes.Unknown, ""},
		{"unknown outcome, and the repeat cancelled", op(runstore.ErrUnknownOutcome, op(runstore.ErrUnavailable, context.Canceled)), codes.Unknown, ""},
		{"unknown outcome, and the store closed", op(runstore.ErrUnknownOutcome, runstore.ErrClosed), codes.Unknown, ""},
		{"unknown outcome, and the repeat corrupt", op(runstore.ErrUnknownOutcome, runstore.ErrCorrupt), codes.Unknown, ""},
		{"not classified", errors.New("odd"), codes.Unknown, "odd"},
		{"cancelled before the store was asked", op(runstore.ErrUnavailable, context.Canceled), codes.Canceled, ""},
		{"late before the store was asked", op(runstore.ErrUnavailable, context.DeadlineExceeded), codes.DeadlineExceeded, ""},
		{"long", errors.New(strings.Repeat("é", 10_000)), codes.Unknown, "tape store: é"},
		{"unreadable", tape.ErrFormat, codes.Internal, "tape store: "},
		{"any bytes", op(&runstore.FencedError{Holder: runstore.Holder{Owner: "\xff", Token: 1}}, nil), codes.FailedPrecondition, ""},
	} {
		s := status.Convert(statusOf(c.err))
		if s.Code() != c.code || !strings.Contains(s.Message(), c.text) {
			t.Errorf("%s: %v, want %v with %q", c.name, s, c.code, c.text)
		}
		if len(s.Message()) > maxMessage || !utf8.ValidString(s.Message()) {
			t.Errorf("%s: a message of %d bytes, want up to %d, in UTF-8", c.name, len(s.Message()), maxMessage)
		}
		if len(s.Details()) != 1 {
			t.Errorf("%s: details %v, want one ErrorInfo", c.name, s.Details())
		}
	}
	if err := statusOf(nil); err != nil {
		t.Errorf("statusOf(nil) = %v", err)
	}
}
