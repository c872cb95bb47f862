package inspector

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

const (
	// watchInterval, 2 s, is how often a request that waits reads: no store announces a renewal.
	watchInterval = 2 * time.Second
	// wakeGap, 250 ms, is the least time between two reads after announcements, which a busy run
	// causes with every commit.
	wakeGap = 250 * time.Millisecond
)

// runView is the head of a run with its last event.
type runView struct {
	Now  time.Time  `json:"now"`
	Run  headView   `json:"run"`
	Last *eventView `json:"last,omitempty"`
	// Problems are what needs attention in the head.
	Problems []problemView `json:"problems"`
	// Tag names this state. A request with seen=Tag and a wait is answered when the state differs.
	Tag string `json:"tag"`
}

// run returns a run's head and its last event. With seen and wait it waits until the run differs from
// the state of that tag, for at most wait.
func (in *inspector) run(ctx context.Context, p params) (any, error) {
	id, err := p.run()
	if err != nil {
		return nil, err
	}
	wait, err := p.wait()
	if err != nil {
		return nil, err
	}
	if wait == 0 {
		return in.readRun(ctx, id)
	}
	var wake <-chan struct{}
	if notifier, ok := runstore.As[runstore.RunNotifier](in.store); ok {
		subscription, cancel := context.WithCancel(ctx)
		defer cancel()
		if wake, err = notifier.RunWakeups(subscription, id, runstore.OnWrite); err != nil {
			wake = nil // the interval remains
		}
	}
	return in.follow(ctx, wait, wake, func() (any, bool, error) {
		v, err := in.readRun(ctx, id)
		return v, err != nil || v.Tag != p.Get("seen"), err
	})
}

// readRun reads the state of a run. The clock is read after the head, so that a renewal in between
// does not look like the future.
func (in *inspector) readRun(ctx context.Context, id runstore.RunID) (v runView, err error) {
	v.Problems = []problemView{}
	head, err := in.store.GetRun(ctx, id)
	if err != nil {
		return v, err
	}
	if head.LastSeq > 0 {
		events, err := in.store.ReadJournal(ctx, id, head.LastSeq, 1)
		if errors.Is(err, runstore.ErrCorrupt) { // the lease is shown all the same
			v.Problems = append(v.Problems, problemView{Level: levelBad, What: "journal", Why: brief(err.Error())})
		} else if err != nil {
			return v, err
		}
		if len(events) > 0 {
			last := viewEvent(events[0])
			v.Last = &last
		}
	}
	if v.Now, err = in.store.Now(ctx); err != nil {
		return v, err
	}
	v.Run = viewHead(head, v.Now)
	v.Problems = append(v.Problems, headProblems(head, v.Run, in.waitingSince(ctx, head, v.Now), v.Now)...)
	state, err := json.Marshal([]any{v.Run, v.Last, v.Problems})
	sum := sha256.Sum256(state)
	v.Tag = base64.RawURLEncoding.EncodeToString(sum[:12])
	return v, err
}

// follow calls read until it reports a change, and returns its result: at once, after an announcement,
// and at an interval. After wait it returns the result that there is.
func (in *inspector) follow(ctx context.Context, wait time.Duration, wake <-chan struct{}, read func() (result any, changed bool, err error)) (any, error) {
	end := time.NewTimer(wait)
	defer end.Stop()
	for {
		select {
		case in.requests <- struct{}{}:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		result, changed, err := read()
		<-in.requests
		if err != nil || changed {
			return result, err
		}
		gap := time.NewTimer(wakeGap)
		select {
		case <-ctx.Done():
			gap.Stop()
			return nil, ctx.Err()
		case <-end.C:
			gap.Stop()
			return result, nil
		case <-gap.C:
		}
		interval := time.NewTimer(watchInterval - wakeGap)
		select {
		case <-ctx.Done():
			interval.Stop()
			return nil, ctx.Err()
		case <-end.C:
			interval.Stop()
			return result, nil
		case <-wake:
		case <-interval.C:
		}
		interval.Stop()
	}
}
