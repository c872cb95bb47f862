package tail

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/tapestore/tapestore/internal/pace"
	"github.com/tapestore/tapestore/runstore"
)

const (
	// feedInterval is 50 ms, the shortest time between two reads of the feed without subscribers.
	// On a busy store these reads are most of the cost of followers (package bench, part protocol),
	// and followers of this process's writes do not depend on them. So the interval doubles with
	// each page that has no news for a follower, up to pollInterval. Other processes announce their
	// writes at most every 20 ms (SQLite, Postgres).
	feedInterval = 50 * time.Millisecond
	// subscribedInterval is 25 ms, the shortest time between two reads of the feed with
	// subscribers: half of the 50 ms that a delivery may take. The longest is subscribedPoll, 75
	// ms, on a store that is not a [runstore.Notifier], and pollInterval on others: 40 reads per
	// second beside a busy writer, 14 or 4 at rest. The longest time counts from the start of a
	// read, because a delivery takes another read.
	subscribedInterval = 25 * time.Millisecond
	subscribedPoll     = 75 * time.Millisecond
	// maxOutage is 10 s: the timeout of one read of the feed, and the time for which failing reads
	// are hidden from subscribers. Stores retry within that time.
	maxOutage = 10 * time.Second
)

// feedReader reads the feed of all runs from its current end on, for the hints at writes of other
// processes and for the subscribers of the feed.
type feedReader struct {
	tail     *Tail
	ring     *ring
	wakeups  <-chan struct{}   // nil while the store sends no wake-ups
	asked    chan wakeupReply  // delivers the reply to a request for wake-ups; nil if none is in flight
	position runstore.Position // position of the last event read: the end of the ring
	started  bool
	began    time.Time     // start of the last read
	more     bool          // the last page had events
	full     bool          // the last page was as large as a page can be
	interval time.Duration // shortest time until the next read, without subscribers
	unwoken  time.Duration // time until the next read, with subscribers, if nothing wakes the reader
	wakeErr  error         // why the store sends no wake-ups
	warned   bool          // a warning that the feed fails was logged
	measured time.Time     // when the lag was last measured
	failing  time.Time     // first of the consecutive failed reads; zero if the last read succeeded
}

// readFeed reads the feed until ctx ends. It hints at the runs of its events, and fills the ring
// for subscribers.
func (t *Tail) readFeed(ctx context.Context, r *ring) {
	for f := (feedReader{tail: t, ring: r, interval: feedInterval, unwoken: subscribedInterval}); ; {
		err := f.read(ctx)
		if ctx.Err() != nil {
			return
		}
		f.report(err)
		if !f.rest(ctx) {
			return
		}
	}
}

// wakeupReply is the reply to a request for wake-ups.
type wakeupReply struct {
	ch  <-chan struct{}
	err error
}

// subscribe requests wake-ups, unless they are sent or a request is in flight. It does not wait for the reply:
// wake-ups may have a separate connection, which the store may have lost without noticing. The reader
// polls meanwhile.
func (f *feedReader) subscribe(ctx context.Context) {
	notifier, ok := runstore.As[runstore.Notifier](f.tail.store)
	if !ok || f.wakeups != nil || f.asked != nil {
		return
	}
	asked := make(chan wakeupReply, 1)
	f.asked = asked
	f.tail.work.Go(func() {
		ch, err := notifier.Wakeups(ctx)
		asked <- wakeupReply{ch, err}
	})
}

// read reads one page.
func (f *feedReader) read(ctx context.Context) (err error) {
	f.more, f.full, f.began = false, false, time.Now()
	t := f.tail
	t.mu.Lock()
	t.awake = false // the page may miss writes from now on
	t.mu.Unlock()
	f.subscribe(ctx)
	ctx, cancel := context.WithTimeout(ctx, maxOutage)
	defer cancel()
	if !f.started {
		if f.position, err = feedEnd(ctx, t.store); err != nil {
			return err
		}
		f.started = true
		t.mu.Lock()
		f.position = max(f.position, t.furthest) // the read below checks whether the store is behind it
		t.furthest = f.position
		f.ring.begin(f.position)
		t.mu.Unlock()
		// The feed does not return what was committed before its current end.
		t.suspectAll()
	}
	events, err := t.store.ReadFeed(ctx, runstore.FeedQuery{After: f.position, Limit: runstore.MaxPage})
	if err != nil {
		if errors.Is(err, runstore.ErrStoreBehind) {
			f.restart(err)
		}
		return err
	}
	news, size := false, 0
	for _, e := range events {
		news = t.hint(e.Run, e.Seq) || news
		size += len(e.Data)
	}
	if f.more = len(events) > 0; f.more {
		f.position = events[len(events)-1].Position
		f.publish(events)
		f.unwoken = subscribedInterval
	}
	f.full = len(events) == runstore.MaxPage || size > runstore.MaxPageBytes
	f.slow(len(events), size, news)
	f.measureLag(ctx, events)
	return nil
}

// publish adds a page to the ring, for the subscribers.
func (f *feedReader) publish(events []runstore.FeedEvent) {
	t := f.tail
	var page []FeedEvent
	if t.subscribed() {
		page = t.derive(events)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.furthest = max(t.furthest, f.position)
	if page != nil && t.subscribers > 0 {
		f.ring.add(page, t.opts.RingBytes)
	} else {
		f.ring.skip(f.position) // a subscriber that came meanwhile reads the page by itself
	}
}

// restart continues at the end of a store that was restored from a backup and ends before the
// reader's position.
func (f *feedReader) restart(err error) {
	known := runstore.MaxPosition // subscribers check their positions by themselves
	if behind := (*runstore.StoreBehindError)(nil); errors.As(err, &behind) {
		known = runstore.Position(behind.Known)
	}
	t := f.tail
	t.mu.Lock()
	defer t.mu.Unlock()
	t.furthest = 0
	t.histories++
	old := f.ring
	f.started, f.unwoken, f.ring = false, subscribedInterval, old.replace(known)
	if t.ring == old {
		t.ring = f.ring
	}
}

// slow sets the interval after a page, without subscribers. A page that is more than half full does
// not double the interval, because twice the interval could bring more than one page.
func (f *feedReader) slow(events, size int, news bool) {
	if events == 0 || news || events > runstore.MaxPage/2 || size > runstore.MaxPageBytes/2 {
		f.interval = feedInterval
		return
	}
	f.interval = min(2*f.interval, pollInterval)
}

// feedEnd returns the position of the last event in the feed. Events that the feed does not show
// yet will have later positions.
func feedEnd(ctx context.Context, store runstore.RunStore) (runstore.Position, error) {
	last, err := store.ReadFeed(ctx, runstore.FeedQuery{Newest: true, Limit: 1})
	if err != nil || len(last) == 0 {
		return 0, err
	}
	return last[len(last)-1].Position, nil
}

// rest waits until the next read is due. It reports false if ctx has ended.
func (f *feedReader) rest(ctx context.Context) bool {
	ended, woken := time.Now(), false
	for {
		subscribed := f.tail.subscribed()
		least, most := f.pace(subscribed)
		wakeups := f.wakeups
		if woken {
			most, wakeups = least, nil
		}
		timer := time.NewTimer(max(least-time.Since(ended), most-time.Since(f.began)))
		select {
		case <-timer.C:
			if f.unwoken = min(2*f.unwoken, pollInterval); woken || !subscribed {
				f.unwoken = subscribedInterval
			}
			return true
		case _, open := <-wakeups:
			if !open {
				f.wakeups = nil // subscribe again
			}
		case reply := <-f.asked:
			f.wakeups, f.wakeErr, f.asked = reply.ch, reply.err, nil
			if reply.err != nil {
				timer.Stop()
				continue
			}
			// Read soon: what happened before causes no wake-up.
		case <-f.tail.wakes: // at most twice between two reads: by a write and by a subscriber
		case <-ctx.Done():
			timer.Stop()
			return false
		}
		timer.Stop()
		woken = true
	}
}

// pace returns the time until the next read: least counts from the end of the last read, most from
// its start, if nothing wakes the reader.
func (f *feedReader) pace(subscribed bool) (least, most time.Duration) {
	switch {
	case subscribed && f.full:
		return 0, 0
	case subscribed && f.wakeups == nil:
		return subscribedInterval, min(f.unwoken, subscribedPoll)
	case subscribed:
		return subscribedInterval, min(f.unwoken, pollInterval)
	case f.more:
		return f.interval, f.interval
	default:
		return f.interval, pollInterval
	}
}

// report logs the first of consecutive failures, and the recovery. Once reads have failed for
// maxOutage, it ends the waiting subscribers.
func (f *feedReader) report(err error) {
	t := f.tail
	switch cause := cmp.Or(err, f.wakeErr); {
	case cause != nil && !f.warned:
		t.opts.Logger.Warn("the feed of all runs fails; events of other processes are found by polling, and subscribers of the feed wait", "error", cause)
	case cause == nil && f.warned:
		t.opts.Logger.Info("the feed of all runs works again")
	}
	f.warned = err != nil || f.wakeErr != nil
	switch {
	case err == nil:
		f.failing = time.Time{}
	case f.failing.IsZero():
		f.failing = time.Now()
	case time.Since(f.failing) >= maxOutage:
		t.mu.Lock()
		defer t.mu.Unlock()
		f.ring.fail(err)
	}
}

// poll hints at one followed run after the other, until ctx ends.
func (t *Tail) poll(ctx context.Context) {
	for {
		t.mu.Lock()
		runs := max(t.rotation.Len(), 1)
		t.mu.Unlock()
		if !pace.Pause(ctx, max(pollInterval/time.Duration(runs), pollSpacing)) {
			return
		}
		t.mu.Lock()
		if next := t.rotation.Front(); next != nil {
			t.rotation.MoveToBack(next)
			next.Value.(*topic).suspect()
		}
		t.mu.Unlock()
	}
}
