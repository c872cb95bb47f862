package tail_test

import (
	"fmt"
	"sort"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

func TestSubscribersThatJoinAnywhereWhileWritersAppend(t *testing.T) {
	for name, ring := range map[string]int{"small ring": 20_000, "large ring": 0} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(e *env) {
				e.tail.Close(e.Context())
				e.opts.RingBytes = ring
				e.useStore(e.probe)
				runs := []runstore.RunID{"a", "b", "c"}
				e.create(e.store, runs...)
				var all []*subscription
				gates := map[*subscription]chan struct{}{}
				last := runstore.Position(0)
				for n := range 300 {
					if n%10 == 0 {
						last = e.last()
					}
					e.mustAppend([]runstore.RunStore{e.store, e.other}[n%2], runs[n%3], 1+n%20)
					all = append(all, e.subscribe(runstore.Position(n*7)%(last+1)))
					if n%10 == 0 {
						gate := make(chan struct{})
						slow := e.subscribeGated(runstore.Position(n*3)%(e.last()+1), gate)
						all, gates[slow] = append(all, slow), gate
					}
					if n%20 == 0 {
						all[n/2].stop()
						all[n/2] = e.subscribe(e.last())
					}
					time.Sleep(time.Duration(n%7) * time.Millisecond)
				}
				for _, gate := range gates {
					close(gate)
				}
				time.Sleep(time.Second)
				synctest.Wait()
				feed := e.feed(0)
				for i, s := range all {
					behind := feed[sort.Search(len(feed), func(i int) bool { return feed[i].Position > s.after }):]
					e.wantEvents(fmt.Sprint("subscriber ", i, " behind ", s.after), s, behind)
				}
			})
		})
	}
}

func TestSubscribersShareTheReadsOfOne(t *testing.T) {
	bubble(t, func(e *env) {
		e.tail.Close(e.Context())
		var derived atomic.Int64
		e.opts.Derive = func(event runstore.FeedEvent) any { return derived.Add(1) }
		e.useStore(e.probe)
		e.create(e.store, "r")
		e.mustAppend(e.store, "r", 3)
		first := e.subscribe(e.last())
		served()
		before := e.probe.feeds.Load()
		var all []*subscription
		for range 1000 {
			all = append(all, e.subscribe(e.last()))
		}
		synctest.Wait() // and no time passes
		if n := e.probe.feeds.Load() - before; n != 0 {
			e.Errorf("1,000 subscribers at the end cost %d reads, want 0", n)
		}
		rested()
		before = e.probe.feeds.Load()
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if n := e.probe.feeds.Load() - before; n > 41 {
			e.Errorf("1,000 idle subscribers cost %d reads in 10 s, want 4 per second", n)
		}
		derived.Store(0)
		for change := 1; change <= 10; change++ {
			before = e.probe.feeds.Load()
			e.mustAppend(e.store, "r", 2)
			synctest.Wait() // the reader has rested: it reads at once
			if n := e.probe.feeds.Load() - before; n != 1 {
				e.Errorf("change %d cost %d reads, want 1", change, n)
			}
			for i, s := range all {
				e.wantFeed(fmt.Sprint("subscriber ", i), s)
				if page := s.pages[len(s.pages)-1]; &page[0] != &first.pages[len(first.pages)-1][0] || page[1].Derived != int64(2*change) {
					e.Fatalf("subscriber %d has a page of its own, with derived value %v", i, page[1].Derived)
				}
			}
			rested()
		}
		if n := derived.Load(); n != 20 {
			e.Errorf("20 events were derived %d times", n)
		}
	})
}

// TestIdleSubscribersOfAStoreWithoutANotifier checks the reads at rest where nothing wakes the reader.
func TestIdleSubscribersOfAStoreWithoutANotifier(t *testing.T) {
	bubble(t, func(e *env) {
		e.tail.Close(e.Context())
		e.useStore(struct{ runstore.RunStore }{e.probe})
		e.create(e.store, "r")
		var all []*subscription
		for range 1000 {
			all = append(all, e.subscribe(0))
		}
		rested()
		before := e.probe.feeds.Load()
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if n := e.probe.feeds.Load() - before; n < 132 || n > 134 {
			e.Errorf("%d reads in 10 s, want one per 75 ms", n)
		}
		for n := range 20 {
			began := time.Now()
			e.mustAppend(e.other, "r", 1)
			time.Sleep(75 * time.Millisecond)
			synctest.Wait()
			e.wantFeed("another process's event", all[n])
			if took := all[n].at.Sub(began); took > 75*time.Millisecond {
				e.Errorf("another process's event came after %v, want 75 ms at most", took)
			}
			time.Sleep(time.Duration(n) * 37 * time.Millisecond)
			began = time.Now()
			e.mustAppend(e.store, "r", 1)
			served()
			e.wantFeed("this process's event", all[n])
			if took := all[n].at.Sub(began); took > 25*time.Millisecond {
				e.Errorf("this process's event came after %v, want 25 ms at most", took)
			}
		}
		rested()
		before = e.probe.feeds.Load()
		for range 200 { // another process is busy
			e.mustAppend(e.other, "r", 1)
			time.Sleep(5 * time.Millisecond)
		}
		if n := e.probe.feeds.Load() - before; n < 35 || n > 41 {
			e.Errorf("%d reads within a second, want one per 25 ms", n)
		}
	})
}

func TestSubscribersAreServedSoonAndReadsAreBounded(t *testing.T) {
	bubble(t, func(e *env) {
		e.create(e.store, "r")
		s := e.subscribe(0)
		rested()
		before, began := e.probe.feeds.Load(), time.Now()
		for n := range 1000 {
			committed := time.Now()
			e.mustAppend([]runstore.RunStore{e.store, e.other}[n%2], "r", 1)
			time.Sleep(time.Duration(1+n%11) * time.Millisecond)
			synctest.Wait()
			if n%7 > 0 {
				continue
			}
			time.Sleep(25*time.Millisecond - time.Since(committed))
			synctest.Wait()
			if s.count() != n+1 {
				e.Errorf("%d events after %v, want %d", s.count(), time.Since(committed), n+1)
			}
		}
		if n, most := e.probe.feeds.Load()-before, int64(time.Since(began)/(25*time.Millisecond))+1; n > most {
			e.Errorf("%d reads in %v, want one per 25 ms", n, time.Since(began))
		}
	})
}

// TestFeedThatLagsBehindCommits checks that the reader does not rest when the feed does not show a
// write of this process at once.
func TestFeedThatLagsBehindCommits(t *testing.T) {
	for lag, most := range map[time.Duration]time.Duration{20 * time.Millisecond: 50 * time.Millisecond, 60 * time.Millisecond: 100 * time.Millisecond} {
		t.Run(fmt.Sprint("by ", lag), func(t *testing.T) {
			bubble(t, func(e *env) {
				e.tail.Close(e.Context())
				e.useStore(struct{ runstore.RunStore }{e.probe})
				e.create(e.store, "r")
				var shown atomic.Int64
				e.probe.set(hooks{feed: func(q runstore.FeedQuery) ([]runstore.FeedEvent, error) {
					events, err := e.probe.Handle.ReadFeed(e.Context(), q)
					for i, event := range events {
						if int64(event.Position) > shown.Load() {
							return events[:i], err
						}
					}
					return events, err
				}})
				s := e.subscribe(0)
				for n := range 10 {
					rested()
					time.Sleep(time.Duration(n) * 13 * time.Millisecond)
					began := time.Now()
					e.mustAppend(e.store, "r", 1)
					time.Sleep(lag)
					shown.Store(int64(e.last()))
					time.Sleep(200 * time.Millisecond)
					synctest.Wait()
					e.wantFeed("subscriber", s)
					if took := s.at.Sub(began); took > most {
						e.Errorf("event %d came after %v, want %v at most", n, took, most)
					}
				}
			})
		})
	}
}

// TestReaderOfFullPagesDoesNotRest checks that a burst is passed on page by page.
func TestReaderOfFullPagesDoesNotRest(t *testing.T) {
	bubble(t, func(e *env) {
		e.create(e.store, "r")
		s := e.subscribe(0)
		rested()
		for range 50 {
			e.mustAppend(e.other, "r", 100)
		}
		served()
		e.wantFeed("subscriber", s)
		if len(s.pages) > 7 {
			e.Errorf("5,000 events came in %d pages, want full ones", len(s.pages))
		}
	})
}

// TestSubscriberDoesNotOvertakeTheReader checks that a subscriber that has caught up reads no more by
// itself, however busy writers are.
func TestSubscriberDoesNotOvertakeTheReader(t *testing.T) {
	bubble(t, func(e *env) {
		e.create(e.store, "r")
		e.mustAppend(e.store, "r", 100)
		first := e.subscribe(e.last())
		rested()
		busy := hooks{feed: func(q runstore.FeedQuery) ([]runstore.FeedEvent, error) {
			time.Sleep(time.Millisecond)
			e.mustAppend(e.other, "r", 1) // each read finds news
			return e.probe.Handle.ReadFeed(e.Context(), q)
		}}
		e.probe.set(busy)
		before := e.probe.feeds.Load()
		var all []*subscription
		for range 100 {
			all = append(all, e.subscribe(0))
		}
		time.Sleep(time.Second)
		synctest.Wait()
		e.probe.set(hooks{})
		rested()
		e.wantFeed("first", first)
		for i, s := range all {
			e.wantFeed(fmt.Sprint("subscriber ", i), s)
		}
		if n := e.probe.feeds.Load() - before; n > 100+40+15 {
			e.Errorf("%d reads, want one for each of 100 subscribers beside those of the reader", n)
		}
	})
}

// TestSubscriberAboveTheReader checks a position that another process has handed out: it is above all
// that the reader of this process has seen.
func TestSubscriberAboveTheReader(t *testing.T) {
	bubble(t, func(e *env) {
		e.create(e.store, "r")
		e.mustAppend(e.store, "r", 3)
		e.follow("r", 1)
		settled()
		stale := e.last()
		e.probe.set(hooks{feed: func(q runstore.FeedQuery) ([]runstore.FeedEvent, error) {
			if q.After == stale && q.Limit > 1 {
				time.Sleep(time.Second) // the reader is slow
			}
			return e.probe.Handle.ReadFeed(e.Context(), q)
		}})
		e.mustAppend(e.other, "r", 5)
		time.Sleep(100 * time.Millisecond) // the reader reads
		before := e.probe.feeds.Load()
		s := e.subscribe(e.last() - 2)
		time.Sleep(500 * time.Millisecond)
		synctest.Wait()
		if n := e.probe.feeds.Load() - before; n != 1 {
			e.Errorf("%d reads, want one that finds out whether the store is behind", n)
		}
		e.mustAppend(e.other, "r", 5)
		rested()
		e.wantFeed("subscriber", s)
	})
}

func TestFeedEnd(t *testing.T) {
	bubble(t, func(e *env) {
		e.create(e.store, "r")
		e.mustAppend(e.store, "r", 3)
		if end, known := e.tail.FeedEnd(); known {
			e.Errorf("FeedEnd = %d without a reader", end)
		}
		gate := make(chan struct{})
		s := e.subscribeGated(e.last(), gate)
		served()
		e.mustAppend(e.store, "r", 1)
		served()
		at := s.got[0].Position
		if end, known := e.tail.FeedEnd(); !known || end != at {
			e.Errorf("FeedEnd = %d, %t; the subscriber has received %d", end, known, at)
		}
		e.mustAppend(e.store, "r", 1)
		served()
		if end, known := e.tail.FeedEnd(); !known || end != e.last() || end <= at {
			e.Errorf("FeedEnd = %d, %t; the subscriber lags at %d, want %d", end, known, at, e.last())
		}
		close(gate)
	})
}
