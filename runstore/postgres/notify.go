package postgres

import (
	"cmp"
	"context"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"

	"github.com/tapestore/tapestore/internal/pace"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter/outcome"
	"github.com/tapestore/tapestore/runstore/adapter/wakeup"
)

// Notifications are hints. A transaction that notifies takes a lock of the whole instance during
// its commit. So notifications are sent in transactions of their own after the commit, at most one
// per notifyPace for all commits since the last.
const (
	notifyPace = 20 * time.Millisecond
	// pollPace is how often a handle polls for commits of other handles where LISTEN does not work.
	pollPace = 250 * time.Millisecond
	// anyRun is the run under which callers of Wakeups wait in the hub. No run has this id.
	anyRun runstore.RunID = ""
)

// notifier sends notifications of this handle's commits to other processes, and wakes the callers
// that wait on this handle.
type notifier struct {
	engine  *engine
	waiters wakeup.Hub
	sender  string        // identifies the hub of this process in payloads
	dirty   chan struct{} // holds a value if there were commits since the last notification

	mu    sync.Mutex
	runs  map[string]runstore.WakeOn // hashes of the runs written since the last notification; see payload
	all   bool                       // the next notification stands for all runs
	ready chan struct{}              // nil until a caller waits
}

func newNotifier(e *engine) *notifier {
	hub := hubKey(e)
	n := &notifier{
		engine: e, waiters: wakeup.Of(hub), sender: senderOf(hub), dirty: make(chan struct{}, 1),
		runs: map[string]runstore.WakeOn{},
	}
	if !e.opts.Pooled {
		e.background.Go(n.send)
	}
	return n
}

// signal sends a value without blocking, unless one is pending.
func signal(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default: // one is pending already
	}
}

// raised is called after a raise of the epoch, which ends the grants of all runs.
func (n *notifier) raised() {
	n.mu.Lock()
	n.all = true
	n.mu.Unlock()
	signal(n.dirty)
	n.wake()
}

// committed is called after every write except a heartbeat, with its requests.
func (n *notifier) committed(requests ...*request) {
	if !n.engine.opts.Pooled {
		n.mu.Lock()
		for _, r := range requests {
			if len(n.runs) <= maxNames {
				name := runHash(r.run)
				n.runs[name] = max(n.runs[name], r.wakes())
			}
		}
		n.mu.Unlock()
	}
	signal(n.dirty)
	n.wake()
}

// wake wakes all callers of Wakeups in this process.
func (n *notifier) wake() { n.waiters.Wake(runstore.OnWrite, anyRun) }

func (n *notifier) channel() string { return n.engine.opts.Schema + "_commits" }

// send notifies other processes, until the handle is closed.
func (n *notifier) send() {
	for {
		select {
		case <-n.engine.stopped.Done():
			return
		case <-n.dirty:
		}
		_ = n.notify() // if it fails, a hint is lost; waiting callers poll as well
		if !pace.Pause(n.engine.stopped, notifyPace) {
			return
		}
	}
}

// notify sends one notification. It takes no slot of the bulkhead, because it waits for no row.
func (n *notifier) notify() error {
	conn, done, err := n.engine.connect(n.engine.stopped, forRead)
	if err != nil {
		return err
	}
	defer done()
	_, err = conn.Exec(n.engine.stopped, sqlNotify, n.channel(), n.payload())
	return err
}

// Wakeups implements runstore.Notifier. Commits of this process wake at once. Commits of other
// processes wake by LISTEN and NOTIFY, or within a quarter of a second behind a transaction-pooling
// proxy (see [Options.Pooled]).
func (e *engine) Wakeups(ctx context.Context) (ch <-chan struct{}, err error) {
	err = e.notifier.await(ctx, func() { ch = e.notifier.waiters.Add(ctx, anyRun, runstore.OnWrite) })
	return ch, err
}

// await registers a waiting caller by add, and returns once the notifier watches for commits of
// other handles.
func (n *notifier) await(ctx context.Context, add func()) error {
	n.mu.Lock()
	add()
	ready := n.watch()
	n.mu.Unlock()
	select {
	case <-ready:
		return nil
	case <-ctx.Done():
		return outcome.Unavailable(ctx.Err())
	case <-n.engine.stopped.Done():
		return runstore.ErrClosed
	}
}

// watch starts, once, the goroutine that watches for commits of other handles. It returns a channel
// that is closed when the goroutine does so. The caller holds n.mu.
func (n *notifier) watch() (ready chan struct{}) {
	if n.ready == nil {
		n.ready = make(chan struct{})
		begun := sync.OnceFunc(func() { close(n.ready) })
		if n.engine.opts.Pooled {
			begun()
			n.engine.background.Go(n.poll)
		} else {
			n.engine.background.Go(func() { n.listen(begun) })
		}
	}
	return n.ready
}

// listen wakes the callers that wait on this handle, over a connection of its own. It reconnects
// until the handle is closed.
func (n *notifier) listen(ready func()) {
	for pause := time.Duration(0); n.engine.stopped.Err() == nil; {
		listened := false
		if err := n.listenOnce(func() { listened = true; ready() }); err != nil && n.engine.stopped.Err() == nil {
			n.engine.opts.Logger.Warn("tapestore: the connection for notifications was lost; polling goes on", "error", err)
		}
		ready()  // callers that wait for the first connection poll meanwhile
		n.wake() // a notification may have been missed
		pause = listenPause(pause, listened)
		if !pace.Pause(n.engine.stopped, pause) {
			return
		}
	}
}

// listenPause returns the pause before the next connection for notifications: 10 ms after a connection that
// listened, and twice the last pause, up to 5 s, after one that could not be made.
func listenPause(last time.Duration, listened bool) time.Duration {
	if listened {
		last = 0
	}
	return min(max(2*last, 10*time.Millisecond), 5*time.Second)
}

func (n *notifier) listenOnce(ready func()) error {
	config := n.engine.pool.Config().ConnConfig
	// A session that only listens ignores a cancel request, and its connection is closed in any case.
	config.BuildContextWatcherHandler = func(c *pgconn.PgConn) ctxwatch.Handler {
		return &pgconn.DeadlineContextWatcherHandler{Conn: c.Conn()}
	}
	conn, err := n.engine.connectAlone(n.engine.stopped, config)
	if err != nil {
		return err
	}
	defer func() {
		bound, cancel := context.WithTimeout(context.WithoutCancel(n.engine.stopped), time.Second)
		defer cancel()
		_ = conn.Close(bound) // it only listened
	}()
	// The server may fall silent before it replies; callers wait for the first LISTEN.
	ctx, cancel := context.WithTimeout(n.engine.stopped, cmp.Or(config.ConnectTimeout, connectTimeout))
	defer cancel()
	if _, err := conn.Exec(ctx, "LISTEN "+n.channel()); err != nil {
		return err
	}
	n.wakeRuns("") // a notification may have been missed
	ready()
	for {
		notification, err := conn.WaitForNotification(n.engine.stopped)
		if err != nil {
			return err
		}
		n.wakeRuns(notification.Payload)
	}
}

// poll wakes the callers that wait on this handle when there are new events.
func (n *notifier) poll() {
	var last int64
	for pace.Pause(n.engine.stopped, pollPace) {
		var now int64
		err := n.engine.readOnce(n.engine.stopped, func(q *query) error {
			return q.each(sqlFeedLastPosition, nil, []any{&now}, func() error { return nil })
		})
		if err == nil && now != last {
			last = now
			n.wake()
		}
	}
}
