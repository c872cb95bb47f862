package outcome

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/tapestore/tapestore/runstore/localclock"
)

// MaxPause bounds the pause between two tries.
const MaxPause = 200 * time.Millisecond

// Tries paces the repeats of one operation by the clock of its process: time that is
// spent here ends patience, never a lease.
type Tries struct {
	clock localclock.Clock
	until localclock.Reading
	pause time.Duration
}

// NewTries allows repeats for so long, with pauses that double from first, jittered.
func NewTries(clock localclock.Clock, patience, first time.Duration) *Tries {
	return &Tries{clock: clock, until: clock.Read().Add(patience), pause: first}
}

// Left is the time until no further try is made; it may be negative.
func (t *Tries) Left() time.Duration { return t.clock.Until(t.until) }

// More waits before another try, and reports whether there is to be one: there is time
// left for it and ctx has not ended.
func (t *Tries) More(ctx context.Context) bool {
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
		return true
	}
}

// Attempt returns the context of one request: it ends with ctx, when there is no time
// left, or after the bound, so that a request which was lost is repeated.
func (t *Tries) Attempt(ctx context.Context, bound time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, min(bound, max(t.Left(), time.Millisecond)))
}
