package tail_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

func TestFollowersOfOneRunShareOneReadPerChange(t *testing.T) {
	bubble(t, func(e *env) {
		e.probe.set(hooks{mute: true}) // the feed costs reads of its own
		e.create(e.store, "r")
		var all []*reader
		for range 100 {
			all = append(all, e.follow("r", 1))
		}
		settled()
		for change := 1; change <= 10; change++ { // within 250 ms: before the first poll
			before := e.probe.journals.Load()
			e.mustAppend(e.store, "r", 1)
			synctest.Wait()
			if n := e.probe.journals.Load() - before; n != 1 {
				e.Fatalf("change %d cost %d reads, want 1", change, n)
			}
			for i, r := range all {
				e.want(fmt.Sprint("follower ", i), r, change)
			}
			settled()
			if n := e.probe.journals.Load() - before; n != 1 {
				e.Fatalf("change %d cost %d reads after a while, want 1", change, n)
			}
		}
	})
}

func TestIdleFollowersCostNoReads(t *testing.T) {
	bubble(t, func(e *env) {
		e.create(e.store, "busy")
		for i := range 1000 {
			e.follow(runstore.RunID(fmt.Sprint("idle-", i)), 1)
		}
		settled()
		time.Sleep(time.Second)
		synctest.Wait()
		// Without time passing, there is no poll.
		before := e.probe.journals.Load()
		for range 500 {
			e.mustAppend(e.store, "busy", 1)
		}
		synctest.Wait()
		if n := e.probe.journals.Load() - before; n != 0 {
			e.Errorf("500 commits to another run cost %d reads of journals, want 0", n)
		}
		// Within a second, there are 50 polls and 20 reads of the feed at most.
		before, feeds := e.probe.journals.Load(), e.probe.feeds.Load()
		for range 1000 {
			e.mustAppend(e.store, "busy", 1)
			time.Sleep(time.Millisecond)
		}
		synctest.Wait()
		journals, feeds := e.probe.journals.Load()-before, e.probe.feeds.Load()-feeds
		if journals > 51 || feeds > 21 {
			e.Errorf("1,000 commits within a second cost %d reads of journals and %d of the feed, want at most 50 and 20", journals, feeds)
		}
	})
}

func TestBusyRunIsReadOncePerInterval(t *testing.T) {
	bubble(t, func(e *env) {
		e.create(e.store, "r")
		r := e.follow("r", 1)
		settled()
		before := e.probe.journals.Load()
		for range 100 {
			e.mustAppend(e.store, "r", 1)
			time.Sleep(time.Millisecond)
		}
		settled()
		e.want("follower", r, 100)
		if n := e.probe.journals.Load() - before; n > 22 {
			e.Errorf("%d reads within 100 ms, want one per 5 ms", n)
		}
	})
}

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
		fed()
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
		before := e.probe.journals.Load()
		time.Sleep(100 * time.Millisecond)
		synctest.Wait()
		if n := e.probe.journals.Load() - before; n > 1 {
			e.Errorf("%d reads while nothing happened, want the poll only", n)
		}
		e.mustAppend(e.store, "r", 2)
		synctest.Wait() // and no time passes
		e.want("the old follower", old, 4)
		e.want("the new follower", fresh, 4)
	})
}

func TestFollowerThatJoinsDuringAReadOfLaterEvents(t *testing.T) {
	bubble(t, func(e *env) {
		e.probe.set(hooks{mute: true})
		e.create(e.store, "r")
		e.mustAppend(e.store, "r", 10)
		old := e.follow("r", 1)
		settled()
		purge := runstore.NewBatch("r", runstore.Unguarded("a test"))
		purge.Purge = true
		if _, err := e.other.Commit(e.Context(), purge); err != nil {
			e.Fatal(err)
		}
		e.create(e.other, "r")
		e.mustAppend(e.other, "r", 3)
		var fresh *reader
		e.probe.set(hooks{mute: true, beforeJournal: func(_ runstore.RunID, from runstore.Seq) {
			if from == 11 && fresh == nil {
				fresh = e.follow("r", 1)
				time.Sleep(time.Millisecond) // it waits for event 4
				e.mustAppend(e.other, "r", 9)
			}
		}})
		time.Sleep(500 * time.Millisecond) // a poll or two
		synctest.Wait()
		e.want("the old follower", old, 12)
		e.want("the new follower", fresh, 12)
	})
}

func TestPagesOfLargeEvents(t *testing.T) {
	bubble(t, func(e *env) {
		e.probe.set(hooks{mute: true})
		e.create(e.store, "r")
		for range 12 { // three pages
			b := runstore.NewBatch("r", runstore.Unguarded("a test"))
			b.Append("k", make([]byte, runstore.MaxEventData))
			if _, err := e.store.Commit(e.Context(), b); err != nil {
				e.Fatal(err)
			}
		}
		r := e.follow("r", 1)
		synctest.Wait() // and no time passes
		e.want("follower", r, 12)
	})
}
