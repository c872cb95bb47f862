// Package pace has the pauses of loops that repeat requests.
package pace

import (
	"context"
	"math/rand/v2"
	"time"
)

// Pause waits for d. It reports false if ctx has ended.
func Pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return ctx.Err() == nil
	}
}

// Jitter returns a random duration between d/2 and d, so that callers that failed together do not
// return together. d is not negative.
func Jitter(d time.Duration) time.Duration { return d/2 + rand.N(d-d/2+1) }
