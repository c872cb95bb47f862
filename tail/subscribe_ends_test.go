package tail_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

func TestReaderOfTheFeedFailsForAWhile(t *testing.T) {
	bubble(t, func(e *env) {
		e.create(e.store, "r")
		s := e.subscribe(0)
		rested()
		fails := hooks{feed: func(runstore.FeedQuery) ([]runstore.FeedEvent, error) { return nil, io.ErrUnexpectedEOF }}
		for range 5 { // each is shorter than 10 s
			e.probe.set(fails)
			e.mustAppend(e.store, "r", 3)
			e.mustAppend(e.other, "r", 3)
			time.Sleep(8 * time.Second)
			e.probe.set(hooks{})
			rested()
			e.wantFeed("after the failure", s)
		}
		if log := e.log.String(); strings.Count(log, "level=WARN") != 5 || strings.Count(log, "level=INFO") != 5 {
			e.Errorf("log %q, want five failures and recoveries", log)
		}
		want := e.feed(0)
		e.probe.set(fails)
		time.Sleep(5 * time.Second)
		late := e.subscribe(e.last())
		far := e.subscribe(0)
		time.Sleep(4500 * time.Millisecond)
		synctest.Wait()
		e.wantEvents("while the feed fails", s, want)
		e.wantEvents("a subscriber that came meanwhile", late, nil)
		e.wantEvents("one that the ring serves", far, want)
		time.Sleep(time.Second)
		synctest.Wait()
		e.wantFeedEnd("after 10 s", s, io.ErrUnexpectedEOF)
		e.wantFeedEnd("after 10 s", late, io.ErrUnexpectedEOF)
		e.probe.set(hooks{})
		again := e.subscribe(want[2].Position)
		e.mustAppend(e.other, "r", 1)
		rested()
		e.wantFeed("after the recovery", again)
	})
}

func TestReadOfTheFeedThatHangs(t *testing.T) {
	bubble(t, func(e *env) {
		e.create(e.store, "r")
		s := e.subscribe(0)
		rested()
		e.probe.set(hooks{hang: true})
		e.mustAppend(e.store, "r", 1)
		time.Sleep(5 * time.Second)
		e.probe.set(hooks{})
		time.Sleep(6 * time.Second) // the read has ended after 10 s
		synctest.Wait()
		e.wantFeed("after the read that hung", s)
	})
}

// TestWakeUpsThatFailCostTimeOnly checks that a store without wake-ups, of which reads succeed, ends no
// subscriber.
func TestWakeUpsThatFailCostTimeOnly(t *testing.T) {
	bubble(t, func(e *env) {
		e.tail.Close(e.Context())
		store := &deaf{probe: e.probe}
		e.useStore(store)
		e.create(e.store, "r")
		s := e.subscribe(0)
		time.Sleep(time.Minute)
		e.mustAppend(e.other, "r", 1)
		time.Sleep(100 * time.Millisecond)
		synctest.Wait()
		e.wantFeed("subscriber", s)
		if log := e.log.String(); strings.Count(log, "\n") != 1 || !strings.Contains(log, io.ErrClosedPipe.Error()) {
			e.Errorf("log %q, want one warning with the cause", log)
		}
		store.hears.Store(true)
		rested()
		if log := e.log.String(); strings.Count(log, "\n") != 2 || !strings.Contains(log, "level=INFO") {
			e.Errorf("log %q, want one more line", log)
		}
		e.mustAppend(e.other, "r", 1)
		synctest.Wait() // and no time passes
		e.wantFeed("subscriber", s)
	})
}

// deaf is a store that fails to subscribe to wake-ups until it is repaired.
type deaf struct {
	*probe
	hears atomic.Bool
}

func (d *deaf) Wakeups(ctx context.Context) (<-chan struct{}, error) {
	if d.hears.Load() {
		return d.probe.Wakeups(ctx)
	}
	return nil, io.ErrClosedPipe
}

// TestWakeupsThatAreNeverAnswered checks that a subscriber gets events by polling while the store does not answer
// the request for wake-ups, because their connection was lost without a sign, and reads and writes have others.
func TestWakeupsThatAreNeverAnswered(t *testing.T) {
	bubble(t, func(e *env) {
		e.tail.Close(e.Context())
		e.useStore(unanswered{e.probe})
		e.create(e.store, "r")
		s := e.subscribe(0)
		for range 3 {
			time.Sleep(time.Minute)
			e.mustAppend(e.other, "r", 1)
			time.Sleep(100 * time.Millisecond)
			synctest.Wait()
			e.wantFeed("subscriber", s)
		}
	})
}

// unanswered is a store that answers no request for wake-ups.
type unanswered struct{ *probe }

func (unanswered) Wakeups(ctx context.Context) (<-chan struct{}, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// TestWakeupsThatBeginLate checks that the reader reads soon after wake-ups begin: a write between its last read and
// their beginning causes none.
func TestWakeupsThatBeginLate(t *testing.T) {
	bubble(t, func(e *env) {
		e.tail.Close(e.Context())
		store := &late{probe: e.probe, begin: make(chan struct{})}
		e.useStore(store)
		e.create(e.store, "r")
		s := e.subscribe(0)
		rested()
		e.mustAppend(e.other, "r", 1)
		close(store.begin)
		time.Sleep(25 * time.Millisecond) // the shortest time between two reads
		synctest.Wait()
		e.wantFeed("subscriber", s)
	})
}

// late is a store that answers the request for wake-ups once begin is closed.
type late struct {
	*probe
	begin chan struct{}
}

func (l *late) Wakeups(ctx context.Context) (<-chan struct{}, error) {
	<-l.begin
	return l.probe.Wakeups(ctx)
}

func TestOwnReadThatFailsEndsItsSubscriberOnly(t *testing.T) {
	bubble(t, func(e *env) {
		e.create(e.store, "r")
		e.mustAppend(e.store, "r", 3)
		s := e.subscribe(e.last())
		rested()
		e.probe.set(hooks{feed: func(q runstore.FeedQuery) ([]runstore.FeedEvent, error) {
			if q.After == 0 {
				return nil, io.ErrUnexpectedEOF
			}
			return e.probe.Handle.ReadFeed(e.Context(), q)
		}})
		bad, invalid := e.subscribe(0), e.subscribe(-1)
		e.mustAppend(e.store, "r", 1)
		rested()
		e.wantFeedEnd("the failed read", bad, io.ErrUnexpectedEOF)
		e.wantFeedEnd("a position that is none", invalid, runstore.ErrInvalid)
		e.wantFeed("the other", s)
	})
}

// restored is a store whose feed was lost positions ahead before a restore.
func (e *env) restored(lost runstore.Position) hooks {
	return hooks{feed: func(q runstore.FeedQuery) ([]runstore.FeedEvent, error) {
		q.After = max(q.After-lost, 0)
		events, err := e.probe.Handle.ReadFeed(context.Background(), q)
		var behind *runstore.StoreBehindError
		if errors.As(err, &behind) {
			behind.Known += int64(lost)
			behind.Presented += int64(lost)
		}
		for i := range events {
			events[i].Position += lost
		}
		return events, err
	}}
}

func TestSubscribersOfARestoredStore(t *testing.T) {
	bubble(t, func(e *env) {
		e.probe.set(e.restored(1000))
		e.create(e.store, "r")
		e.mustAppend(e.store, "r", 5)
		gate := make(chan struct{})
		waits, slow, low := e.subscribe(1000), e.subscribeGated(1000, gate), e.subscribeGated(1002, gate)
		rested()
		if waits.count() != 5 || slow.count() != 5 || low.count() != 3 {
			e.Fatalf("%d, %d and %d events before the restore, want 5, 5 and 3", waits.count(), slow.count(), low.count())
		}
		e.probe.set(hooks{})
		began := e.subscribe(2) // of the restored store, before the reader knows of it
		rested()
		e.wantFeedEnd("the subscriber at the end", waits, runstore.ErrStoreBehind)
		// Nothing of the former history is left, and the new one passes the old positions.
		for range 30 {
			e.mustAppend(e.other, "r", 50)
		}
		fresh, ahead := e.subscribe(2), e.subscribe(5000)
		rested()
		if end, known := e.tail.FeedEnd(); !known || end != e.last() {
			e.Errorf("FeedEnd = %d, %t; want %d", end, known, e.last())
		}
		close(gate)
		rested()
		e.wantFeed("a subscriber from before, below the store", began)
		e.wantFeed("a new subscriber", fresh)
		for what, s := range map[string]*subscription{"the slow subscriber": slow, "its neighbour": low, "one above the store": ahead} {
			e.wantFeedEnd(what, s, runstore.ErrStoreBehind)
		}
		for what, s := range map[string]*subscription{"the subscriber at the end": waits, "the slow subscriber": slow} {
			if s.count() != 5 {
				e.Errorf("%s received %d events, want the 5 of the former history", what, s.count())
			}
		}
	})
}

// TestPageThatIsReadAcrossARestore checks that a subscriber takes no page of its own whose read began
// before the restore was found out.
func TestPageThatIsReadAcrossARestore(t *testing.T) {
	bubble(t, func(e *env) {
		before, began := e.restored(1000), false
		e.probe.set(hooks{feed: func(q runstore.FeedQuery) ([]runstore.FeedEvent, error) {
			if q.After == 1001 && q.Limit > 1 {
				began = true
				events, err := before.feed(q)
				time.Sleep(2 * time.Second)
				return events, err
			}
			return before.feed(q)
		}})
		e.create(e.store, "r")
		e.mustAppend(e.store, "r", 5)
		e.subscribe(1005)
		rested()
		s := e.subscribe(1001)
		time.Sleep(time.Millisecond)
		e.probe.set(hooks{})
		time.Sleep(5 * time.Second)
		synctest.Wait()
		e.wantFeedEnd("subscriber", s, runstore.ErrStoreBehind)
		if !began || s.count() != 0 {
			e.Errorf("%d events of a history that is gone (read: %t)", s.count(), began)
		}
	})
}

func TestSubscribersAndARaisedEpoch(t *testing.T) {
	bubble(t, func(e *env) {
		e.create(e.store, "r")
		s := e.subscribe(0)
		for range 3 {
			e.mustAppend(e.store, "r", 3)
			e.mustAppend(e.other, "r", 3)
			rested()
			if _, err := e.probe.Handle.RaiseEpoch(e.Context(), "a test"); err != nil {
				e.Fatal(err)
			}
			rested()
		}
		early := e.subscribe(0)
		gap := e.subscribe(e.last() + 1) // below what the store knows, above all events
		rested()
		e.mustAppend(e.other, "r", 3)
		rested()
		e.wantFeed("subscriber", s)
		e.wantFeed("subscriber after the raise", early)
		e.wantFeed("subscriber in the gap", gap)
	})
}

func TestSubscriberBehindPurgedEvents(t *testing.T) {
	bubble(t, func(e *env) {
		e.create(e.store, "r", "other")
		e.mustAppend(e.store, "r", 30)
		purge := runstore.NewBatch("r", runstore.Unguarded("a test"))
		purge.Purge = true
		first := e.subscribe(e.last())
		rested()
		if _, err := e.other.Commit(e.Context(), purge); err != nil {
			e.Fatal(err)
		}
		s := e.subscribe(2)
		rested()
		before := e.probe.feeds.Load()
		rested()
		if n := e.probe.feeds.Load() - before; n > 4 {
			e.Errorf("%d reads in a second, want those of the reader", n)
		}
		// The reader is slow to find the next event.
		end, _ := e.tail.FeedEnd()
		e.probe.set(hooks{feed: func(q runstore.FeedQuery) ([]runstore.FeedEvent, error) {
			if q.After == end {
				time.Sleep(time.Second)
			}
			return e.probe.Handle.ReadFeed(e.Context(), q)
		}})
		time.Sleep(250 * time.Millisecond) // it reads
		e.mustAppend(e.other, "other", 3)
		before = e.probe.feeds.Load()
		late := e.subscribe(2)
		time.Sleep(500 * time.Millisecond)
		synctest.Wait()
		if n := e.probe.feeds.Load() - before; n != 1 {
			e.Errorf("%d reads, want the first one of the late subscriber", n)
		}
		rested()
		for i, s := range []*subscription{first, s, late} {
			e.wantFeed(fmt.Sprint("subscriber ", i), s)
		}
	})
}

func TestCloseEndsSubscribers(t *testing.T) {
	bubble(t, func(e *env) {
		e.create(e.store, "r")
		e.mustAppend(e.store, "r", 3)
		waits := e.subscribe(0)
		gate := make(chan struct{})
		slow := e.subscribeGated(0, gate)
		rested()
		e.probe.set(hooks{hang: true})
		reads := e.subscribe(0)
		time.Sleep(time.Millisecond)
		e.tail.Close(e.Context())
		late := e.subscribe(0)
		synctest.Wait()
		close(gate)
		synctest.Wait()
		for what, s := range map[string]*subscription{"one that waits": waits, "one that reads": reads, "a slow one": slow, "a late one": late} {
			e.wantFeedEnd(what, s, runstore.ErrClosed)
		}
		if end, known := e.tail.FeedEnd(); known {
			e.Errorf("FeedEnd = %d after Close", end)
		}
	})
}

func TestCancelledSubscribers(t *testing.T) {
	bubble(t, func(e *env) {
		e.create(e.store, "r")
		e.mustAppend(e.store, "r", 3)
		waits, stays := e.subscribe(0), e.subscribe(0)
		rested()
		e.probe.set(hooks{hang: true})
		var all []*subscription
		for range 20 { // more than the reads under way
			all = append(all, e.subscribe(1))
		}
		time.Sleep(time.Millisecond)
		waits.stop()
		for _, s := range all {
			s.stop()
		}
		synctest.Wait()
		e.wantFeedEnd("one that waits", waits, context.Canceled)
		for i, s := range all {
			e.wantFeedEnd(fmt.Sprint("one that reads: ", i), s, context.Canceled)
		}
		e.probe.set(hooks{})
		e.mustAppend(e.store, "r", 3)
		time.Sleep(11 * time.Second)
		synctest.Wait()
		e.wantFeed("the one that stays", stays)
	})
}

func TestPagesOfTheFeedAreAdmitted(t *testing.T) {
	bubble(t, func(e *env) {
		room, full := make(chan struct{}, 1), errors.New("no room")
		var admitted atomic.Int64
		e.tail.Close(e.Context())
		e.opts.Admit = func(ctx context.Context) (func(), error) {
			select {
			case room <- struct{}{}:
				admitted.Add(1)
				var once sync.Once
				return func() { once.Do(func() { <-room }) }, nil
			case <-time.After(time.Second):
				return nil, full
			}
		}
		e.useStore(e.probe)
		e.create(e.store, "r")
		e.mustAppend(e.store, "r", 3)
		end := e.subscribe(e.last())
		rested()
		one, two := e.subscribe(0), e.subscribe(0)
		rested()
		if len(room) != 0 {
			e.Error("a subscriber that waits keeps the room of a page")
		}
		e.mustAppend(e.store, "r", 1)
		rested()
		for i, s := range []*subscription{one, two, end} {
			e.wantFeed(fmt.Sprint(i), s)
		}
		if n := admitted.Load(); n != 6 || len(room) != 0 {
			e.Errorf("%d pages admitted and %d kept, want 6 (an own and a shared one each) and 0", n, len(room))
		}
		room <- struct{}{}
		reads := e.probe.feeds.Load()
		late := e.subscribe(0)
		time.Sleep(20 * time.Millisecond)
		synctest.Wait()
		if n := e.probe.feeds.Load() - reads; n > 1 {
			e.Errorf("%d reads without room, want that of the reader at most", n)
		}
		e.mustAppend(e.store, "r", 1)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		for what, s := range map[string]*subscription{"one": one, "two": two, "end": end, "late": late} {
			e.wantFeedEnd(what, s, full)
		}
	})
}
