package sqlite

import (
	"context"
	"database/sql/driver"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// ownChanges counts, by path, the changes that this process has made to each file. All other
// changes that a file counts were made by other processes.
var ownChanges sync.Map

func ownChangeCount(path string) *atomic.Int64 {
	count, _ := ownChanges.LoadOrStore(path, &atomic.Int64{})
	return count.(*atomic.Int64)
}

// foreignWatch checks for changes by other processes while a caller of the handle waits for a run.
type foreignWatch struct {
	mu      sync.Mutex
	waiting int
	stop    chan struct{}
}

// RunWakeups implements runstore.RunNotifier. Within a few tens of milliseconds, a change by
// another process wakes every caller that waits for writes, because the file does not record which
// runs changed, and every caller that waits for the release of a run whose lease is free.
func (e *engine) RunWakeups(ctx context.Context, id runstore.RunID, on runstore.WakeOn) (<-chan struct{}, error) {
	if e.path != Memory {
		if err := e.watchOthers(ctx); err != nil {
			return nil, err
		}
	}
	return e.waiters.Add(ctx, id, on), nil
}

// watchOthers starts the check for changes by other processes, unless the handle already runs it.
func (e *engine) watchOthers(ctx context.Context) error {
	o := &e.foreignWatch
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.waiting == 0 {
		c, err := e.connect(ctx, "query_only(1)")
		if err != nil {
			return err
		}
		// Before RunWakeups returns: what others change from then on is new.
		w := &watcher{engine: e, conn: c, stop: make(chan struct{})}
		if _, err := w.look(); err != nil {
			return unavailable(errors.Join(err, c.close()))
		}
		o.stop = w.stop
		e.watching.Go(w.work)
	}
	o.waiting++
	context.AfterFunc(ctx, func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		if o.waiting--; o.waiting == 0 {
			close(o.stop)
		}
	})
	return nil
}

// watcher looks for changes by other processes. It has its own connection.
type watcher struct {
	engine  *engine
	conn    *conn
	stop    chan struct{}
	version driver.Value // SQLite's data version when it last looked
	known   int64        // foreign changes at that time
}

// look reports whether others have changed the file since the last look.
func (w *watcher) look() (changed bool, err error) {
	v, err := w.conn.one(context.Background(), dataVersion)
	if err != nil || v[0] == w.version {
		return false, err
	}
	foreign, err := w.engine.foreign(w.conn)
	if err != nil {
		return false, err
	}
	changed = foreign > w.known
	w.version, w.known = v[0], foreign
	return changed, nil
}

// work wakes waiters after changes, until it is stopped or the handle is closed.
func (w *watcher) work() {
	defer func() { _ = w.conn.close() }() // the connection only read
	tick := time.NewTicker(watchPace)
	defer tick.Stop()
	for {
		select {
		case <-w.stop:
			return
		case <-w.engine.closed:
			return
		case <-tick.C:
		}
		if changed, err := w.look(); err == nil && changed {
			w.engine.wakeAfterOthers(w.conn)
		}
	}
}

// wakeAfterOthers wakes all callers that wait for writes, and those that wait for the release of a
// run whose lease is free.
func (e *engine) wakeAfterOthers(c *conn) {
	held := map[runstore.RunID]bool{}
	for _, id := range e.waiters.Waiting() {
		row, err := c.one(context.Background(), sqlLeaseHeld, []byte(id))
		held[id] = err == nil && row[0].(int64) == 1
	}
	e.waiters.WakeEach(func(id runstore.RunID, on runstore.WakeOn) bool { return on == runstore.OnWrite || !held[id] })
}

// foreign returns how many changes of the file were made by other processes. A change of this
// process that is not counted yet makes the result one too high for a moment, which causes a
// spurious wake-up.
func (e *engine) foreign(c *conn) (int64, error) {
	for {
		before := e.own.Load()
		changes, err := c.changes()
		if err != nil || e.own.Load() == before {
			return changes - before, err
		}
	}
}
