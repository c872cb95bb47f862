package sqlite

import (
	"context"
	"database/sql/driver"
	"errors"
	"sync"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// anyRun is the run that callers of Wakeups wait for in the hub. No run has this id.
const anyRun runstore.RunID = ""

// watchPace is the interval between two checks for commits of other processes: 20 ms. A check costs
// no I/O, because the answer is in shared memory.
const watchPace = 20 * time.Millisecond

const dataVersion = `PRAGMA data_version`

// changeCount counts the changes that this process has made to a file. All other changes that the
// file counts were made by other processes.
type changeCount struct {
	lock chan struct{} // holds an element from before a COMMIT until its changes are counted, and while n is read
	n    int64
}

func newChangeCount() *changeCount { return &changeCount{lock: make(chan struct{}, 1)} }

// ownChanges has the changeCount of each path.
var ownChanges sync.Map

func ownChangeCount(path string) *changeCount {
	count, _ := ownChanges.LoadOrStore(path, newChangeCount())
	return count.(*changeCount)
}

// Wakeups implements runstore.Notifier. Commits of this process cause a wake-up at once, those of
// other processes within a few tens of milliseconds.
func (e *engine) Wakeups(ctx context.Context) (<-chan struct{}, error) {
	return e.RunWakeups(ctx, anyRun, runstore.OnWrite)
}

// RunWakeups implements runstore.RunNotifier. Within a few tens of milliseconds, a change by
// another process wakes every caller that waits for writes, because the file does not record which
// runs changed, and every caller that waits for the release of a run whose lease is free.
func (e *engine) RunWakeups(ctx context.Context, id runstore.RunID, on runstore.WakeOn) (<-chan struct{}, error) {
	if e.path != Memory { // all handles of a database in memory are in this process
		if err := e.watchOthers(ctx); err != nil {
			return nil, err
		}
	}
	return e.waiters.Add(ctx, id, on), nil
}

// foreignWatch checks for changes by other processes while a caller of the handle waits.
type foreignWatch struct {
	mu      sync.Mutex
	waiting int
	stop    chan struct{}
}

// watchOthers starts the check for changes by other processes, unless the handle already runs it.
func (e *engine) watchOthers(ctx context.Context) error {
	o := &e.foreignWatch
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.waiting == 0 {
		w, err := e.newWatcher(ctx)
		if err != nil {
			return err
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

// watcher looks for changes by other processes. It has its own connection, because the data version
// of a connection shows the commits of every other connection.
type watcher struct {
	engine  *engine
	conn    *conn
	stop    chan struct{}
	version driver.Value // SQLite's data version when it last looked
	known   int64        // foreign changes at that time
}

// newWatcher returns a watcher that has looked once: what other processes change from then on is
// new. While this process commits, it does not look, and the first look of the watcher wakes all.
func (e *engine) newWatcher(ctx context.Context) (*watcher, error) {
	c, err := e.connect(ctx, "query_only(1)")
	if err != nil {
		return nil, err
	}
	w := &watcher{engine: e, conn: c, stop: make(chan struct{}), known: -1}
	select {
	case e.own.lock <- struct{}{}:
		_, err = w.look()
		<-e.own.lock
	default:
	}
	if err != nil {
		return nil, unavailable(errors.Join(err, c.close()))
	}
	return w, nil
}

// look reports whether others have changed the file since the last look. The caller holds the lock of
// the process's own count: a change that is visible but not counted yet would hide as many changes of
// others.
func (w *watcher) look() (changed bool, err error) {
	v, err := w.conn.one(context.Background(), dataVersion)
	if err != nil || v[0] == w.version {
		return false, err
	}
	p, err := readProgress(context.Background(), w.conn)
	if err != nil {
		return false, err
	}
	foreign := p.changes() - w.engine.own.n
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
		case <-w.engine.stopped.Done():
			return
		case <-tick.C:
		}
		select {
		case <-w.stop:
			return
		case <-w.engine.stopped.Done():
			return
		case w.engine.own.lock <- struct{}{}:
		}
		changed, err := w.look()
		<-w.engine.own.lock
		if err == nil && changed {
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
