package tail_test

import (
	"context"
	"errors"
	"fmt"
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
	// beforeJournal runs before a read of a journal.
	beforeJournal func(id runstore.RunID, from runstore.Seq)
	// afterJournal runs between a read of a journal and its return.
	afterJournal func(id runstore.RunID, from runstore.Seq) error
	// feed replaces ReadFeed.
	feed func(q runstore.FeedQuery) ([]runstore.FeedEvent, error)
	// commit replaces the result of a commit that was applied.
	commit func(runstore.Committed) (runstore.Committed, error)
	// mute loses all wake-ups.
	mute bool
	// hang lets reads of journals and of the feed wait for the end of their context.
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
	if h.beforeJournal != nil {
		h.beforeJournal(id, from)
	}
	events, err := p.Handle.ReadJournal(ctx, id, from, limit)
	if h.afterJournal != nil {
		if err := h.afterJournal(id, from); err != nil {
			return nil, err
		}
	}
	return events, err
}

func (p *probe) ReadFeed(ctx context.Context, q runstore.FeedQuery) ([]runstore.FeedEvent, error) {
	p.feeds.Add(1)
	h := p.get()
	if h.hang {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if h.feed != nil {
		return h.feed(q)
	}
	return p.Handle.ReadFeed(ctx, q)
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
	opts  tail.Options // before useStore
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
	e.opts.Logger = slog.New(slog.NewTextHandler(e.log, nil))
	e.tail = tail.New(store, &e.opts)
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

// fed waits until nothing goes on, and lets the interval between reads of the feed pass.
func fed() {
	time.Sleep(50 * time.Millisecond)
	synctest.Wait()
}
