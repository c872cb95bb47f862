package gallery

import (
	"context"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/wakeup"
)

// notifyExhibits hint wrongly at writes to single runs.
func notifyExhibits() []exhibit {
	return []exhibit{
		{"release-wakes-nobody", "Who waits for a lease is not told of its release.",
			"I10/what-frees-a-lease-wakes-who-waits-for-it", releaseSilent},
		{"only-events-wake", "Who waits for a run is told of its events alone.",
			"I10/writes-to-a-run-wake-who-waits-for-it", eventsWake},
		{"refused-writes-wake", "A write that was refused is hinted at, so that contenders wake each other.",
			"I10/refused-writes-and-heartbeats-wake-nobody", refusalsWake},
		{"commits-wake-who-waits-for-a-release", "Who waits for a lease is told of every commit of its holder.",
			"I10/what-frees-a-lease-wakes-who-waits-for-it", commitsWake},
	}
}

func releaseSilent(s *store) {
	s.wakeups = func(ctx context.Context, h *handle, id runstore.RunID, on runstore.WakeOn) (<-chan struct{}, error) {
		if on == runstore.OnRelease {
			return make(chan struct{}), nil
		}
		return h.Handle.RunWakeups(ctx, id, on)
	}
}

// own has who waits for a run wait at a hub that only the broken store wakes.
func own(s *store) wakeup.Hub {
	hub := wakeup.Of(s)
	s.wakeups = func(ctx context.Context, _ *handle, id runstore.RunID, _ runstore.WakeOn) (<-chan struct{}, error) {
		return hub.Add(ctx, id, runstore.OnWrite), nil
	}
	return hub
}

func eventsWake(s *store) {
	hub := own(s)
	s.commit = func(ctx context.Context, h *handle, b runstore.Batch) (done runstore.Committed, err error) {
		if len(b.Events) > 0 {
			defer hub.AfterBatches(&err, b)
		}
		return h.Handle.Commit(ctx, b)
	}
}

func refusalsWake(s *store) {
	s.acquire = func(ctx context.Context, h *handle, req runstore.AcquireRequest) (runstore.Granted, error) {
		defer wakeup.Of(h.store.Store).Wake(runstore.OnRelease, req.Run)
		return h.Handle.AcquireLease(ctx, req)
	}
}

func commitsWake(s *store) {
	s.wakeups = func(ctx context.Context, h *handle, id runstore.RunID, _ runstore.WakeOn) (<-chan struct{}, error) {
		return h.Handle.RunWakeups(ctx, id, runstore.OnWrite)
	}
}
