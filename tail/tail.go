package tail

import (
	"cmp"
	"container/list"
	"context"
	"iter"
	"log/slog"
	"sync"
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/tapestore/tapestore/runstore"
)

const (
	// pollInterval is 250 ms: the longest time that a follower waits for an event that no hint
	// announces, while few runs are followed. It is also the interval of reads of the feed on a
	// store that is not a [runstore.Notifier].
	pollInterval = 250 * time.Millisecond
	// pollSpacing is 20 ms, the shortest time between two polls. It limits them to 50 reads per
	// second, however many runs are followed: with 1,000 runs each is polled every 20 s.
	pollSpacing = 20 * time.Millisecond
	// readInterval is 5 ms, the shortest time between two shared reads of one run. A run that
	// commits more often costs one read per interval, and its followers have time to join the next
	// read together.
	readInterval = 5 * time.Millisecond
	// pageEvents is the number of events that one read of a journal requests.
	pageEvents = 256
	// maxReads is the number of pages, of journals and of the feed for single subscribers, that are
	// read at once. It leaves most of a store's connections to its writers when a thousand
	// followers arrive together.
	maxReads = 16
)

// Options configures a Tail; nil, and each zero field, means the default.
type Options struct {
	// Logger receives failures of the feed and their end; slog.Default by default.
	Logger *slog.Logger
	// Admit, if set, bounds the pages in memory. It is called with the context of Follow or Feed
	// and blocks until another page is admitted. It returns a function that releases the admission,
	// which is called once the follower has consumed the page. A follower that reads by itself
	// calls Admit before the read; each follower that receives a shared page calls it after the
	// read. A subscriber of the feed calls it before it reads or takes a page. An error ends the
	// follower.
	Admit func(ctx context.Context) (release func(), err error)
	// TryAdmit, if set, is Admit without waiting: it reports false where Admit would block. A follower
	// that receives a shared page calls it first. If it reports false, the follower drops a page of more than
	// 4 KiB, calls Admit, and then reads the page again without the other followers. If TryAdmit is nil, each follower holds its shared page
	// while Admit blocks.
	TryAdmit func(ctx context.Context) (release func(), ok bool)
	// Derive, if set, is called for each event that the feed's subscribers receive: once for all
	// subscribers at the end of the feed, and once for each that reads by itself. It is called
	// concurrently.
	Derive func(runstore.FeedEvent) any
	// RingBytes bounds the memory of the ring that keeps the latest events of the feed for its
	// subscribers; 64 MiB by default. An event counts 256 bytes plus its run, kind, owner and data,
	// and twice that if Derive returned a value: lower RingBytes if derived values are larger than
	// their events. The newest page is kept even if it is larger.
	RingBytes int
	// MeterProvider receives the lag of the feed (docs/observability.md); OpenTelemetry's global
	// provider by default. While metrics are collected, the reader of the feed reads the store clock
	// at most once per second.
	MeterProvider metric.MeterProvider
}

// Tail follows journals and the feed of all runs. Its methods are safe for concurrent use.
type Tail struct {
	store  runstore.RunStore
	opts   Options
	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	work   sync.WaitGroup
	slots  chan struct{} // holds a value for each read in flight
	lag    metric.Float64Histogram

	mu       sync.Mutex
	closed   bool
	topics   map[runstore.RunID]*topic
	rotation list.List          // of *topic; the front is polled next
	stop     context.CancelFunc // ends the feed reader and the poller

	subscribers int               // number of subscribers of the feed
	ring        *ring             // filled by the feed reader; nil if there is none
	furthest    runstore.Position // highest position that any feed reader has read
	histories   int               // how often a feed reader has found the store behind
	wakes       chan struct{}     // holds a value when the feed reader should read soon
	awake       bool              // a write has woken the feed reader since its last read
}

// New returns a Tail of store. It starts no goroutine before the first follower. The caller closes
// the store, after the Tail.
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
	t.lag = newLag(t.opts.MeterProvider)
	t.ctx, t.cancel = context.WithCancel(context.Background())
	return t
}

// Close ends all followers and subscribers with [runstore.ErrClosed]. It returns when the
// goroutines of t have ended, as soon as the store answers cancelled requests, or when ctx ends.
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

// Follow iterates over the journal of a run from seq from on, page by page, and waits for more at
// its end: until ctx ends, until Close, or until a read fails. The last step yields that error.
// Every event is yielded once, in order. A run that does not exist has no events yet. If a run is
// purged and created again, the iteration continues at the seq that the follower has reached.
//
// Followers of one run may share a page and must not change it.
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
	t.startReaders()
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
	t.stopReaders()
}

// startReaders starts the feed reader and the poller for the first follower or subscriber.
func (t *Tail) startReaders() {
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

// stopReaders stops the feed reader and the poller if there is no follower or subscriber left.
func (t *Tail) stopReaders() {
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

// wake makes the feed reader read soon.
func (t *Tail) wake() {
	select {
	case t.wakes <- struct{}{}:
	default: // a value is pending
	}
}

// wakeForWrite makes the feed reader read soon after a write of this process, once between two
// reads.
func (t *Tail) wakeForWrite() {
	if t.subscribers > 0 && !t.awake {
		t.awake = true
		t.wake()
	}
}

// hint records that the journal of a run has an event with that seq, perhaps of another process. It
// returns false if no follower needs the hint: this process wrote that seq or a later one, or the
// run has no followers.
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

// wrote records that this process has appended to the journal of a run, up to that seq.
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

// suspect records that this process may have appended to the journal of a run.
func (t *Tail) suspect(id runstore.RunID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.wakeForWrite()
	if tp := t.topics[id]; tp != nil {
		tp.suspect()
	}
}

// suspectAll records that any journal may have changed.
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
