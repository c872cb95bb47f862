package bigtable

import (
	"context"
	"time"
)

// Rounds brings the events that a handle without workers has committed into the feed, as
// its worker would when it is woken: those, and no events of other handles.
func Rounds(ctx context.Context, s *Store) { s.feed.rounds(byTest(ctx)) }

// CloseAtRest closes a handle without workers as one whose worker has not begun to bring
// its last events into the feed. The worker may take up to grace for them.
func CloseAtRest(s *Store, grace time.Duration) error {
	select {
	case <-s.feed.kick:
	default:
	}
	s.closeGrace = grace
	s.background.Go(func() {
		<-s.feed.done
		s.feed.work()
	})
	return s.Close()
}
