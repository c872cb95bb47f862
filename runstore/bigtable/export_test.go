package bigtable

import (
	"context"

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
