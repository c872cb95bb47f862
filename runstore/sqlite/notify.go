package sqlite

import (
	"context"
	"sync"
	"time"
)

// wakers holds the channels of Wakeups, which wait for commits.
type wakers struct {
	mu  sync.Mutex
	all map[chan struct{}]bool
}

func (w *wakers) add(ch chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.all == nil {
		w.all = map[chan struct{}]bool{}
	}
	w.all[ch] = true
}

func (w *wakers) remove(ch chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.all, ch)
}

func (w *wakers) wake() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for ch := range w.all {
		hint(ch)
	}
}

func hint(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default: // a wake-up is pending already
	}
}

// watchPace is the interval between two checks for commits of other processes: 20 ms. A check costs
// no I/O, because the answer is in shared memory.
const watchPace = 20 * time.Millisecond

const dataVersion = `PRAGMA data_version`

// changes returns a number that grows with every change of the store. A transaction that only
// refused writes, or only set the clock, does not change it.
func (c *conn) changes() (int64, error) {
	row, err := c.one(context.Background(), sqlChangesRead)
	if err != nil {
		return 0, err
	}
	return row[0].(int64), nil
}

// Wakeups implements runstore.Notifier. Commits of this handle cause a wake-up at once, those of
// other handles and processes within a few tens of milliseconds.
func (e *engine) Wakeups(ctx context.Context) (<-chan struct{}, error) {
	ch := make(chan struct{}, 1)
	e.wakers.add(ch)
	if e.path == Memory { // all its handles share one writer, which sends the wake-ups
		context.AfterFunc(ctx, func() { e.wakers.remove(ch) })
		return ch, nil
	}
	// A separate connection, because the pragma reports changes by every other connection.
	c, err := e.connect(ctx, "query_only(1)")
	if err != nil {
		e.wakers.remove(ch)
		return nil, err
	}
	e.watching.Go(func() { e.watch(ctx, c, ch) })
	return ch, nil
}

func (e *engine) watch(ctx context.Context, c *conn, ch chan struct{}) {
	defer e.wakers.remove(ch)
	defer func() { _ = c.close() }() // the connection only read
	tick := time.NewTicker(watchPace)
	defer tick.Stop()
	var last, known int64
	for {
		select {
		case <-ctx.Done():
			return
		case <-e.closed:
			return
		case <-tick.C:
		}
		v, err := c.one(context.Background(), dataVersion)
		if err != nil || v[0].(int64) == last {
			continue // a wake-up is only a hint, and waiters poll too
		}
		changes, err := c.changes()
		if err != nil {
			continue
		}
		if last = v[0].(int64); changes != known {
			known = changes
			hint(ch)
		}
	}
}
