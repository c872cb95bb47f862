package faultstest

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
)

// retryPause is the pause between two tries of a request. 20 ms: the cases of outages keep tens of clients
// retrying for many seconds, and each try is a connection.
const retryPause = 20 * time.Millisecond

// Flaws selects the defects of the adapter or the server.
type Flaws struct {
	NewID       bool // a request whose reply was lost is sent again under a new id
	Unavailable bool // a write whose reply was lost is reported as not applied
	Cancelled   bool // a write whose caller gave up is reported as not applied
	Deaf        bool // a wait for a reply ignores its context
	Unfenced    bool // the fence is checked before a commit is sent, not when it is applied
	OldClock    bool // a handle reports the time when it was opened as the time of each commit
	Forgets     bool // the server forgets all requests when it is killed
}

// client is the adapter. Each operation is a request on a connection of its own, sent again under
// the same id until it is answered or its caller gives up.
type client struct {
	flaws   Flaws
	server  *server
	address string
	local   *memory.Handle // performs the operations of this client at the server
	opened  time.Time      // on the store clock

	mu     sync.RWMutex // read-locked by operations, so that Close waits for them
	closed bool
}

func (c *client) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	return c.local.Close()
}

// requestKind says how a request may be repeated.
type requestKind int

const (
	read requestKind = iota
	write
	bareWrite // a write that the store itself would apply again
)

// send sends a request until it is answered, and returns the result of do at the server. A request
// of a closed client or with an ended context needs no server, because the reference store refuses
// it without a look at its content.
func send[V any](ctx context.Context, c *client, op string, id runstore.RunID, what requestKind, do func(ctx context.Context) (V, error)) (V, error) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.closed || ctx.Err() != nil {
		return do(ctx)
	}
	var mu sync.Mutex
	var answer V
	var refusal error
	register := func() *request {
		return c.server.register(func() (bare bool) {
			mu.Lock()
			defer mu.Unlock()
			answer, refusal = do(context.WithoutCancel(ctx))
			return what == bareWrite && refusal == nil
		})
	}
	sent := false
	for r := register(); ; {
		asked, err := c.sendOnce(ctx, r)
		if err == nil {
			mu.Lock()
			defer mu.Unlock()
			return answer, refusal
		}
		sent = sent || asked
		failure := &runstore.OpError{Op: op, Run: id, Err: runstore.ErrUnavailable, Cause: err}
		if ended := ctx.Err(); ended != nil {
			if failure.Cause = ended; sent && what != read && !c.flaws.Cancelled {
				failure.Err = runstore.ErrUnknownOutcome
			}
			var none V
			return none, failure
		}
		if asked && what != read && c.flaws.Unavailable {
			var none V
			return none, failure
		}
		if asked && c.flaws.NewID {
			r = register()
		}
		select {
		case <-ctx.Done():
		case <-time.After(retryPause):
		}
	}
}

// sendOnce sends a request once and waits for its reply. sent reports whether it may have been
// sent.
func (c *client) sendOnce(ctx context.Context, r *request) (sent bool, err error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", c.address)
	if err != nil {
		return false, err
	}
	defer func() { _ = conn.Close() }()
	if !c.flaws.Deaf {
		defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	}
	if _, err := fmt.Fprintln(conn, r.id); err != nil {
		return true, err
	}
	_, err = bufio.NewReader(conn).ReadString('\n')
	return true, err
}

func (c *client) StrictAtCommit() bool { return true }

func (c *client) CreateRun(ctx context.Context, spec runstore.RunSpec) (runstore.Created, error) {
	return send(ctx, c, "create run", spec.ID, write, func(ctx context.Context) (runstore.Created, error) { return c.local.CreateRun(ctx, spec) })
}

func (c *client) GetRun(ctx context.Context, id runstore.RunID) (runstore.Run, error) {
	return send(ctx, c, "get run", id, read, func(ctx context.Context) (runstore.Run, error) { return c.local.GetRun(ctx, id) })
}

func (c *client) AcquireLease(ctx context.Context, req runstore.AcquireRequest) (runstore.Granted, error) {
	return send(ctx, c, "acquire lease", req.Run, write, func(ctx context.Context) (runstore.Granted, error) { return c.local.AcquireLease(ctx, req) })
}

func (c *client) RenewLease(ctx context.Context, req runstore.RenewRequest) (runstore.Renewed, error) {
	return send(ctx, c, "renew lease", req.Fence.Run(), write, func(ctx context.Context) (runstore.Renewed, error) { return c.local.RenewLease(ctx, req) })
}

func (c *client) ReleaseLease(ctx context.Context, req runstore.ReleaseRequest) (runstore.Committed, error) {
	return send(ctx, c, "release lease", req.Fence.Run(), write, func(ctx context.Context) (runstore.Committed, error) { return c.local.ReleaseLease(ctx, req) })
}

func (c *client) Commit(ctx context.Context, b runstore.Batch) (runstore.Committed, error) {
	if f := b.Guards().Fence; c.flaws.Unfenced && !f.IsZero() {
		if run, err := c.local.GetRun(ctx, b.Run()); err == nil && run.Holder.Token == f.Token() {
			unfenced := runstore.NewBatch(b.Run(), runstore.Unguarded("the fence was checked before"))
			unfenced.ID, unfenced.Writes = b.ID, b.Writes
			b = unfenced
		}
	}
	what := write
	if b.ID == "" {
		what = bareWrite
	}
	done, err := send(ctx, c, "commit", b.Run(), what, func(ctx context.Context) (runstore.Committed, error) { return c.local.Commit(ctx, b) })
	if c.flaws.OldClock && err == nil {
		done.Time = c.opened
	}
	return done, err
}

func (c *client) ReadJournal(ctx context.Context, id runstore.RunID, from runstore.Seq, limit int) ([]runstore.Event, error) {
	return send(ctx, c, "read journal", id, read, func(ctx context.Context) ([]runstore.Event, error) {
		return c.local.ReadJournal(ctx, id, from, limit)
	})
}

func (c *client) ReadRecords(ctx context.Context, id runstore.RunID, q runstore.RecordQuery) ([]runstore.Record, error) {
	return send(ctx, c, "read records", id, read, func(ctx context.Context) ([]runstore.Record, error) { return c.local.ReadRecords(ctx, id, q) })
}

func (c *client) ScanIndex(ctx context.Context, q runstore.IndexQuery) ([]runstore.IndexEntry, error) {
	return send(ctx, c, "scan index", "", read, func(ctx context.Context) ([]runstore.IndexEntry, error) { return c.local.ScanIndex(ctx, q) })
}

func (c *client) ReadFeed(ctx context.Context, q runstore.FeedQuery) ([]runstore.FeedEvent, error) {
	return send(ctx, c, "read feed", "", read, func(ctx context.Context) ([]runstore.FeedEvent, error) { return c.local.ReadFeed(ctx, q) })
}

func (c *client) Now(ctx context.Context) (time.Time, error) {
	return send(ctx, c, "now", "", read, func(ctx context.Context) (time.Time, error) { return c.local.Now(ctx) })
}
