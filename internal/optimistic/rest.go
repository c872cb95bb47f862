package optimistic

import (
	"context"
	"math/rand/v2"
	"time"
)

// MaxAttempts is how often an operation starts over because another writer changed what it had
// read. Another writer has made progress in every lost round.
const MaxAttempts = 16

const (
	// firstRest is the mean pause after the first lost round: about the time of a commit on a
	// local disk. It doubles from round to round up to maxRest.
	firstRest = 2 * time.Millisecond
	maxRest   = 100 * time.Millisecond
)

// Rest pauses for a jittered time that doubles with n, the number of earlier pauses. It returns
// lost, the conflict, if ctx ends first.
func Rest(ctx context.Context, n int, lost error) error {
	rest := min(firstRest<<min(n, MaxAttempts), maxRest)
	timer := time.NewTimer(rest/2 + rand.N(rest))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return lost
	}
}
