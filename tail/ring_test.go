package tail_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// TestRingIsBoundedByBytes checks from which position on a subscriber is served without a read.
func TestRingIsBoundedByBytes(t *testing.T) {
	const size = 256 + len("r") + len("k") + len("{}") // of an event
	for name, tc := range map[string]struct {
		derive func(runstore.FeedEvent) any
		bytes  int
		held   int // events
	}{
		"events":         {nil, 10 * size, 10},
		"one byte less":  {nil, 10*size - 1, 9},
		"derived values": {func(runstore.FeedEvent) any { return 1 }, 10 * size, 5},
		"less than one":  {nil, 1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(e *env) {
				e.tail.Close(e.Context())
				e.opts.Derive, e.opts.RingBytes = tc.derive, tc.bytes
				e.useStore(e.probe)
				e.create(e.store, "r")
				first := e.subscribe(0)
				for range 30 { // pages of one event
					served()
					e.mustAppend(e.store, "r", 1)
				}
				rested()
				e.wantFeed("first", first)
				feed := e.feed(0)
				for n := 1; n < 30; n++ {
					before := e.probe.feeds.Load()
					s := e.subscribe(feed[len(feed)-1-n].Position)
					synctest.Wait() // and no time passes
					e.wantFeed(fmt.Sprint("a subscriber ", n, " events behind"), s)
					reads := e.probe.feeds.Load() - before
					if n <= tc.held && reads != 0 || n > tc.held && reads != 1 {
						e.Errorf("a subscriber %d events behind the end costs %d reads; the ring has room for %d", n, reads, tc.held)
					}
					rested()
				}
			})
		})
	}
}

func TestSlowSubscriberAndTheEvictedRing(t *testing.T) {
	bubble(t, func(e *env) {
		e.tail.Close(e.Context())
		e.opts.RingBytes = 10_000 // about 38 events
		e.useStore(e.probe)
		e.create(e.store, "r")
		gate := make(chan struct{})
		slow, fast := e.subscribeGated(0, gate), e.subscribe(0)
		rested()
		const changes = 100
		for range changes {
			e.mustAppend(e.store, "r", 20)
			served()
		}
		e.wantFeed("the fast subscriber", fast)
		if n := slow.count(); n != 20 {
			e.Errorf("the slow subscriber received %d events, want its page of 20", n)
		}
		before := e.probe.feeds.Load()
		close(gate) // and no time passes: it reads by itself, and checks the page that it held
		synctest.Wait()
		e.wantFeed("the slow subscriber", slow)
		if n := e.probe.feeds.Load() - before; n != 2 {
			e.Errorf("it caught up in %d reads, want 2 full pages", n)
		}
		// Together again.
		rested()
		before = e.probe.feeds.Load()
		e.mustAppend(e.store, "r", 1)
		synctest.Wait()
		e.wantFeed("the fast subscriber", fast)
		e.wantFeed("the slow subscriber", slow)
		if n := e.probe.feeds.Load() - before; n != 1 {
			e.Errorf("%d reads, want 1", n)
		}
		if a, b := fast.pages[len(fast.pages)-1], slow.pages[len(slow.pages)-1]; &a[0] != &b[0] {
			e.Error("they did not receive the same page")
		}
	})
}

// TestRingExistsForSubscribersOnly checks that hints alone need no events.
func TestRingExistsForSubscribersOnly(t *testing.T) {
	bubble(t, func(e *env) {
		e.tail.Close(e.Context())
		var derived atomic.Int64
		e.opts.Derive = func(runstore.FeedEvent) any { return derived.Add(1) }
		e.useStore(e.probe)
		e.create(e.store, "r")
		r := e.follow("r", 1)
		fed()
		for round := range 2 {
			e.mustAppend(e.other, "r", 5)
			time.Sleep(300 * time.Millisecond)
			if n := derived.Swap(0); n != 0 {
				e.Errorf("round %d: %d events were derived without a subscriber", round, n)
			}
			s := e.subscribe(e.last())
			rested()
			e.mustAppend(e.other, "r", 5)
			rested()
			far := e.subscribe(0) // behind events that the ring never had
			rested()
			e.wantFeed("subscriber", s)
			e.wantFeed("far", far)
			derived.Add(-int64(far.count())) // it read by itself
			far.stop()
			if n := derived.Swap(0); n != 5 {
				e.Errorf("round %d: %d events were derived, want 5", round, n)
			}
			at := e.last()
			s.stop()
			rested()
			before := e.probe.feeds.Load()
			late := e.subscribe(at - 3)
			synctest.Wait() // and no time passes
			e.wantFeed("late", late)
			if n := e.probe.feeds.Load() - before; n != 2 {
				e.Errorf("round %d: %d reads, want the reader's and that of the subscriber: the ring has gone with the last one", round, n)
			}
			derived.Store(0)
			late.stop()
			synctest.Wait()
		}
		e.want("follower", r, 20)
	})
}

// TestSubscriberThatComesDuringARead checks the page that the reader has read before there was a subscriber.
func TestSubscriberThatComesDuringARead(t *testing.T) {
	bubble(t, func(e *env) {
		e.create(e.store, "r")
		e.follow("r", 1)
		fed()
		at := e.last()
		var s *subscription
		e.probe.set(hooks{feed: func(q runstore.FeedQuery) ([]runstore.FeedEvent, error) {
			events, err := e.probe.Handle.ReadFeed(e.Context(), q)
			if len(events) > 0 && s == nil {
				s = e.subscribe(at)
				time.Sleep(time.Millisecond)
			}
			return events, err
		}})
		e.mustAppend(e.other, "r", 5)
		time.Sleep(300 * time.Millisecond)
		e.mustAppend(e.other, "r", 5)
		rested()
		e.wantFeed("subscriber", s)
	})
}

// TestSubscriberThatLeavesDuringARead checks that the ring keeps no page that no subscriber waits
// for.
func TestSubscriberThatLeavesDuringARead(t *testing.T) {
	bubble(t, func(e *env) {
		e.tail.Close(e.Context())
		var s *subscription
		e.opts.Derive = func(runstore.FeedEvent) any {
			s.stop()
			time.Sleep(time.Millisecond)
			return nil
		}
		e.useStore(e.probe)
		e.create(e.store, "r")
		e.follow("r", 1)
		fed()
		at := e.last()
		s = e.subscribe(at)
		rested()
		e.mustAppend(e.other, "r", 5)
		rested()
		before := e.probe.feeds.Load()
		late := e.subscribe(at)
		time.Sleep(10 * time.Millisecond)
		synctest.Wait()
		e.wantFeed("subscriber", late)
		if n := e.probe.feeds.Load() - before; n != 2 {
			e.Errorf("%d reads, want the reader's and that of the subscriber", n)
		}
	})
}

func TestReadsOfSubscribersAreBounded(t *testing.T) {
	bubble(t, func(e *env) {
		e.create(e.store, "r")
		e.mustAppend(e.store, "r", 100)
		e.subscribe(e.last())
		rested()
		var now, most atomic.Int64
		e.probe.set(hooks{feed: func(q runstore.FeedQuery) ([]runstore.FeedEvent, error) {
			if q.After > 0 {
				return e.probe.Handle.ReadFeed(e.Context(), q) // the reader
			}
			n := now.Add(1)
			for old := most.Load(); n > old && !most.CompareAndSwap(old, n); old = most.Load() {
			}
			time.Sleep(time.Millisecond)
			now.Add(-1)
			return e.probe.Handle.ReadFeed(e.Context(), q)
		}})
		var all []*subscription
		for range 200 {
			all = append(all, e.subscribe(0))
		}
		rested()
		for i, s := range all {
			e.wantFeed(fmt.Sprint("subscriber ", i), s)
		}
		if n := most.Load(); n != 16 {
			e.Errorf("%d reads at once, want 16", n)
		}
	})
}
