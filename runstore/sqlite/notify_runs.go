package sqlite

import (
	"context"
	"database/sql/driver"
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
		stop := make(chan struct{})
		o.stop = stop
		e.watching.Go(func() { e.watchRuns(c, stop) })
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

func (e *engine) watchRuns(c *conn, stop chan struct{}) {
	defer func() { _ = c.close() }() // the connection only read
	tick := time.NewTicker(watchPace)
	defer tick.Stop()
	var version driver.Value
	known, begun := int64(0), false
	for {
		if v, err := c.one(context.Background(), dataVersion); err == nil && v[0] != version {
			if foreign, err := e.foreign(c); err == nil {
				if begun && foreign > known {
					e.wakeAfterOthers(c)
				}
				version, known, begun = v[0], foreign, true
			}
		}
		select {
		case <-stop:
			return
		case <-e.closed:
			return
		case <-tick.C:
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
