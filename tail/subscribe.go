package tail

import (
	"context"
	"iter"
	"sort"

	"github.com/tapestore/tapestore/runstore"
)

// FeedEvent is an event of the feed of all runs.
type FeedEvent struct {
	runstore.FeedEvent
	// Derived is the value that Options.Derive returned for the event. All subscribers share it and
	// must not change it.
	Derived any
}

// Feed iterates over the feed of all runs after a position, page by page, and waits for more at its
// end: until ctx ends, until Close, or until an error, which the last step yields. Every event is
// yielded once, in the order of positions, including those that the store cannot read (see
// runstore.FeedEvent). A subscriber behind the ring reads its first page at once. The package
// documentation states the guarantees.
//
// A page has at most [runstore.MaxPage] events, and ends early like a page of ReadFeed. Subscribers
// may share a page and must not change it.
//
// Errors: those of runstore.RunStore.ReadFeed and of Options.Admit; ErrStoreBehind if the position
// is above that of a store that was restored; ErrUnavailable with the error of ctx; ErrClosed. At
// the end of the feed a failed read only costs time, until reads have failed for 10 s.
func (t *Tail) Feed(ctx context.Context, after runstore.Position) iter.Seq2[[]FeedEvent, error] {
	return func(yield func([]FeedEvent, error) bool) {
		s, err := t.subscribe(after)
		if err != nil {
			yield(nil, err)
			return
		}
		defer t.unsubscribe()
		defer s.free()
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(t.ctx, cancel)() // Close also ends the subscriber's own reads
		for {
			page, err := s.next(ctx)
			if err != nil && t.ctx.Err() != nil {
				err = feedError(runstore.ErrClosed, nil)
			}
			if !yield(page, err) || err != nil {
				return
			}
		}
	}
}

// FeedEnd returns the position of the last event that the feed's reader has read, and false until
// the reader has found the end of the feed. A subscriber lags if its last page ended below it.
func (t *Tail) FeedEnd() (runstore.Position, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ring == nil || !t.ring.started {
		return 0, false
	}
	return t.ring.end, true
}

// FeedHistory returns a number that grows when the feed's reader finds the store behind its
// position, which means that a backup was restored. A caller that keeps positions reads them again
// when the number has changed, because the store may not have them. A new reader starts at the
// position that the previous reader had reached, so it also finds a restore between the two.
func (t *Tail) FeedHistory() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.histories
}

func feedError(err, cause error) error {
	return &runstore.OpError{Op: "subscribe to the feed", Err: err, Cause: cause}
}

// subscriber is one iteration over the feed. One goroutine uses it.
type subscriber struct {
	tail    *Tail
	ring    *ring             // the ring of the history that after belongs to
	after   runstore.Position // position of the last yielded event
	release func()            // releases the admission of a page; nil if none is held
}

// subscribe adds a subscriber.
func (t *Tail) subscribe(after runstore.Position) (*subscriber, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, feedError(runstore.ErrClosed, nil)
	}
	t.subscribers++
	t.startReaders()
	if t.subscribers == 1 {
		t.wake() // every event is news for a subscriber
	}
	return &subscriber{tail: t, ring: t.ring, after: after}, nil
}

// unsubscribe removes a subscriber. Without subscribers the ring is emptied.
func (t *Tail) unsubscribe() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.subscribers--; t.subscribers == 0 {
		t.ring.skip(t.ring.end)
	}
	t.stopReaders()
}

// next returns the next events, at least one.
func (s *subscriber) next(ctx context.Context) ([]FeedEvent, error) {
	s.free()
	for {
		page, v, err := s.look()
		switch {
		case err != nil:
			return nil, err
		case len(page) > 0:
			return page, nil
		case v.wait:
			if err := s.await(ctx, v); err != nil {
				return nil, err
			}
		case s.release == nil:
			if err := s.admit(ctx); err != nil {
				return nil, err
			}
		default:
			page, err := s.read(ctx, v)
			if err != nil || len(page) > 0 {
				return page, err
			}
		}
	}
}

// ringView is the state of the ring when a subscriber looked at it. Later changes are detected against
// it.
type ringView struct {
	*ring
	changed  <-chan struct{}
	failures int
	wait     bool // the subscriber is at the end and waits for a change
}

// look returns the next page of the ring, if there is one and the subscriber has an admission, and
// the state of the ring.
func (s *subscriber) look() (page []FeedEvent, v ringView, err error) {
	s.tail.mu.Lock()
	defer s.tail.mu.Unlock()
	if err := s.renew(); err != nil {
		return nil, v, err
	}
	r := s.ring
	if r.covers(s.after) && s.release != nil {
		page = s.take(r.page(s.after))
	}
	return page, ringView{
		ring: r, changed: r.changed, failures: r.failures,
		wait: r.started && s.after == r.end,
	}, nil
}

// renew moves the subscriber to the ring of the store's current history, if its position belongs to
// that history.
func (s *subscriber) renew() error {
	for ; s.ring.next != nil; s.ring = s.ring.next {
		if known := s.ring.known; s.after > known {
			return feedError(&runstore.StoreBehindError{Field: "position", Presented: int64(s.after), Known: int64(known)}, nil)
		}
	}
	return nil
}

// take advances s over a page.
func (s *subscriber) take(page []FeedEvent) []FeedEvent {
	if len(page) > 0 {
		s.after = page[len(page)-1].Position
	}
	return page
}

// await waits for a change of the ring. It holds no admission meanwhile.
func (s *subscriber) await(ctx context.Context, v ringView) error {
	s.free()
	select {
	case <-v.changed:
	case <-ctx.Done():
		return feedError(runstore.ErrUnavailable, ctx.Err())
	}
	s.tail.mu.Lock()
	defer s.tail.mu.Unlock()
	if v.ring.failures != v.failures {
		return v.ring.err
	}
	return nil
}

// read reads a page for this subscriber only, up to the end of the ring. It returns no events if
// the subscriber should look at the ring again.
func (s *subscriber) read(ctx context.Context, v ringView) ([]FeedEvent, error) {
	events, err := s.tail.readOwn(ctx, runstore.FeedQuery{After: s.after, Limit: runstore.MaxPage})
	kept, wait, err := s.join(v, events, err)
	if err != nil {
		return nil, err
	}
	if wait {
		return nil, s.await(ctx, v)
	}
	return s.take(s.tail.derive(kept)), nil
}

// join compares a page that the subscriber has read with the ring. It returns the events to take
// now, and whether the subscriber must wait for a change of the ring.
//
// Events above the end of the ring arrive through the ring. So a subscriber's own page never takes
// it above the end, where further reads of its own would find new events as long as writers are
// busy. A subscriber whose position is above the end reads to find out whether the store is behind
// it, and again whenever the ring has advanced without reaching it.
func (s *subscriber) join(v ringView, events []runstore.FeedEvent, err error) (kept []runstore.FeedEvent, wait bool, _ error) {
	s.tail.mu.Lock()
	defer s.tail.mu.Unlock()
	r := v.ring
	if r.next != nil { // the page may belong to either history
		return nil, false, nil
	}
	if r.started {
		events = events[:sort.Search(len(events), func(i int) bool { return events[i].Position > r.end })]
	}
	return events, len(events) == 0, err
}

// readOwn reads a page for one subscriber. The number of such reads in flight is bounded.
func (t *Tail) readOwn(ctx context.Context, q runstore.FeedQuery) ([]runstore.FeedEvent, error) {
	select {
	case t.slots <- struct{}{}:
		defer func() { <-t.slots }()
	case <-ctx.Done():
		return nil, feedError(runstore.ErrUnavailable, ctx.Err())
	}
	return t.store.ReadFeed(ctx, q)
}

// derive returns the page for subscribers, with derived values.
func (t *Tail) derive(events []runstore.FeedEvent) []FeedEvent {
	page := make([]FeedEvent, len(events))
	for i, e := range events {
		page[i] = FeedEvent{e, t.opts.Derive(e)}
	}
	return page
}

// admit blocks until Options.Admit admits a page.
func (s *subscriber) admit(ctx context.Context) error {
	release, err := s.tail.opts.Admit(ctx)
	if err == nil {
		s.release = release
	}
	return err
}

// free releases the admission of the last page.
func (s *subscriber) free() {
	if s.release != nil {
		s.release()
		s.release = nil
	}
}
