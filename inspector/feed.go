package inspector

import (
	"context"
	"errors"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// feedEventView is an event of the feed.
type feedEventView struct {
	Ref string `json:"ref,omitempty"`
	Run string `json:"run,omitempty"`
	eventView
	Error string `json:"error,omitempty"`
}

// feedView is a page of the feed.
type feedView struct {
	Now    time.Time       `json:"now"`
	Events []feedEventView `json:"events"`
	// After is the position to continue after.
	After int64 `json:"after"`
	// Restarted reports that the position of the request is above every one of the store, which was
	// restored: the page is the present end of the feed.
	Restarted bool `json:"restarted,omitempty"`
}

// feed returns the end of the feed, or the events after the position after. With a wait it waits for
// the first of them.
func (in *inspector) feed(ctx context.Context, p params) (any, error) {
	limit, err := p.limit()
	if err != nil {
		return nil, err
	}
	wait, err := p.wait()
	if err != nil {
		return nil, err
	}
	after, err := p.number("after", -1)
	if err != nil {
		return nil, err
	}
	q := runstore.FeedQuery{After: runstore.Position(after), Limit: limit}
	if after < 0 {
		return in.readFeed(ctx, runstore.FeedQuery{Newest: true, Limit: limit})
	}
	if wait == 0 {
		return in.readFeed(ctx, q)
	}
	var wake <-chan struct{}
	if notifier, ok := runstore.As[runstore.Notifier](in.store); ok {
		subscription, cancel := context.WithCancel(ctx)
		defer cancel()
		if wake, err = notifier.Wakeups(subscription); err != nil {
			wake = nil // the interval remains
		}
	}
	return in.follow(ctx, wait, wake, func() (any, bool, error) {
		v, err := in.readFeed(ctx, q)
		return v, err != nil || len(v.Events) > 0 || v.Restarted, err
	})
}

func (in *inspector) readFeed(ctx context.Context, q runstore.FeedQuery) (v feedView, err error) {
	events, err := in.store.ReadFeed(ctx, q)
	if errors.Is(err, runstore.ErrStoreBehind) {
		v.Restarted = true
		q = runstore.FeedQuery{Newest: true, Limit: q.Limit}
		events, err = in.store.ReadFeed(ctx, q)
	}
	if err != nil {
		return v, err
	}
	v.Events, v.After = []feedEventView{}, int64(q.After)
	for _, e := range events {
		event := feedEventView{Ref: toRef(string(e.Run)), Run: shown(string(e.Run)), eventView: viewEvent(e.Event)}
		if e.Err != nil {
			event.Error, event.Level = brief(e.Err.Error()), levelBad
		}
		v.Events = append(v.Events, event)
		v.After = int64(e.Position)
	}
	v.Now, err = in.store.Now(ctx)
	return v, err
}
