package bigtable

import (
	"context"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter/outcome"
)

// LearnFingerprints reads the fingerprints of a run, as a handle does in the background, if the handle lacks some,
// and returns how many digests it has.
func LearnFingerprints(ctx context.Context, s *Store, id runstore.RunID) (digests int, err error) {
	ctx = byTest(ctx)
	var known fingerprints
	look := func() error {
		_, err := s.engine.withLock(ctx, id, func(_ context.Context, r *cachedRun, _ *outcome.Backoff) (bool, error) {
			for r.learning.Load() { // refused, for a handle without work in the background
				time.Sleep(time.Millisecond)
			}
			known = r.fingerprints
			return false, nil
		})
		return err
	}
	if err := look(); err != nil {
		return 0, err
	}
	if c := s.engine.moveLists.of(id); c != nil && known.of != c.id() {
		if err := s.engine.fetchFingerprints(ctx, id, c, known); err != nil {
			return 0, err
		}
		err = look()
	}
	return len(known.digests), err
}
