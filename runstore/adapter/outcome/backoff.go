package outcome

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/tapestore/tapestore/runstore/localclock"
)

// MaxPause bounds the pause between two attempts: 200 ms.
const MaxPause = 200 * time.Millisecond

// Backoff paces the attempts of one operation with jittered exponential backoff, on the clock of
// its process. That clock ends the operation's retries, never a lease.
type Backoff struct {
	clock localclock.Clock
	until localclock.Reading
	pause time.Duration

	deadline localclock.Reading // of the last attempt; zero before the first
	factor   time.Duration      // multiplies the bound of the next attempt
}

// NewBackoff returns a Backoff that allows retries until retryTimeout has passed. Its jittered
// pauses double from first up to [MaxPause].
func NewBackoff(clock localclock.Clock, retryTimeout, first time.Duration) *Backoff {
	return &Backoff{clock: clock, until: clock.Read().Add(retryTimeout), pause: first, factor: 1}
}

// Left returns the time until the retry timeout. It may be negative.
func (t *Backoff) Left() time.Duration { return t.clock.Until(t.until) }

// More pauses before another attempt and reports whether to make it. It returns false when too
// little time is left or ctx has ended.
func (t *Backoff) More(ctx context.Context) bool {
	pause := t.pause/2 + rand.N(t.pause)
	t.pause = min(2*t.pause, MaxPause)
	if t.Left() < pause {
		return false
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		countRetry(ctx)
		return true
	}
}

// Attempt returns the context of one request. The context ends with ctx, when no time is left, or
// after bound, so that a lost request is sent again. Each attempt that exceeds its bound doubles
// the bound of the next. Otherwise a request that takes the engine longer than bound, such as a
// large commit over a slow network, would be sent again and again and never complete.
func (t *Backoff) Attempt(ctx context.Context, bound time.Duration) (context.Context, context.CancelFunc) {
	if !t.deadline.IsZero() && t.clock.Until(t.deadline) <= 0 {
		t.factor *= 2
	}
	bound = min(t.factor*bound, max(t.Left(), time.Millisecond))
	t.deadline = t.clock.Read().Add(bound)
	return context.WithTimeout(ctx, bound)
}
