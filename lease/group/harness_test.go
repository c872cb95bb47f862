package group_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/tapestore/tapestore/lease"
	"github.com/tapestore/tapestore/lease/group"
	"github.com/tapestore/tapestore/runstore"
)

// conn is one process's connection to the store. Its requests take a few milliseconds on the way
// there and back. A test can cut or pause it, and have it lose requests and replies.
type conn struct {
	runstore.RunStore
	latency time.Duration

	mu       sync.Mutex
	cut      bool
	paused   chan struct{} // closed at the end of the pause
	loss     float64       // the probability that a request or a reply is lost
	acquires int
}

// Unwrap gives access to the store's announcements.
func (c *conn) Unwrap() runstore.RunStore { return c.RunStore }

func (c *conn) set(change func(c *conn)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change(c)
}

func (c *conn) pause() { c.set(func(c *conn) { c.paused = make(chan struct{}) }) }
func (c *conn) resume() {
	c.set(func(c *conn) { close(c.paused); c.paused = nil })
}

// pass waits until a request or a reply may pass. Its error is what the caller sees instead.
func (c *conn) pass(ctx context.Context, op string, lossKind error) error {
	c.mu.Lock()
	paused := c.paused
	c.mu.Unlock()
	if paused != nil {
		select {
		case <-paused:
		case <-ctx.Done():
			return &runstore.OpError{Op: op, Err: lossKind, Cause: ctx.Err()}
		}
	}
	if c.latency > 0 {
		timer := time.NewTimer(c.latency/2 + rand.N(c.latency))
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return &runstore.OpError{Op: op, Err: lossKind, Cause: ctx.Err()}
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cut || rand.Float64() < c.loss {
		return &runstore.OpError{Op: op, Err: lossKind, Cause: errors.New("cut by the test")}
	}
	return nil
}

// through sends a request over the connection.
func through[R any](ctx context.Context, c *conn, op string, call func() (R, error)) (R, error) {
	var none R
	if err := c.pass(ctx, op, runstore.ErrUnavailable); err != nil {
		return none, err
	}
	r, err := call()
	if lost := c.pass(ctx, op, runstore.ErrUnknownOutcome); lost != nil {
		return none, lost
	}
	return r, err
}

func (c *conn) CreateRun(ctx context.Context, s runstore.RunSpec) (runstore.Created, error) {
	return through(ctx, c, "create run", func() (runstore.Created, error) { return c.RunStore.CreateRun(ctx, s) })
}

func (c *conn) GetRun(ctx context.Context, id runstore.RunID) (runstore.Run, error) {
	return through(ctx, c, "get run", func() (runstore.Run, error) { return c.RunStore.GetRun(ctx, id) })
}

func (c *conn) AcquireLease(ctx context.Context, r runstore.AcquireRequest) (runstore.Granted, error) {
	c.set(func(c *conn) { c.acquires++ })
	return through(ctx, c, "acquire lease", func() (runstore.Granted, error) { return c.RunStore.AcquireLease(ctx, r) })
}

func (c *conn) RenewLease(ctx context.Context, r runstore.RenewRequest) (runstore.Renewed, error) {
	return through(ctx, c, "renew lease", func() (runstore.Renewed, error) { return c.RunStore.RenewLease(ctx, r) })
}

func (c *conn) ReleaseLease(ctx context.Context, r runstore.ReleaseRequest) (runstore.Committed, error) {
	return through(ctx, c, "release lease", func() (runstore.Committed, error) { return c.RunStore.ReleaseLease(ctx, r) })
}

func (c *conn) Commit(ctx context.Context, b runstore.Batch) (runstore.Committed, error) {
	return through(ctx, c, "commit", func() (runstore.Committed, error) { return c.RunStore.Commit(ctx, b) })
}

func (c *conn) ReadRecords(ctx context.Context, id runstore.RunID, q runstore.RecordQuery) ([]runstore.Record, error) {
	return through(ctx, c, "read records", func() ([]runstore.Record, error) { return c.RunStore.ReadRecords(ctx, id, q) })
}

func (c *conn) ScanIndex(ctx context.Context, q runstore.IndexQuery) ([]runstore.IndexEntry, error) {
	return through(ctx, c, "scan index", func() ([]runstore.IndexEntry, error) { return c.RunStore.ScanIndex(ctx, q) })
}

func (c *conn) Now(ctx context.Context) (time.Time, error) {
	return through(ctx, c, "now", func() (time.Time, error) { return c.RunStore.Now(ctx) })
}

// mute hides the store's announcements, as a store without them would.
type mute struct{ runstore.RunStore }

const ttl = 10 * time.Second

func options() *group.Options {
	return &group.Options{TTL: ttl, Logger: slog.New(slog.DiscardHandler)}
}

func open(t *testing.T, store runstore.RunStore, opts *group.Options) *group.Group {
	t.Helper()
	g, err := group.New(store, "workers", opts)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// member is a process that joins the group.
type member struct {
	*conn
	group *group.Group
	began chan *group.Membership // receives the membership
	stop  context.CancelFunc
	ended chan error // receives the result of Join
}

// join starts a member with a connection of its own. Its work waits for the end of its context, unless
// the test passes other work.
func join(t *testing.T, store runstore.RunStore, spec group.MemberSpec, work func(context.Context, *group.Membership) error) *member {
	t.Helper()
	c := &conn{RunStore: store}
	return joinThrough(t, c, spec, work)
}

func joinThrough(t *testing.T, c *conn, spec group.MemberSpec, work func(context.Context, *group.Membership) error) *member {
	t.Helper()
	if work == nil {
		work = func(ctx context.Context, _ *group.Membership) error {
			<-ctx.Done()
			return context.Cause(ctx)
		}
	}
	m := &member{conn: c, group: open(t, c, options()), began: make(chan *group.Membership, 1), ended: make(chan error, 1)}
	ctx, stop := context.WithCancel(t.Context())
	m.stop = stop
	done := make(chan struct{})
	go func() {
		defer close(done)
		m.ended <- m.group.Join(ctx, spec, func(ctx context.Context, s *group.Membership) error {
			m.began <- s
			return work(ctx, s)
		})
	}()
	t.Cleanup(func() {
		stop()
		<-done
	})
	return m
}

// membership waits until the member has joined.
func (m *member) membership(t *testing.T) *group.Membership {
	t.Helper()
	select {
	case s := <-m.began:
		return s
	case <-time.After(24 * time.Hour):
		t.Fatal("the member did not join")
		return nil
	}
}

// result waits for the end of a member and returns the result of Join. Without the bound, a member that
// does not end would read the group in simulated time for ever.
func (m *member) result(t *testing.T) error {
	t.Helper()
	select {
	case err := <-m.ended:
		return err
	case <-time.After(24 * time.Hour):
		t.Fatal("the member did not end")
		return nil
	}
}

// leave stops a member and waits for its end.
func (m *member) leave(t *testing.T) {
	t.Helper()
	m.stop()
	if err := m.result(t); !errors.Is(err, context.Canceled) {
		t.Errorf("join: %v, want the context's cause", err)
	}
}

// names returns the names of the live members.
func names(t *testing.T, g *group.Group) []string {
	t.Helper()
	s, err := g.Members(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, m := range s.Members {
		all = append(all, m.Name)
	}
	return all
}

// history returns the events of a member's run: "joined TOKEN" and "REASON TOKEN".
func history(t *testing.T, store runstore.RunStore, g *group.Group, name string) (all []string) {
	t.Helper()
	for e, err := range runstore.Journal(t.Context(), store, g.MemberRun(name), 1) {
		if err != nil {
			t.Fatal(err)
		}
		switch e.Kind {
		case group.EventJoined:
			all = append(all, fmt.Sprint("joined ", int64(e.Token)))
		case group.EventEnded:
			var end group.Ended
			if err := json.Unmarshal(e.Data, &end); err != nil {
				t.Fatal(err)
			}
			if end.Member != name || end.Group != "workers" || (end.Reason == group.Released) != (e.Token == end.Token) {
				t.Errorf("event %+v under token %v, want the end of a membership of %q", end, e.Token, name)
			}
			all = append(all, fmt.Sprint(end.Reason, " ", int64(end.Token)))
		default:
			t.Errorf("event of the kind %q", e.Kind)
		}
	}
	return all
}

// lost reports whether a membership ended by the loss of its lease.
func lost(err error) bool { return errors.Is(err, lease.ErrLost) }
