package runstore_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// Every kind has one outcome, however it is wrapped, and an unclassified error has an unknown
// outcome.
func TestOutcomes(t *testing.T) {
	t.Parallel()
	for _, kind := range runstore.Kinds() {
		want := runstore.NotApplied
		if kind == runstore.ErrUnknownOutcome {
			want = runstore.Unknown
		}
		wrapped := fmt.Errorf("outside: %w", &runstore.OpError{Op: "commit", Run: "run", Err: kind, Cause: context.Canceled})
		for _, err := range []error{kind, wrapped} {
			if got := runstore.KindOf(err); got != kind {
				t.Errorf("%v: got kind %v, want %v", err, got, kind)
			}
			if got := runstore.OutcomeOf(err); got != want {
				t.Errorf("%v: got outcome %v, want %v", err, got, want)
			}
		}
		if !errors.Is(wrapped, context.Canceled) {
			t.Errorf("%v: the cause cannot be reached", wrapped)
		}
	}
	for _, err := range []error{errors.New("surprise"), context.DeadlineExceeded} {
		if got := runstore.OutcomeOf(err); got != runstore.Unknown {
			t.Errorf("%v: got outcome %v, want unknown", err, got)
		}
	}
	if runstore.OutcomeOf(nil) != runstore.Applied || runstore.KindOf(nil) != nil {
		t.Error("no error must mean applied and have no kind")
	}
}

// A detail matches its kind and no other.
func TestDetailsMatchTheirKind(t *testing.T) {
	t.Parallel()
	for detail, kind := range map[error]error{
		&runstore.LeaseHeldError{Remaining: time.Second}:                   runstore.ErrLeaseHeld,
		&runstore.FencedError{Presented: 1, Current: 2}:                    runstore.ErrFenced,
		&runstore.ConflictError{Guard: "version", Key: "k"}:                runstore.ErrConflict,
		&runstore.StoreBehindError{Field: "token", Presented: 2, Known: 1}: runstore.ErrStoreBehind,
		&runstore.InputError{Kind: runstore.ErrTooLarge, Field: "owner"}:   runstore.ErrTooLarge,
		&runstore.CorruptError{Run: "run", Cause: io.ErrUnexpectedEOF}:     runstore.ErrCorrupt,
	} {
		for _, other := range runstore.Kinds() {
			if got, want := errors.Is(detail, other), other == kind; got != want {
				t.Errorf("%T is %v: got %v, want %v", detail, other, got, want)
			}
		}
	}
}

func TestTokens(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		last  runstore.Token
		epoch runstore.Epoch
		next  runstore.Token
		text  string
	}{
		{0, 0, 1, "1"},
		{41, 0, 42, "42"},
		{41, 1, 1<<40 + 1, "1.1"},
		{1<<40 + 1, 1, 1<<40 + 2, "1.2"},
		{1<<40 + 7, 3, 3<<40 + 1, "3.1"},
		{0, runstore.MaxEpoch, 8191<<40 + 1, "8191.1"},
	} {
		next := tc.last.Next(tc.epoch)
		if next != tc.next || next.String() != tc.text || next.Epoch() != tc.epoch || next <= tc.last {
			t.Errorf("after %d in epoch %d: got %d (%s) of epoch %d, want %d (%s)", tc.last, tc.epoch, next, next, next.Epoch(), tc.next, tc.text)
		}
		if next >= 1<<53 {
			t.Errorf("token %d is too large for a double", next)
		}
	}
}

// A time relative to the store clock is resolved at the commit.
func TestWhen(t *testing.T) {
	t.Parallel()
	now := time.Date(2030, 1, 2, 3, 4, 5, 6789, time.FixedZone("far", 3600))
	for name, tc := range map[string]struct {
		when runstore.When
		want time.Time
	}{
		"nothing":  {runstore.When{}, time.Time{}},
		"never":    {runstore.Never(), time.Time{}},
		"after":    {runstore.After(time.Second), time.Date(2030, 1, 2, 2, 4, 6, 6000, time.UTC)},
		"absolute": {runstore.At(now), time.Date(2030, 1, 2, 2, 4, 5, 6000, time.UTC)},
	} {
		if got := tc.when.Resolve(now); !got.Equal(tc.want) || got.Location() != time.UTC {
			t.Errorf("%s: got %v, want %v", name, got, tc.want)
		}
	}
	if !(runstore.When{}).IsZero() || runstore.Never().IsZero() {
		t.Error("only the zero When says nothing")
	}
}
