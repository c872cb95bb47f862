package tail_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

func TestFeedRepeatsNoReadOfThisProcess(t *testing.T) {
	bubble(t, func(e *env) {
		e.create(e.store, "r")
		r := e.follow("r", 1)
		fed()
		before, feeds := e.probe.journals.Load(), e.probe.feeds.Load()
		for range 3 { // within 250 ms: before the first poll
			e.mustAppend(e.store, "r", 1)
			fed()
		}
		e.want("follower", r, 3)
		if n := e.probe.journals.Load() - before; n != 3 {
			e.Errorf("%d reads for 3 changes, want 3", n)
		}
		if e.probe.feeds.Load() == feeds {
			e.Error("the feed was not read: the test shows nothing")
		}
	})
}

func TestOtherProcessesAreFoundByTheFeed(t *testing.T) {
	bubble(t, func(e *env) {
		for i := range 100 { // so that the poll is slow
			e.follow(runstore.RunID(fmt.Sprint("idle-", i)), 1)
		}
		e.create(e.store, "r")
		e.mustAppend(e.other, "r", 3)
		r := e.follow("r", 2)
		settled()
		for n := 3; n < 10; n++ {
			began := time.Now()
			e.mustAppend(e.other, "r", 1)
			fed()
			e.want("follower", r, n)
			if took := r.at.Sub(began); took > 50*time.Millisecond {
				e.Errorf("event %d came after %v, want the interval of the feed at most", n, took)
			}
		}
	})
}

// TestFeedWithoutNewsIsReadLessOften checks that a process whose own writes fill the feed
// reads it four times a second, and still finds the writes of other processes by it.
func TestFeedWithoutNewsIsReadLessOften(t *testing.T) {
	bubble(t, func(e *env) {
		for i := range 100 { // so that the poll is slow
			e.follow(runstore.RunID(fmt.Sprint("idle-", i)), 1)
		}
		e.probe.set(hooks{feed: func(q runstore.FeedQuery) ([]runstore.FeedEvent, error) {
			// Between two writes, so that no read sees a write before its hint.
			time.Sleep((15*time.Millisecond - time.Duration(time.Now().UnixNano())%(10*time.Millisecond)) % (10 * time.Millisecond))
			return e.probe.Handle.ReadFeed(context.Background(), q)
		}})
		e.create(e.store, "own")
		e.create(e.store, "unfollowed")
		e.create(e.store, "r")
		own, r := e.follow("own", 1), e.follow("r", 1)
		settled()
		busy := func(d time.Duration) {
			for range d / (10 * time.Millisecond) {
				e.mustAppend(e.store, "own", 1)
				e.mustAppend(e.store, "unfollowed", 1)
				time.Sleep(10 * time.Millisecond)
			}
			synctest.Wait()
		}
		busy(time.Second)
		feeds := e.probe.feeds.Load()
		busy(5 * time.Second)
		if n := e.probe.feeds.Load() - feeds; n < 19 || n > 21 {
			e.Errorf("%d reads of the feed in 5 s, want one every 250 ms", n)
		}
		e.want("follower of this process's writes", own, 600)
		for n := 1; n <= 3; n++ {
			began := time.Now()
			e.mustAppend(e.other, "r", 1)
			busy(300 * time.Millisecond)
			e.want("follower of another process's writes", r, n)
			if took := r.at.Sub(began); took > 260*time.Millisecond {
				e.Errorf("event %d came after %v, want 250 ms and a read at most", n, took)
			}
		}
	})
}

func TestEventsBeforeTheFeedBeginsAreFound(t *testing.T) {
	bubble(t, func(e *env) {
		e.create(e.store, "r")
		// Another process commits after the follower has read, before the feed's end is known.
		e.probe.set(hooks{feed: func(q runstore.FeedQuery) ([]runstore.FeedEvent, error) {
			if q.Newest {
				time.Sleep(time.Millisecond)
				e.mustAppend(e.other, "r", 1)
			}
			return e.probe.Handle.ReadFeed(context.Background(), q)
		}})
		r := e.follow("r", 1)
		settled() // before the first poll
		e.want("follower", r, 1)
	})
}

func TestLostWakeUpsCostTimeOnly(t *testing.T) {
	for _, runs := range []int{1, 12, 200} {
		t.Run(fmt.Sprint(runs, " runs"), func(t *testing.T) {
			bubble(t, func(e *env) {
				e.probe.set(hooks{mute: true, feed: func(q runstore.FeedQuery) ([]runstore.FeedEvent, error) {
					return nil, nil // it lags for ever
				}})
				var all []*reader
				for i := range runs {
					id := runstore.RunID(fmt.Sprint("r-", i))
					e.create(e.store, id)
					all = append(all, e.follow(id, 1))
				}
				time.Sleep(time.Second)
				synctest.Wait()
				began, before := time.Now(), e.probe.journals.Load()
				for i := range all {
					e.mustAppend(e.other, runstore.RunID(fmt.Sprint("r-", i)), 1)
				}
				round := max(250*time.Millisecond, time.Duration(runs)*20*time.Millisecond)
				time.Sleep(round)
				synctest.Wait()
				for i, r := range all {
					e.want(fmt.Sprint("follower ", i), r, 1)
				}
				if n, most := e.probe.journals.Load()-before, int64(round/(20*time.Millisecond))+1; n > most {
					e.Errorf("%d reads within %v, want at most %d", n, time.Since(began), most)
				}
			})
		})
	}
}

func TestStoreWithoutANotifier(t *testing.T) {
	bubble(t, func(e *env) {
		e.tail.Close(e.Context())
		e.useStore(struct{ runstore.RunStore }{e.probe})
		if _, multi := e.store.(runstore.MultiCommitter); multi {
			e.Error("the store gained the capability MultiCommitter")
		}
		e.create(e.store, "r")
		r := e.follow("r", 1)
		for i := range 100 { // so that the poll is slow
			e.follow(runstore.RunID(fmt.Sprint("idle-", i)), 1)
		}
		settled()
		e.mustAppend(e.other, "r", 1)
		time.Sleep(260 * time.Millisecond)
		synctest.Wait()
		e.want("follower", r, 1)
	})
}

func TestFeedFailsAndRecovers(t *testing.T) {
	bubble(t, func(e *env) {
		e.create(e.store, "r")
		r := e.follow("r", 1)
		settled()
		e.probe.set(hooks{feed: func(runstore.FeedQuery) ([]runstore.FeedEvent, error) { return nil, io.ErrUnexpectedEOF }})
		for n := 1; n <= 10; n++ {
			e.mustAppend(e.other, "r", 1)
			time.Sleep(250 * time.Millisecond)
			synctest.Wait()
			e.want("while the feed fails", r, n)
		}
		if log := e.log.String(); strings.Count(log, "\n") != 1 || !strings.Contains(log, "level=WARN") || !strings.Contains(log, io.ErrUnexpectedEOF.Error()) {
			e.Errorf("log %q, want one warning with the cause", log)
		}
		e.probe.set(hooks{})
		time.Sleep(250 * time.Millisecond)
		for i := range 100 { // so that the poll is slow
			e.follow(runstore.RunID(fmt.Sprint("idle-", i)), 1)
		}
		settled()
		e.mustAppend(e.other, "r", 1)
		fed()
		e.want("after the recovery", r, 11)
		if log := e.log.String(); strings.Count(log, "\n") != 2 || !strings.Contains(log, "level=INFO") {
			e.Errorf("log %q, want one more line", log)
		}
	})
}

func TestFeedOfARestoredStore(t *testing.T) {
	bubble(t, func(e *env) {
		const lost = 1000 // how far the feed was ahead before the restore
		e.probe.set(hooks{feed: func(q runstore.FeedQuery) ([]runstore.FeedEvent, error) {
			q.After = max(q.After-lost, 0)
			events, err := e.probe.Handle.ReadFeed(context.Background(), q)
			var behind *runstore.StoreBehindError
			if errors.As(err, &behind) {
				behind.Known += lost
			}
			for i := range events {
				events[i].Position += lost
			}
			return events, err
		}})
		e.create(e.store, "r")
		e.mustAppend(e.store, "r", 5)
		r := e.follow("r", 1)
		for i := range 100 { // so that the poll is slow
			e.follow(runstore.RunID(fmt.Sprint("idle-", i)), 1)
		}
		settled()
		e.mustAppend(e.other, "r", 1)
		fed()
		e.want("before the restore", r, 6)
		e.probe.set(hooks{})
		e.mustAppend(e.other, "r", 1) // wakes the feed, whose position is gone
		time.Sleep(350 * time.Millisecond)
		synctest.Wait()
		e.want("after the restore", r, 7)
		e.mustAppend(e.other, "r", 1)
		fed()
		e.want("by the feed", r, 8)
	})
}
