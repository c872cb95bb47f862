package bigtable

import (
	"context"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// StopBackground ends what a handle does beside the operations, now and in future.
// The operations go on.
func StopBackground(s *Store) { s.stop() }

// Sequence brings the events of a run into the feed.
func Sequence(ctx context.Context, s *Store, ids ...runstore.RunID) error {
	return s.feed.sequence(ctx, ids...)
}

// Seal moves the events of a run that has many into segments.
func Seal(ctx context.Context, s *Store, id runstore.RunID) error { return s.sealRun(ctx, id) }

// Sweep passes over the marks. With idle set every run counts as idle.
func Sweep(ctx context.Context, s *Store, idle bool) error {
	if idle {
		s.clock.mu.Lock()
		known := s.clock.last
		s.clock.last.server = known.server.Add(time.Hour)
		s.clock.mu.Unlock()
		defer func() {
			s.clock.mu.Lock()
			s.clock.last = known
			s.clock.mu.Unlock()
		}()
	}
	return s.sweepMarks(ctx)
}

// EmptyWaste deletes now what would be deleted in the background.
func EmptyWaste(ctx context.Context, s *Store) { s.waste.empty(ctx) }
