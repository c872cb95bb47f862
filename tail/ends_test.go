package tail_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

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

func TestReadsThatHangEndWithTheirFollowers(t *testing.T) {
	bubble(t, func(e *env) {
		e.probe.set(hooks{mute: true})
		var all []*reader
		for i := range 20 { // more than the reads under way
			id := runstore.RunID(fmt.Sprint(i))
			e.create(e.store, id)
			all = append(all, e.follow(id, 1))
		}
		settled()
		e.probe.set(hooks{mute: true, hang: true})
		for i := range all {
			e.mustAppend(e.store, runstore.RunID(fmt.Sprint(i)), 1)
		}
		synctest.Wait()
		for i, r := range all {
			e.want(fmt.Sprint("follower ", i), r, 0)
			r.stop()
		}
		synctest.Wait()
		e.probe.set(hooks{mute: true})
		again := e.follow("0", 1)
		synctest.Wait()
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

func TestPagesAreAdmitted(t *testing.T) {
	bubble(t, func(e *env) {
		var admitted, read atomic.Int64
		room, full := make(chan struct{}, 1), errors.New("no room")
		e.tail.Close(e.Context())
		e.opts.Admit = func(ctx context.Context) (func(), error) {
			select {
			case room <- struct{}{}:
				admitted.Add(1)
				return func() { <-room }, nil
			case <-time.After(time.Second):
				return nil, full
			}
		}
		e.useStore(e.probe)
		e.probe.set(hooks{mute: true, beforeJournal: func(runstore.RunID, runstore.Seq) { read.Add(1) }})
		e.create(e.store, "r")
		one, two := e.follow("r", 1), e.follow("r", 1)
		settled()
		if len(room) != 0 {
			e.Error("a follower that waits keeps the room of a page")
		}
		e.mustAppend(e.store, "r", 1)
		settled()
		e.want("one", one, 1)
		e.want("two", two, 1)
		if n := admitted.Load(); n != 4 || len(room) != 0 {
			e.Errorf("%d pages admitted and %d kept, want 4 (an own and a shared one for each follower) and 0", n, len(room))
		}
		room <- struct{}{}
		reads := read.Load()
		late := e.follow("r", 1)
		settled()
		if n := read.Load() - reads; n != 0 {
			e.Errorf("%d reads without room, want 0", n)
		}
		e.mustAppend(e.store, "r", 1)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		for what, r := range map[string]*reader{"one": one, "two": two, "late": late} {
			e.wantEnd(what, r, full)
		}
	})
}

// TestPagesWithoutRoomAreReadAgain lets followers receive shared pages while there is no room. They do not keep
// the pages: once there is room, each follower reads its page again alone, and receives each event once.
func TestPagesWithoutRoomAreReadAgain(t *testing.T) {
	bubble(t, func(e *env) {
		room, full := make(chan struct{}), atomic.Bool{}
		e.tail.Close(e.Context())
		e.opts.TryAdmit = func(context.Context) (func(), bool) { return func() {}, !full.Load() }
		e.opts.Admit = func(ctx context.Context) (func(), error) {
			if full.Load() {
				select {
				case <-room:
				case <-ctx.Done():
					return nil, ctx.Err()
				}
			}
			return func() {}, nil
		}
		e.useStore(e.probe)
		e.probe.set(hooks{mute: true})
		const runs, each = 10, 2
		run := func(i int) runstore.RunID { return runstore.RunID(fmt.Sprint("r-", i)) }
		var all []*reader
		for i := range runs {
			e.create(e.store, run(i))
			e.mustAppend(e.store, run(i), 1)
			for range each {
				all = append(all, e.follow(run(i), 1))
				synctest.Wait() // the first poll is due before the number of followers is known otherwise
			}
		}
		settled()
		full.Store(true)
		before := e.probe.journals.Load()
		for i := range runs {
			b := runstore.NewBatch(run(i), runstore.Unguarded("a test"))
			for range 3 {
				b.Append("k", make([]byte, 100<<10))
			}
			if _, err := e.store.Commit(e.Context(), b); err != nil {
				e.Fatal(err)
			}
		}
		settled()
		if n := e.probe.journals.Load() - before; n != runs {
			e.Errorf("%d reads of %d runs, want a shared one each", n, runs)
		}
		for i := range runs {
			e.mustAppend(e.store, run(i), 1)
		}
		settled()
		for i, r := range all {
			e.want(fmt.Sprint("follower ", i, " without room"), r, 1)
		}
		before = e.probe.journals.Load()
		full.Store(false)
		close(room)
		synctest.Wait() // and no time passes
		for i, r := range all {
			e.want(fmt.Sprint("follower ", i), r, 5)
		}
		if n := e.probe.journals.Load() - before; n != runs*each {
			e.Errorf("%d reads once there is room, want one for each of %d followers", n, runs*each)
		}
		settled()
		before = e.probe.journals.Load() // together again
		for i := range runs {
			e.mustAppend(e.store, run(i), 1)
		}
		synctest.Wait()
		for i, r := range all {
			e.want(fmt.Sprint("follower ", i, " at last"), r, 6)
		}
		if n := e.probe.journals.Load() - before; n != runs {
			e.Errorf("%d reads of %d runs, want a shared one each", n, runs)
		}
	})
}
