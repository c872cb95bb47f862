package outcome_test

import (
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter/outcome"
	"github.com/tapestore/tapestore/runstore/localclock"
)

func TestWrap(t *testing.T) {
	t.Parallel()
	conflict := &runstore.ConflictError{Guard: "status"}
	tests := []struct {
		name string
		err  error
		kind error
		what runstore.Outcome
		is   error // still reachable
	}{
		{"an engine's error that nobody classified", io.ErrUnexpectedEOF, runstore.ErrUnknownOutcome, runstore.Unknown, io.ErrUnexpectedEOF},
		{"surely not applied", outcome.Unavailable(io.EOF), runstore.ErrUnavailable, runstore.NotApplied, io.EOF},
		{"perhaps applied", outcome.Unknown(io.EOF), runstore.ErrUnknownOutcome, runstore.Unknown, io.EOF},
		{"perhaps applied, and then refused", outcome.Unknown(outcome.Unavailable(io.EOF)), runstore.ErrUnknownOutcome, runstore.Unknown, io.EOF},
		{"the contract's own", conflict, runstore.ErrConflict, runstore.NotApplied, conflict},
		{"a kind of the adapter's choice", outcome.WithKind(runstore.ErrTooLarge, io.EOF), runstore.ErrTooLarge, runstore.NotApplied, io.EOF},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			err := outcome.Wrap("commit", "run", test.err)
			var op *runstore.OpError
			if !errors.As(err, &op) || op.Op != "commit" || op.Run != "run" {
				t.Errorf("%v names neither operation nor run", err)
			}
			if got := runstore.KindOf(err); got != test.kind {
				t.Errorf("kind %v, want %v", got, test.kind)
			}
			if got := runstore.OutcomeOf(err); got != test.what {
				t.Errorf("outcome %v, want %v", got, test.what)
			}
			if !errors.Is(err, test.is) {
				t.Errorf("%v does not lead to %v", err, test.is)
			}
		})
	}
	if err := outcome.Wrap("commit", "run", nil); err != nil {
		t.Errorf("no error became %v", err)
	}
}

func TestDefinite(t *testing.T) {
	t.Parallel()
	for err, want := range map[error]bool{
		io.EOF: false, outcome.Unavailable(io.EOF): true, outcome.Unknown(io.EOF): false, runstore.ErrFenced: true,
	} {
		if got := outcome.Definite(err); got != want {
			t.Errorf("Definite(%v) = %t, want %t", err, got, want)
		}
	}
}

func TestNotApplied(t *testing.T) {
	t.Parallel()
	if err := outcome.NotApplied(t.Context(), nil); err != nil {
		t.Errorf("no error became %v", err)
	}
	if err := outcome.NotApplied(t.Context(), runstore.ErrUnsupported); err != runstore.ErrUnsupported {
		t.Errorf("a definite error became %v", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	err := outcome.NotApplied(ended, io.EOF)
	if runstore.OutcomeOf(err) != runstore.NotApplied || !errors.Is(err, runstore.ErrUnavailable) {
		t.Errorf("got %v, want ErrUnavailable", err)
	}
	if !errors.Is(err, io.EOF) || !errors.Is(err, context.Canceled) {
		t.Errorf("%v leads to the engine's error and the context's no more", err)
	}
}

func TestBackoffEndsInTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		tries, n := outcome.NewBackoff(localclock.Clock{}, 5*time.Second, 4*time.Millisecond), 1
		for tries.More(t.Context()) {
			n++
		}
		if took := time.Since(began); took > 5*time.Second || took < 4*time.Second {
			t.Errorf("tried for %v, want nearly 5s", took)
		}
		if n < 20 || n > 60 {
			t.Errorf("%d tries, want pauses that grow to %v", n, outcome.MaxPause)
		}
	})
}

func TestBackoffEndsWithTheContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		tries := outcome.NewBackoff(localclock.Clock{}, time.Hour, time.Millisecond)
		for tries.More(ctx) {
		}
		if tries.Left() < 59*time.Minute {
			t.Errorf("gave up %v before its end", tries.Left())
		}
	})
}

func TestAttemptIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tries := outcome.NewBackoff(localclock.Clock{}, time.Minute, time.Millisecond)
		for _, bound := range []time.Duration{time.Second, time.Hour} {
			ctx, cancel := tries.Attempt(t.Context(), bound)
			deadline, _ := ctx.Deadline()
			if got, want := time.Until(deadline), min(bound, time.Minute); got != want {
				t.Errorf("a bound of %v became %v, want %v", bound, got, want)
			}
			cancel()
		}
	})
}

// A request that takes longer than the bound is not cut short at the same point again and
// again. Attempts that fail early keep the bound: what is lost then is sent again as soon.
func TestAttemptsThatRanIntoTheirBoundGetMoreTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := outcome.NewBackoff(localclock.Clock{}, time.Minute, time.Millisecond)
		for i, attempt := range []struct {
			lasts, want time.Duration
		}{
			{time.Hour, 4 * time.Second},
			{0, 8 * time.Second},
			{0, 8 * time.Second},
			{time.Hour, 8 * time.Second},
			{time.Hour, 16 * time.Second},
		} {
			ctx, cancel := b.Attempt(t.Context(), 4*time.Second)
			deadline, _ := ctx.Deadline()
			if got := time.Until(deadline); got != attempt.want {
				t.Errorf("attempt %d has %v, want %v", i+1, got, attempt.want)
			}
			if attempt.lasts > 0 {
				<-ctx.Done()
			}
			cancel()
			if !b.More(t.Context()) {
				t.Fatalf("no attempt after attempt %d, with %v left", i+1, b.Left())
			}
		}
	})
}
