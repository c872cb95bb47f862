package faultystores

import (
	"context"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter/wakeup"
)

// notifyStores send wrong hints of writes to single runs.
func notifyStores() []faultyStore {
	return []faultyStore{
		{"release-wakes-no-waiter", "A release does not wake the callers that wait for the lease.",
			"I10/a-freed-lease-wakes-its-waiters", releaseSilent},
		{"only-events-wake", "Only events wake the callers that wait for a run.",
			"I10/a-write-to-a-run-wakes-its-waiters", eventsWake},
		{"refused-writes-wake", "A refused write wakes the contenders, so they wake each other without end.",
			"I10/refused-writes-and-heartbeats-wake-no-waiter", refusalsWake},
		{"commits-wake-waiters-for-a-release", "Every commit of the holder wakes the callers that wait for its lease.",
			"I10/a-freed-lease-wakes-its-waiters", commitsWake},
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

// ownHub makes all waiters wait at a hub that only the faulty store wakes.
func ownHub(s *store) wakeup.Hub {
	hub := wakeup.Of(s)
	s.wakeups = func(ctx context.Context, _ *handle, id runstore.RunID, _ runstore.WakeOn) (<-chan struct{}, error) {
		return hub.Add(ctx, id, runstore.OnWrite), nil
	}
	return hub
}

func eventsWake(s *store) {
	hub := ownHub(s)
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
