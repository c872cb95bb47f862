package tail_test

import (
	"context"
	"fmt"
	"io"
	"math"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

func TestEventsCommittedWhileAReadReturns(t *testing.T) {
	bubble(t, func(e *env) {
		e.probe.set(hooks{mute: true})
		e.create(e.store, "r")
		// The journal grows after each of the first reads has looked, before it returns: the
		// first read is the follower's own, the others are shared.
		left := 5
		e.probe.set(hooks{mute: true, afterJournal: func(runstore.RunID, runstore.Seq) error {
			if left--; left >= 0 {
				return e.append(e.store, "r", 1)
			}
			return nil
		}})
		r := e.follow("r", 1)
		settled() // before the first poll
		e.want("follower", r, 5)
	})
}

func TestOtherProcessesAreFoundByTheFeed(t *testing.T) {
	bubble(t, func(e *env) {
		for i := range 500 { // so that the poll is slow
			e.follow(runstore.RunID(fmt.Sprint("idle-", i)), 1)
		}
		e.create(e.store, "r")
		e.mustAppend(e.other, "r", 3)
		r := e.follow("r", 2)
		settled()
		for n := 3; n < 10; n++ {
			began := time.Now()
			e.mustAppend(e.other, "r", 1)
			settled()
			e.want("follower", r, n)
			if took := r.at.Sub(began); took > 20*time.Millisecond {
				e.Errorf("event %d came after %v, want the interval of the feed at most", n, took)
			}
		}
	})
}

func TestEventsBeforeTheFeedBeginsAreFound(t *testing.T) {
	bubble(t, func(e *env) {
		e.create(e.store, "r")
		// Another process commits after the follower has read, before the feed's end is known.
		e.probe.set(hooks{feed: func(after runstore.Position, limit int) ([]runstore.FeedEvent, error) {
			if after == math.MaxInt64 {
				time.Sleep(time.Millisecond)
				e.mustAppend(e.other, "r", 1)
			}
			return e.probe.Handle.ReadFeed(context.Background(), after, limit)
		}})
		r := e.follow("r", 1)
		settled() // before the first poll
		e.want("follower", r, 1)
	})
}

func TestLostWakeUpsCostTimeOnly(t *testing.T) {
	for _, runs := range []int{1, 25, 1000} {
		t.Run(fmt.Sprint(runs, " runs"), func(t *testing.T) {
			bubble(t, func(e *env) {
				e.probe.set(hooks{mute: true, feed: func(after runstore.Position, limit int) ([]runstore.FeedEvent, error) {
					if after == math.MaxInt64 {
						return nil, &runstore.StoreBehindError{}
					}
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
				round := max(250*time.Millisecond, time.Duration(runs)*10*time.Millisecond)
				time.Sleep(round)
				synctest.Wait()
				for i, r := range all {
					e.want(fmt.Sprint("follower ", i), r, 1)
				}
				if n, most := e.probe.journals.Load()-before, int64(round/(10*time.Millisecond))+1; n > most {
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
		for i := range 500 { // so that the poll is slow
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
		e.probe.set(hooks{feed: func(runstore.Position, int) ([]runstore.FeedEvent, error) { return nil, io.ErrUnexpectedEOF }})
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
		for i := range 500 { // so that the poll is slow
			e.follow(runstore.RunID(fmt.Sprint("idle-", i)), 1)
		}
		settled()
		e.mustAppend(e.other, "r", 1)
		settled()
		e.want("after the recovery", r, 11)
		if log := e.log.String(); strings.Count(log, "\n") != 2 || !strings.Contains(log, "level=INFO") {
			e.Errorf("log %q, want one more line", log)
		}
	})
}

func TestFeedOfARestoredStore(t *testing.T) {
	bubble(t, func(e *env) {
		e.create(e.store, "r")
		e.mustAppend(e.store, "r", 5)
		r := e.follow("r", 1)
		for i := range 500 { // so that the poll is slow
			e.follow(runstore.RunID(fmt.Sprint("idle-", i)), 1)
		}
		settled()
		lost := true
		e.probe.set(hooks{feed: func(after runstore.Position, limit int) ([]runstore.FeedEvent, error) {
			if lost && after != math.MaxInt64 {
				lost = false
				return nil, &runstore.StoreBehindError{Field: "position", Presented: int64(after), Known: 1}
			}
			return e.probe.Handle.ReadFeed(context.Background(), after, limit)
		}})
		e.mustAppend(e.other, "r", 1) // its hint goes to the failed read
		time.Sleep(260 * time.Millisecond)
		synctest.Wait()
		e.want("after the restore", r, 6)
		e.mustAppend(e.other, "r", 1)
		settled()
		e.want("by the feed", r, 7)
	})
}

func TestSlowFollowerHoldsUpNobody(t *testing.T) {
	bubble(t, func(e *env) {
		e.probe.set(hooks{mute: true})
		e.create(e.store, "r")
		gate := make(chan struct{})
		slow := e.followGated("r", 1, gate)
		fast := e.follow("r", 1)
		settled()
		const changes = 100
		before := e.probe.journals.Load()
		for n := 1; n <= changes; n++ {
			e.mustAppend(e.store, "r", 10)
			settled()
			e.want("the fast follower", fast, 10*n)
		}
		e.want("the slow follower", slow, 0)
		polls := int64(changes*20/250 + 1)
		if n := e.probe.journals.Load() - before; n > changes+polls {
			e.Errorf("%d reads for %d changes, want one each beside %d polls", n, changes, polls)
		}
		close(gate)
		before = e.probe.journals.Load()
		synctest.Wait() // and no time passes: the slow follower reads by itself
		e.want("the slow follower", slow, 10*changes)
		if n := e.probe.journals.Load() - before; n > 10*changes/256+2 {
			e.Errorf("the slow follower caught up in %d reads, want full pages", n)
		}
		// Together again.
		settled()
		before = e.probe.journals.Load()
		e.mustAppend(e.store, "r", 1)
		synctest.Wait()
		e.want("the fast follower", fast, 10*changes+1)
		e.want("the slow follower", slow, 10*changes+1)
		if n := e.probe.journals.Load() - before; n != 1 {
			e.Errorf("%d reads, want 1", n)
		}
	})
}

func TestManyFollowersJoinAtDifferentSeqsWhileWritersAppend(t *testing.T) {
	bubble(t, func(e *env) {
		const total = 1000
		e.create(e.store, "r")
		var all []*reader
		for n := 0; n < total; n += 10 {
			writer := e.store
			if n%20 == 0 {
				writer = e.other
			}
			e.mustAppend(writer, "r", 10)
			all = append(all, e.follow("r", runstore.Seq(n*7%total+1)))
			if n%50 == 0 {
				time.Sleep(time.Millisecond)
			}
		}
		time.Sleep(time.Second)
		synctest.Wait()
		for _, r := range all {
			e.want(fmt.Sprint("follower from ", r.from), r, total+1-int(r.from))
		}
	})
}

func TestFollowersAheadOfTheJournal(t *testing.T) {
	bubble(t, func(e *env) {
		e.probe.set(hooks{mute: true})
		e.create(e.store, "r")
		now, later := e.follow("r", 1), e.follow("r", 400)
		settled()
		e.mustAppend(e.store, "r", 398) // more than a page
		settled()
		e.want("the follower from 1", now, 398)
		e.want("the follower from 400", later, 0)
		e.mustAppend(e.store, "r", 4)
		settled()
		e.want("the follower from 1", now, 402)
		e.want("the follower from 400", later, 3)
	})
}

func TestRunThatBeginsLater(t *testing.T) {
	bubble(t, func(e *env) {
		r := e.follow("r", 1)
		settled()
		e.create(e.other, "r")
		e.mustAppend(e.other, "r", 2)
		settled()
		e.want("follower", r, 2)
	})
}

func TestPurgedRunThatIsCreatedAnew(t *testing.T) {
	bubble(t, func(e *env) {
		e.probe.set(hooks{mute: true})
		e.create(e.store, "r")
		e.mustAppend(e.store, "r", 3)
		old := e.follow("r", 1)
		settled()
		e.want("the old follower", old, 3)
		purge := runstore.NewBatch("r", runstore.Unguarded("a test"))
		purge.Purge = true
		if _, err := e.store.Commit(e.Context(), purge); err != nil {
			e.Fatal(err)
		}
		e.create(e.store, "r")
		e.mustAppend(e.store, "r", 2)
		settled()
		fresh := e.follow("r", 1)
		settled()
		e.want("the old follower", old, 3)
		e.want("the new follower", fresh, 2)
		e.mustAppend(e.store, "r", 2)
		synctest.Wait() // and no time passes
		e.want("the old follower", old, 4)
		e.want("the new follower", fresh, 4)
	})
}

func TestFailedReadEndsItsFollowersOnly(t *testing.T) {
	bubble(t, func(e *env) {
		e.probe.set(hooks{mute: true})
		e.create(e.store, "r", "other")
		one, two, far, other := e.follow("r", 1), e.follow("r", 1), e.follow("r", 100), e.follow("other", 1)
		settled()
		e.probe.set(hooks{mute: true, afterJournal: func(id runstore.RunID, _ runstore.Seq) error {
			if id == "r" {
				return io.ErrUnexpectedEOF
			}
			return nil
		}})
		e.mustAppend(e.store, "r", 1)
		synctest.Wait()
		e.wantEnd("one", one, io.ErrUnexpectedEOF)
		e.wantEnd("two", two, io.ErrUnexpectedEOF)
		e.want("the follower that waited for a later event", far, 0)
		e.probe.set(hooks{mute: true})
		again := e.follow("r", 1)
		e.mustAppend(e.store, "other", 1)
		settled()
		e.want("a follower that came after the failure", again, 1)
		e.want("the other run", other, 1)
	})
}

func TestCancelledFollowerTakesNothingWithIt(t *testing.T) {
	bubble(t, func(e *env) {
		e.probe.set(hooks{mute: true})
		e.create(e.store, "r")
		one, two := e.follow("r", 1), e.follow("r", 1)
		settled()
		e.probe.set(hooks{mute: true, afterJournal: func(runstore.RunID, runstore.Seq) error {
			one.stop() // while the shared read is under way
			return nil
		}})
		e.mustAppend(e.store, "r", 1)
		settled()
		e.wantEnd("the cancelled follower", one, context.Canceled)
		e.want("the other", two, 1)
	})
}

func TestReadsAreBounded(t *testing.T) {
	bubble(t, func(e *env) {
		var now, most atomic.Int64
		e.probe.set(hooks{mute: true, afterJournal: func(runstore.RunID, runstore.Seq) error {
			n := now.Add(1)
			for old := most.Load(); n > old && !most.CompareAndSwap(old, n); old = most.Load() {
			}
			time.Sleep(time.Millisecond)
			now.Add(-1)
			return nil
		}})
		for i := range 200 {
			e.create(e.store, runstore.RunID(fmt.Sprint(i)))
			e.follow(runstore.RunID(fmt.Sprint(i)), 1)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if n := most.Load(); n != 16 {
			e.Errorf("%d reads at once, want 16", n)
		}
	})
}

func TestReadThatHangsEndsWithItsFollowers(t *testing.T) {
	bubble(t, func(e *env) {
		e.probe.set(hooks{mute: true})
		e.create(e.store, "r")
		r := e.follow("r", 1)
		settled()
		e.probe.set(hooks{hang: true})
		e.mustAppend(e.store, "r", 1)
		synctest.Wait()
		r.stop()
		synctest.Wait()
		e.wantEnd("follower", r, context.Canceled)
		e.probe.set(hooks{mute: true})
		again := e.follow("r", 1)
		settled()
		e.want("the next follower", again, 1)
	})
}

func TestClose(t *testing.T) {
	bubble(t, func(e *env) {
		e.create(e.store, "r")
		r := e.follow("r", 1)
		settled()
		e.tail.Close(e.Context())
		synctest.Wait()
		e.wantEnd("follower", r, runstore.ErrClosed)
		e.mustAppend(e.store, "r", 1) // the store goes on
		late := e.follow("r", 1)
		synctest.Wait()
		e.wantEnd("a follower that comes late", late, runstore.ErrClosed)

		ended, cancel := context.WithCancel(e.Context())
		cancel()
		e.tail.Close(ended)
	})
}

func TestCloseIsBounded(t *testing.T) {
	bubble(t, func(e *env) {
		e.create(e.store, "r")
		r := e.follow("r", 1)
		settled()
		free := make(chan struct{})
		e.probe.set(hooks{afterJournal: func(runstore.RunID, runstore.Seq) error { <-free; return nil }}) // ignores its context
		e.mustAppend(e.store, "r", 1)
		synctest.Wait()
		ctx, cancel := context.WithTimeout(e.Context(), time.Second)
		defer cancel()
		began := time.Now()
		e.tail.Close(ctx)
		if took := time.Since(began); took != time.Second {
			e.Errorf("Close took %v, want the second that it was given", took)
		}
		e.wantEnd("follower", r, runstore.ErrClosed)
		close(free)
	})
}
