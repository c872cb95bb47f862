package tail

import (
	"context"
	"errors"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// feedInterval is 50 ms, the shortest time between two reads of the feed. On a busy store
// these reads are most of what followers cost (package bench, part protocol), and writes of this
// process do not wait for them. So the interval doubles with each page that has no news for
// a follower, up to pollInterval. Other processes announce their writes at most every 20 ms
// (SQLite, Postgres).
const feedInterval = 50 * time.Millisecond

// feedReader reads the feed of all runs from its present end on, for the hints on writes
// of other processes.
type feedReader struct {
	tail     *Tail
	wakeups  <-chan struct{}   // nil while the store sends none
	position runstore.Position // the last that was read
	interval time.Duration     // until the next read, at least
	started  bool
	failing  bool
}

// readFeed hints the followers of the runs that the feed names, until ctx ends.
func (t *Tail) readFeed(ctx context.Context) {
	for f := (feedReader{tail: t, interval: feedInterval}); ; {
		more, err := f.read(ctx)
		if ctx.Err() != nil {
			return
		}
		f.report(err)
		if !pause(ctx, f.interval) {
			return
		}
		if !more && !f.sleep(ctx, pollInterval-f.interval) {
			return
		}
	}
}

// read reads one page, and reports whether there may be another.
func (f *feedReader) read(ctx context.Context) (more bool, err error) {
	store := f.tail.store
	var wakeErr error
	if notifier, ok := store.(runstore.Notifier); ok && f.wakeups == nil {
		f.wakeups, wakeErr = notifier.Wakeups(ctx)
	}
	if !f.started {
		if f.position, err = feedEnd(ctx, store); err != nil {
			return false, err
		}
		f.started = true
		// What was committed before, the feed does not name any more.
		f.tail.suspectAll()
	}
	events, err := store.ReadFeed(ctx, runstore.FeedQuery{After: f.position, Limit: runstore.MaxPage})
	if err != nil {
		// A store that was restored from a backup ends before the position.
		f.started = !errors.Is(err, runstore.ErrStoreBehind)
		return false, err
	}
	news, size := false, 0
	for _, e := range events {
		news = f.tail.hint(e.Run, e.Seq) || news
		f.position = e.Position
		size += len(e.Data)
	}
	f.pace(len(events), size, news)
	return len(events) > 0, wakeErr
}

// pace sets the interval after a page. A page that is more than half full is followed soon,
// for twice the interval could bring more than a page.
func (f *feedReader) pace(events, size int, news bool) {
	if events == 0 || news || events > runstore.MaxPage/2 || size > runstore.MaxPageBytes/2 {
		f.interval = feedInterval
		return
	}
	f.interval = min(2*f.interval, pollInterval)
}

// feedEnd returns the position of the last event in the feed.
//
// On Postgres, transactions that are still open may have events before it. They are found
// by the poll.
func feedEnd(ctx context.Context, store runstore.RunStore) (runstore.Position, error) {
	last, err := store.ReadFeed(ctx, runstore.FeedQuery{Newest: true, Limit: 1})
	if err != nil || len(last) == 0 {
		return 0, err
	}
	return last[len(last)-1].Position, nil
}

// sleep waits for a wake-up, at most for d, and reports whether ctx goes on.
func (f *feedReader) sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case _, open := <-f.wakeups:
		if !open {
			f.wakeups = nil // ask again
		}
	case <-timer.C:
	}
	return true
}

// report logs the first of several failures, and the recovery.
func (f *feedReader) report(err error) {
	switch {
	case err != nil && !f.failing:
		f.tail.opts.Logger.Warn("the feed of all runs fails; events of other processes are found by polling", "error", err)
	case err == nil && f.failing:
		f.tail.opts.Logger.Info("the feed of all runs works again")
	}
	f.failing = err != nil
}

// poll suspects one followed run after the other, until ctx ends.
func (t *Tail) poll(ctx context.Context) {
	for {
		t.mu.Lock()
		runs := max(t.rotation.Len(), 1)
		t.mu.Unlock()
		if !pause(ctx, max(pollInterval/time.Duration(runs), pollSpacing)) {
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
