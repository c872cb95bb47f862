package tail_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing/synctest"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tail"
)

// subscription consumes the feed.
type subscription struct {
	stop  context.CancelFunc
	gate  chan struct{} // if not nil, each page waits for a value before it is consumed
	after runstore.Position

	mu    sync.Mutex
	got   []runstore.FeedEvent
	pages [][]tail.FeedEvent
	bad   string
	err   error
	at    time.Time // when the last page arrived
}

func (e *env) subscribe(after runstore.Position) *subscription { return e.subscribeGated(after, nil) }

func (e *env) subscribeGated(after runstore.Position, gate chan struct{}) *subscription {
	ctx, stop := context.WithCancel(context.Background())
	s := &subscription{stop: stop, gate: gate, after: after}
	go func() {
		defer stop()
		for page, err := range e.tail.Feed(ctx, after) {
			s.take(page, err)
			if s.gate != nil {
				<-s.gate
			}
			s.check(page)
		}
	}()
	return s
}

func (s *subscription) take(page []tail.FeedEvent, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, event := range page {
		s.got = append(s.got, event.FeedEvent)
	}
	if len(page) > 0 {
		s.pages, s.at = append(s.pages, page), time.Now()
	}
	if s.err = err; err == nil && len(page) == 0 {
		s.bad = "an empty page"
	}
}

// check compares a page with what it was when it was received.
func (s *subscription) check(page []tail.FeedEvent) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, event := range page {
		if want := s.got[len(s.got)-len(page)+i]; event.Position != want.Position || event.Run != want.Run {
			s.bad = fmt.Sprintf("event %d of a page changed", i)
		}
	}
}

// count is how many events arrived.
func (s *subscription) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.got)
}

// wantFeed checks that a subscriber has received every event behind its position, once and in order.
func (e *env) wantFeed(what string, s *subscription) {
	e.Helper()
	e.wantEvents(what, s, e.feed(s.after))
}

func (e *env) wantEvents(what string, s *subscription, want []runstore.FeedEvent) {
	e.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range min(len(want), len(s.got)) {
		if got, want := s.got[i], want[i]; got.Position != want.Position || got.Run != want.Run || got.Seq != want.Seq {
			e.Errorf("%s: event %d is %d of run %q at %d, want %d of run %q at %d", what, i, got.Seq, got.Run, got.Position, want.Seq, want.Run, want.Position)
			return
		}
	}
	if len(s.got) != len(want) || s.bad != "" || s.err != nil {
		e.Errorf("%s: %d events %s, error %v; want %d events", what, len(s.got), s.bad, s.err, len(want))
	}
}

func (e *env) wantFeedEnd(what string, s *subscription, want error) {
	e.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if !errors.Is(s.err, want) {
		e.Errorf("%s: ended with %v, want %v", what, s.err, want)
	}
}

// feed reads the feed behind a position from the store itself.
func (e *env) feed(after runstore.Position) (all []runstore.FeedEvent) {
	e.Helper()
	for {
		page, err := e.other.ReadFeed(e.Context(), runstore.FeedQuery{After: after, Limit: runstore.MaxPage})
		if err != nil {
			e.Fatal(err)
		}
		if len(page) == 0 {
			return all
		}
		all, after = append(all, page...), page[len(page)-1].Position
	}
}

// last is the position of the last event.
func (e *env) last() runstore.Position {
	e.Helper()
	all := e.feed(0)
	if len(all) == 0 {
		return 0
	}
	return all[len(all)-1].Position
}

// rested waits until the reader of the feed with subscribers reads least often.
func rested() {
	time.Sleep(time.Second)
	synctest.Wait()
}

// served waits until the reader of the feed with subscribers has read.
func served() {
	time.Sleep(25 * time.Millisecond)
	synctest.Wait()
}
