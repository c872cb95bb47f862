package bigtable

import (
	"context"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/tapestore/tapestore/runstore"
)

// PublishPending brings the events that a handle without workers has committed into the feed, as
// its worker would when it is woken: those, and no events of other handles.
func PublishPending(ctx context.Context, s *Store) {
	s.engine.feed.publishPending(byTest(ctx))
}

// CloseAtRest closes a handle without workers as one whose worker has not begun to bring
// its last events into the feed. The worker may take up to grace for them.
func CloseAtRest(s *Store, grace time.Duration) error {
	select {
	case <-s.engine.feed.pending.wake:
	default:
	}
	s.engine.closeGrace = grace
	s.engine.background.Go(func() {
		<-s.engine.draining
		s.engine.feed.work()
	})
	return s.Close()
}

// WriteBack makes a handle without workers write complete pages of the feed's log back to the rows of
// their runs, as its worker would every few seconds.
func WriteBack(ctx context.Context, s *Store) error { return s.engine.feed.writeBack(byTest(ctx)) }

// PageEntries is how many appends a page of the feed's log takes.
const PageEntries = pageEntries

// SetEnd has a handle take a number for the end of the feed's log, as if it had been suspended since.
func SetEnd(s *Store, number int64) { s.engine.feed.end = number }

// RecordHighWater records in the row of a run, as a program of format 4 does, that the feed has its events up to
// seq, the last of them in a segment.
func RecordHighWater(ctx context.Context, s *Store, id runstore.RunID, generation, seq, number int64) error {
	m := bigtable.NewMutation()
	for _, column := range []string{columnStep(generation, number), columnThrough(generation)} {
		m.Set(familyFeed, column, timestampOf(number), []byte(be64(seq)))
	}
	return s.engine.writeAll(byTest(ctx), []mutation{{runKey(id), m, 128}})
}
