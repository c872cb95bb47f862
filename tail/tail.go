package tail

import (
	"cmp"
	"container/list"
	"context"
	"iter"
	"log/slog"
	"sync"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

const (
	// pollInterval is 250 ms: how long a follower waits at most for an event that no
	// hint names, while few runs are followed. It is also the pace of the feed on a store
	// that is no [runstore.Notifier].
	pollInterval = 250 * time.Millisecond
	// pollSpacing is 20 ms, the shortest time between two polls. It bounds them to 50 reads
	// per second however many runs are followed: 1,000 runs are polled every 20 s.
	pollSpacing = 20 * time.Millisecond
	// readInterval is 5 ms, the shortest time between two shared reads of one run. A run
	// that commits more often costs one read per interval, and its followers have time to
	// come back for the next read together.
	readInterval = 5 * time.Millisecond
	// pageEvents is how many events one read of a journal asks for.
	pageEvents = 256
	// maxReads is how many pages of journals, and of the feed for single subscribers, are read at
	// once, so that a thousand followers that arrive together leave most of a store's connections
	// to its writers.
	maxReads = 16
)

// Options adjusts a Tail; nil, and each zero field, means the default.
type Options struct {
	// Logger records that the feed fails and recovers; slog.Default by default.
	Logger *slog.Logger
	// Admit, if set, bounds the pages in memory. It is called with the context of Follow or
	// Feed, blocks until a page has room, and returns what gives the room back once the follower
	// has consumed the page. A follower that reads by itself calls it before the read; each
	// follower that receives a shared page calls it after the read. A subscriber of the feed
	// calls it before it reads or takes a page. An error ends the follower.
	Admit func(ctx context.Context) (release func(), err error)
	// Derive, if set, is called for each event that the feed's subscribers receive: once for all
	// of them while they follow its end, and once for each that reads by itself. It is called by
	// several goroutines.
	Derive func(runstore.FeedEvent) any
	// RingBytes bounds the last events of the feed that are kept for its subscribers; 64 MiB by
	// default. An event counts 256 bytes, its run, kind, owner and data, and as much again if
	// Derive returned a value: lower it if derived values are larger than their events. The
	// newest page stays if it is larger.
	RingBytes int
}

// Tail follows journals and the feed of all runs. Its methods are safe for concurrent use.
type Tail struct {
	store  runstore.RunStore
	opts   Options
	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	work   sync.WaitGroup
	slots  chan struct{} // holds a value for each read under way

	mu       sync.Mutex
	closed   bool
	topics   map[runstore.RunID]*topic
	rotation list.List          // of *topic; the front is polled next
	stop     context.CancelFunc // ends the feed reader and the poller

	subscribers int               // of the feed
	ring        *ring             // what the feed reader has read, while there is one
	furthest    runstore.Position // that any feed reader has read
	histories   int               // how often a feed reader has found the store behind
	wakes       chan struct{}     // holds a value when the feed reader should read soon
	awake       bool              // a write has woken the feed reader since its last read
}

// New returns a Tail of store. It starts no goroutine before the first follower. The
// caller that opened the store closes it, after the Tail.
func New(store runstore.RunStore, opts *Options) *Tail {
	t := &Tail{
		store: store,
		slots: make(chan struct{}, maxReads), topics: map[runstore.RunID]*topic{},
		wakes: make(chan struct{}, 1),
	}
	if opts != nil {
		t.opts = *opts
	}
	if t.opts.Logger == nil {
		t.opts.Logger = slog.Default()
	}
	if t.opts.Admit == nil {
		t.opts.Admit = func(context.Context) (func(), error) { return func() {}, nil }
	}
	t.opts.RingBytes = cmp.Or(t.opts.RingBytes, 64<<20)
	if t.opts.Derive == nil {
		t.opts.Derive = func(runstore.FeedEvent) any { return nil }
	}
	t.ctx, t.cancel = context.WithCancel(context.Background())
	return t
}

// Close ends all followers and subscribers with [runstore.ErrClosed]. It returns when the goroutines of t
// have ended, which takes as long as the store takes to answer a cancelled context, or
// when ctx ends.
func (t *Tail) Close(ctx context.Context) {
	t.mu.Lock()
	t.closed = true
	t.mu.Unlock()
	t.cancel()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		t.work.Wait()
	}()
	select {
	case <-ended:
	case <-ctx.Done():
	}
}

// Follow iterates over the journal of a run from seq from on, page by page, and waits for
// more at its end: until ctx ends, until Close, or until a read fails. The last step
// yields that error. Every event is yielded once, in order. A run that does not exist has
// no events yet. A run that is purged and created anew goes on at the seq that the
// follower has reached.
//
// Followers of one run may receive the same page: nobody may change it.
func (t *Tail) Follow(ctx context.Context, id runstore.RunID, from runstore.Seq) iter.Seq2[[]runstore.Event, error] {
	return func(yield func([]runstore.Event, error) bool) {
		f, err := t.join(id, max(from, 1))
		if err != nil {
			yield(nil, err)
			return
		}
		defer t.leave(f)
		defer f.free()
		for {
			events, err := f.wait(ctx)
			if !yield(events, err) || err != nil {
				return
			}
		}
	}
}

// join adds a follower of a run.
func (t *Tail) join(id runstore.RunID, from runstore.Seq) (*follower, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, closedError(id)
	}
	tp := t.topics[id]
	if tp == nil {
		tp = &topic{tail: t, run: id, waiting: map[*follower]struct{}{}}
		tp.ctx, tp.cancel = context.WithCancel(t.ctx)
		tp.place = t.rotation.PushBack(tp)
		t.topics[id] = tp
	}
	tp.followers++
	t.begin()
	return &follower{topic: tp, next: from, pages: make(chan delivery, 1), release: func() {}}, nil
}

// leave removes a follower.
func (t *Tail) leave(f *follower) {
	t.mu.Lock()
	defer t.mu.Unlock()
	tp := f.topic
	delete(tp.waiting, f)
	if tp.followers--; tp.followers > 0 {
		return
	}
	tp.cancel()
	t.rotation.Remove(tp.place)
	delete(t.topics, tp.run)
	t.end()
}

// begin starts the feed reader and the poller for the first follower or subscriber of all.
func (t *Tail) begin() {
	if t.stop != nil {
		return
	}
	var ctx context.Context
	ctx, t.stop = context.WithCancel(t.ctx)
	r := newRing()
	t.ring = r
	t.work.Go(func() { t.readFeed(ctx, r) })
	t.work.Go(func() { t.poll(ctx) })
}

// end stops them behind the last one.
func (t *Tail) end() {
	if len(t.topics) == 0 && t.subscribers == 0 {
		t.stop()
		t.stop, t.ring = nil, nil
	}
}

// subscribed reports whether the feed has subscribers.
func (t *Tail) subscribed() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.subscribers > 0
}

// wake lets the feed reader read soon.
func (t *Tail) wake() {
	select {
	case t.wakes <- struct{}{}:
	default: // a value is pending
	}
}

// wakeForWrite lets the feed reader read soon, once between two reads: for a write of this
// process.
func (t *Tail) wakeForWrite() {
	if t.subscribers > 0 && !t.awake {
		t.awake = true
		t.wake()
	}
}

// hint reports that the journal of a run has an event of that seq, which another process may
// have written. It returns false if no follower needs the hint: this process wrote that seq
// or a later one, or the run has no followers.
func (t *Tail) hint(id runstore.RunID, seq runstore.Seq) (news bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	tp := t.topics[id]
	if tp == nil {
		return false
	}
	tp.hinted = max(tp.hinted, seq)
	tp.schedule()
	return seq > tp.own
}

// wrote reports that this process has appended to the journal of a run, up to that seq.
func (t *Tail) wrote(id runstore.RunID, seq runstore.Seq) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.wakeForWrite()
	if tp := t.topics[id]; tp != nil {
		tp.own = max(tp.own, seq)
		tp.hinted = max(tp.hinted, seq)
		tp.schedule()
	}
}

// suspect reports that this process may have appended to the journal of a run.
func (t *Tail) suspect(id runstore.RunID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.wakeForWrite()
	if tp := t.topics[id]; tp != nil {
		tp.suspect()
	}
}

// suspectAll reports that any journal may have changed.
func (t *Tail) suspectAll() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, tp := range t.topics {
		tp.suspect()
	}
}

func closedError(id runstore.RunID) error {
	return &runstore.OpError{Op: "follow", Run: id, Err: runstore.ErrClosed}
}

// pause waits for d and reports whether ctx goes on.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
