package tail_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
	"github.com/tapestore/tapestore/tail"
)

// probe is a store that counts reads and lets a test interfere with them.
type probe struct {
	*memory.Handle
	journals, feeds atomic.Int64

	mu    sync.Mutex
	hooks hooks
}

// hooks interfere with a store. Each may be zero.
type hooks struct {
	// afterJournal runs between a read of a journal and its return.
	afterJournal func(id runstore.RunID, from runstore.Seq) error
	// feed replaces ReadFeed.
	feed func(after runstore.Position, limit int) ([]runstore.FeedEvent, error)
	// commit replaces the result of a commit that was applied.
	commit func(runstore.Committed) (runstore.Committed, error)
	// mute loses all wake-ups.
	mute bool
	// hang lets reads of journals wait for the end of their context.
	hang bool
}

// set replaces the hooks.
func (p *probe) set(h hooks) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hooks = h
}

func (p *probe) get() hooks {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.hooks
}

func (p *probe) ReadJournal(ctx context.Context, id runstore.RunID, from runstore.Seq, limit int) ([]runstore.Event, error) {
	p.journals.Add(1)
	h := p.get()
	if h.hang {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	events, err := p.Handle.ReadJournal(ctx, id, from, limit)
	if h.afterJournal != nil {
		if err := h.afterJournal(id, from); err != nil {
			return nil, err
		}
	}
	return events, err
}

func (p *probe) ReadFeed(ctx context.Context, after runstore.Position, limit int) ([]runstore.FeedEvent, error) {
	p.feeds.Add(1)
	if h := p.get(); h.feed != nil {
		return h.feed(after, limit)
	}
	return p.Handle.ReadFeed(ctx, after, limit)
}

func (p *probe) Commit(ctx context.Context, b runstore.Batch) (runstore.Committed, error) {
	done, err := p.Handle.Commit(ctx, b)
	if h := p.get(); err == nil && h.commit != nil {
		return h.commit(done)
	}
	return done, err
}

func (p *probe) Wakeups(ctx context.Context) (<-chan struct{}, error) {
	if p.get().mute {
		return make(chan struct{}), nil
	}
	return p.Handle.Wakeups(ctx)
}

// logged is what a tail has logged.
type logged struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// env is a store with a tail, in a bubble of fake time.
type env struct {
	*testing.T
	probe *probe
	tail  *tail.Tail
	store runstore.RunStore // writes through the tail
	other runstore.RunStore // a handle of another process
	log   *logged
}

// bubble runs f in a bubble, and checks that Close ends every follower and goroutine.
func bubble(t *testing.T, f func(e *env)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := memory.New(nil)
		e := &env{T: t, probe: &probe{Handle: m.Open()}, other: m.Open(), log: &logged{}}
		e.useStore(e.probe)
		f(e)
		e.tail.Close(context.Background()) // the bubble fails if a goroutine is left
	})
}

// useStore gives e a tail of store.
func (e *env) useStore(store runstore.RunStore) {
	e.tail = tail.New(store, &tail.Options{Logger: slog.New(slog.NewTextHandler(e.log, nil))})
	e.store = e.tail.Store()
}

func (e *env) create(s runstore.RunStore, ids ...runstore.RunID) {
	e.Helper()
	for _, id := range ids {
		if _, err := s.CreateRun(e.Context(), runstore.RunSpec{ID: id}); err != nil {
			e.Fatal(err)
		}
	}
}

// events returns writes that append n events.
func events(n int) (w runstore.Writes) {
	for range n {
		w.Append("k", []byte("{}"))
	}
	return w
}

// append appends n events to a run in one commit.
func (e *env) append(s runstore.RunStore, id runstore.RunID, n int) error {
	b := runstore.NewBatch(id, runstore.Unguarded("a test"))
	b.Writes = events(n)
	_, err := s.Commit(context.Background(), b)
	return err
}

func (e *env) mustAppend(s runstore.RunStore, id runstore.RunID, n int) {
	e.Helper()
	if err := e.append(s, id, n); err != nil {
		e.Fatal(err)
	}
}

// reader consumes a journal.
type reader struct {
	stop context.CancelFunc
	gate chan struct{} // if not nil, each page waits for a value before it is consumed

	mu   sync.Mutex
	from runstore.Seq
	n    int
	bad  string
	err  error
	at   time.Time // when the last event arrived
}

func (e *env) follow(id runstore.RunID, from runstore.Seq) *reader {
	return e.followGated(id, from, nil)
}

func (e *env) followGated(id runstore.RunID, from runstore.Seq, gate chan struct{}) *reader {
	ctx, stop := context.WithCancel(context.Background())
	r := &reader{stop: stop, from: max(from, 1), gate: gate}
	go func() {
		defer stop()
		for page, err := range e.tail.Follow(ctx, id, from) {
			if r.gate != nil {
				<-r.gate
			}
			r.mu.Lock()
			for _, event := range page {
				if want := r.from + runstore.Seq(r.n); event.Seq != want && r.bad == "" {
					r.bad = fmt.Sprintf("event %d has seq %d, want %d", r.n, event.Seq, want)
				}
				r.n++
				r.at = time.Now()
			}
			r.err = err
			r.mu.Unlock()
		}
	}()
	return r
}

// want checks that a reader has received n events, from its first seq on and in order.
func (e *env) want(what string, r *reader, n int) {
	e.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.n != n || r.bad != "" || r.err != nil {
		e.Errorf("%s: %d events %s, error %v; want %d events", what, r.n, r.bad, r.err, n)
	}
}

func (e *env) wantEnd(what string, r *reader, want error) {
	e.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if !errors.Is(r.err, want) {
		e.Errorf("%s: ended with %v, want %v", what, r.err, want)
	}
}

// settled waits until nothing goes on, and lets the interval between reads pass.
func settled() {
	time.Sleep(20 * time.Millisecond)
	synctest.Wait()
}

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

func TestFeedRepeatsNoReadOfThisProcess(t *testing.T) {
	bubble(t, func(e *env) {
		e.create(e.store, "r")
		r := e.follow("r", 1)
		settled()
		before, feeds := e.probe.journals.Load(), e.probe.feeds.Load()
		for range 5 {
			e.mustAppend(e.store, "r", 1)
			settled()
		}
		e.want("follower", r, 5)
		if n := e.probe.journals.Load() - before; n != 5 {
			e.Errorf("%d reads for 5 changes, want 5", n)
		}
		if e.probe.feeds.Load() == feeds {
			e.Error("the feed was not read: the test shows nothing")
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
		// Within a second, there are 100 polls and 50 reads of the feed at most.
		before, feeds := e.probe.journals.Load(), e.probe.feeds.Load()
		for range 1000 {
			e.mustAppend(e.store, "busy", 1)
			time.Sleep(time.Millisecond)
		}
		synctest.Wait()
		journals, feeds := e.probe.journals.Load()-before, e.probe.feeds.Load()-feeds
		if journals > 101 || feeds > 51 {
			e.Errorf("1,000 commits within a second cost %d reads of journals and %d of the feed, want at most 100 and 50", journals, feeds)
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

func TestEveryWriteThroughTheStoreHints(t *testing.T) {
	lease := runstore.LeaseSpec{Owner: "o", TTL: time.Minute}
	held := func(e *env) runstore.Fence {
		got, err := e.store.AcquireLease(e.Context(), runstore.AcquireRequest{Run: "r", LeaseSpec: lease})
		if err != nil {
			e.Fatal(err)
		}
		return got.Fence()
	}
	for name, write := range map[string]func(e *env) error{
		"commit": func(e *env) error { return e.append(e.store, "r", 1) },
		"create": func(e *env) error {
			_, err := e.store.CreateRun(e.Context(), runstore.RunSpec{ID: "new", Writes: events(1)})
			return err
		},
		"acquire": func(e *env) error {
			_, err := e.store.AcquireLease(e.Context(), runstore.AcquireRequest{Run: "r", LeaseSpec: lease, Writes: events(1)})
			return err
		},
		"release": func(e *env) error {
			_, err := e.store.ReleaseLease(e.Context(), runstore.ReleaseRequest{Fence: held(e), Writes: events(1)})
			return err
		},
		"commit of several runs": func(e *env) error {
			one, two := runstore.NewBatch("other", runstore.Unguarded("a test")), runstore.NewBatch("r", runstore.Unguarded("a test"))
			two.Writes = events(1)
			one.Put("key", nil)
			_, err := e.store.(runstore.MultiCommitter).CommitMulti(e.Context(), []runstore.Batch{one, two})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(e *env) {
				e.probe.set(hooks{mute: true})
				e.create(e.store, "r", "other")
				id := runstore.RunID("r")
				if name == "create" {
					id = "new"
				}
				r := e.follow(id, 1)
				settled()
				if err := write(e); err != nil {
					e.Fatal(err)
				}
				synctest.Wait() // and no time passes
				e.want("follower", r, 1)
			})
		})
	}
}

func TestHintsOfFailedWrites(t *testing.T) {
	bubble(t, func(e *env) {
		e.probe.set(hooks{mute: true})
		e.create(e.store, "r")
		r := e.follow("r", 1)
		settled()
		before := e.probe.journals.Load()
		b := runstore.NewBatch("r", runstore.AtSeq(7))
		b.Writes = events(1)
		if _, err := e.store.Commit(e.Context(), b); !errors.Is(err, runstore.ErrConflict) {
			e.Fatalf("Commit = %v, want ErrConflict", err)
		}
		record := runstore.NewBatch("r", runstore.Unguarded("a test"))
		record.Put("key", nil)
		if _, err := e.store.Commit(e.Context(), record); err != nil {
			e.Fatal(err)
		}
		synctest.Wait()
		if n := e.probe.journals.Load() - before; n != 0 {
			e.Errorf("a refused write and one without events cost %d reads, want 0", n)
		}
		e.probe.set(hooks{mute: true, commit: func(runstore.Committed) (runstore.Committed, error) {
			return runstore.Committed{}, &runstore.OpError{Op: "commit", Err: runstore.ErrUnknownOutcome, Cause: io.EOF}
		}})
		if err := e.append(e.store, "r", 1); !errors.Is(err, runstore.ErrUnknownOutcome) {
			e.Fatalf("Commit = %v, want ErrUnknownOutcome", err)
		}
		synctest.Wait() // and no time passes
		e.want("after an unknown outcome", r, 1)
	})
}
