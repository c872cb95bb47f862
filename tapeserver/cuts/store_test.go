package cuts_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/tapestore/tapestore/runstore"
)

// harm is what befalls an RPC at one of its store calls.
type harm int

const (
	// killedBefore ends the server's process before the call reaches the store.
	killedBefore harm = iota + 1
	// killedDuring ends it while the store works on the call.
	killedDuring
	// killedAfter ends it after the call was applied.
	killedAfter
	// lostRequest loses the request of the call.
	lostRequest
	// lostReply loses the reply of the call, which is applied.
	lostReply
	// silenced is lostReply, and the store answers nothing more to the server.
	silenced
	// frozenBefore holds the call until resume, and then applies it.
	frozenBefore
	// frozenAfter applies the call, and holds its reply until resume.
	frozenAfter
	// lostLate is lostRequest, and the loss is noticed at resume.
	lostLate
	// unheard is lostReply, and the loss is noticed at resume.
	unheard
)

func (h harm) String() string {
	return [...]string{"none", "killed before", "killed during", "killed after", "lost request", "lost reply", "silenced", "frozen before", "frozen after",
		"request lost late", "reply lost late"}[h]
}

// touched notes which runs and indexes the servers of one store have used.
type touched struct {
	mu      sync.Mutex
	runs    map[runstore.RunID]bool
	indexes map[runstore.IndexName]bool
}

func newTouched() *touched {
	return &touched{runs: map[runstore.RunID]bool{}, indexes: map[runstore.IndexName]bool{}}
}

func (n *touched) note(id runstore.RunID, w *runstore.Writes) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.runs[id] = true
	if w != nil {
		for _, r := range w.Records {
			for _, p := range r.Index {
				n.indexes[p.Index] = true
			}
		}
	}
}

// cutter counts the store calls of the RPCs of one server, and does harm at one of them.
type cutter struct {
	touched *touched
	harm    harm
	at      int // the call at which harm is done; 0 for none

	// kill ends the server: it breaks the connections, or lets another process kill this one.
	kill func()
	// reached is closed at the call, and resume ends a freeze.
	reached, resume chan struct{}

	mu    sync.Mutex
	calls []string
	dead  bool
}

func newCutter(n *touched, h harm, at int) *cutter {
	return &cutter{touched: n, harm: h, at: at, reached: make(chan struct{}), resume: make(chan struct{})}
}

// enter counts a call and returns the harm that is done at it.
func (c *cutter) enter(ctx context.Context, op string) (h harm, dead bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	method, _ := grpc.Method(ctx)
	if !strings.HasPrefix(method, "/tape.v1.Tape/") {
		return 0, c.dead // the server's own: of its health, say
	}
	c.calls = append(c.calls, op)
	if len(c.calls) == c.at && !c.dead {
		h = c.harm
		c.dead = h == killedBefore || h == killedAfter || h == silenced
		return h, false
	}
	return 0, c.dead
}

// trace returns the calls so far.
func (c *cutter) trace() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]string(nil), c.calls...)
}

var (
	errLost   = errors.New("the test has lost the reply")
	errKilled = errors.New("the test has killed the process")
)

// through makes one call.
func through[V any](ctx context.Context, c *cutter, op string, call func() (V, error)) (V, error) {
	var none V
	fail := func(kind, cause error) (V, error) {
		return none, &runstore.OpError{Op: op, Err: kind, Cause: cause}
	}
	// What a lost reply means: a read has changed nothing.
	lost := runstore.ErrUnknownOutcome
	if isRead(op) {
		lost = runstore.ErrUnavailable
	}
	h, dead := c.enter(ctx, op)
	if dead {
		return fail(runstore.ErrUnavailable, errKilled)
	}
	switch h {
	case killedBefore, killedAfter:
		if h == killedAfter {
			_, _ = call()
		}
		close(c.reached)
		c.kill()
		<-ctx.Done() // the connection is gone; the process does nothing more
		return fail(runstore.ErrUnavailable, errKilled)
	case killedDuring:
		go c.kill()
		return call()
	case lostRequest:
		return fail(lost, errLost)
	case lostReply, silenced:
		_, _ = call()
		return fail(lost, errLost)
	case lostLate, unheard:
		if h == unheard {
			_, _ = call()
		}
		close(c.reached)
		<-c.resume
		return fail(lost, errLost)
	case frozenBefore:
		close(c.reached)
		<-c.resume
		return call()
	case frozenAfter:
		v, err := call()
		close(c.reached)
		<-c.resume
		return v, err
	default:
		return call()
	}
}

// The names of the calls, as the table of the README has them.
const (
	opCreate  = "create"
	opGet     = "get"
	opAcquire = "acquire"
	opRenew   = "renew"
	opRelease = "release"
	opCommit  = "commit"
	opMulti   = "multi"
	opJournal = "journal"
	opRecords = "records"
	opScan    = "scan"
	opFeed    = "feed"
	opNow     = "now"
)

func isRead(op string) bool {
	switch op {
	case opCreate, opAcquire, opRenew, opRelease, opCommit, opMulti:
		return false
	default:
		return true
	}
}

// single is the store of a server, behind a cutter. It commits to one run at a time.
type single struct {
	runstore.RunStore
	c *cutter
}

// multi is a single that commits to several runs at once, too.
type multi struct {
	single
	all runstore.MultiCommitter
}

// behind returns s behind a cutter.
func behind(s runstore.RunStore, c *cutter, hideMulti bool) runstore.RunStore {
	if all, ok := s.(runstore.MultiCommitter); ok && !hideMulti {
		return multi{single{s, c}, all}
	}
	return single{s, c}
}

func (s single) CreateRun(ctx context.Context, spec runstore.RunSpec) (runstore.Created, error) {
	s.c.touched.note(spec.ID, &spec.Writes)
	return through(ctx, s.c, opCreate, func() (runstore.Created, error) { return s.RunStore.CreateRun(ctx, spec) })
}

func (s single) GetRun(ctx context.Context, id runstore.RunID) (runstore.Run, error) {
	return through(ctx, s.c, opGet, func() (runstore.Run, error) { return s.RunStore.GetRun(ctx, id) })
}

func (s single) AcquireLease(ctx context.Context, req runstore.AcquireRequest) (runstore.Granted, error) {
	s.c.touched.note(req.Run, &req.Writes)
	return through(ctx, s.c, opAcquire, func() (runstore.Granted, error) { return s.RunStore.AcquireLease(ctx, req) })
}

func (s single) RenewLease(ctx context.Context, req runstore.RenewRequest) (runstore.Renewed, error) {
	s.c.touched.note(req.Fence.Run(), &req.Writes)
	return through(ctx, s.c, opRenew, func() (runstore.Renewed, error) { return s.RunStore.RenewLease(ctx, req) })
}

func (s single) ReleaseLease(ctx context.Context, req runstore.ReleaseRequest) (runstore.Committed, error) {
	s.c.touched.note(req.Fence.Run(), &req.Writes)
	return through(ctx, s.c, opRelease, func() (runstore.Committed, error) { return s.RunStore.ReleaseLease(ctx, req) })
}

func (s single) Commit(ctx context.Context, b runstore.Batch) (runstore.Committed, error) {
	s.c.touched.note(b.Run(), &b.Writes)
	return through(ctx, s.c, opCommit, func() (runstore.Committed, error) { return s.RunStore.Commit(ctx, b) })
}

func (s single) ReadJournal(ctx context.Context, id runstore.RunID, from runstore.Seq, limit int) ([]runstore.Event, error) {
	return through(ctx, s.c, opJournal, func() ([]runstore.Event, error) { return s.RunStore.ReadJournal(ctx, id, from, limit) })
}

func (s single) ReadRecords(ctx context.Context, id runstore.RunID, q runstore.RecordQuery) ([]runstore.Record, error) {
	return through(ctx, s.c, opRecords, func() ([]runstore.Record, error) { return s.RunStore.ReadRecords(ctx, id, q) })
}

func (s single) ScanIndex(ctx context.Context, q runstore.IndexQuery) ([]runstore.IndexEntry, error) {
	return through(ctx, s.c, opScan, func() ([]runstore.IndexEntry, error) { return s.RunStore.ScanIndex(ctx, q) })
}

func (s single) ReadFeed(ctx context.Context, q runstore.FeedQuery) ([]runstore.FeedEvent, error) {
	return through(ctx, s.c, opFeed, func() ([]runstore.FeedEvent, error) { return s.RunStore.ReadFeed(ctx, q) })
}

func (s single) Now(ctx context.Context) (time.Time, error) {
	return through(ctx, s.c, opNow, func() (time.Time, error) { return s.RunStore.Now(ctx) })
}

func (s multi) CommitMulti(ctx context.Context, batches []runstore.Batch) ([]runstore.Committed, error) {
	for i := range batches {
		s.c.touched.note(batches[i].Run(), &batches[i].Writes)
	}
	return through(ctx, s.c, opMulti, func() ([]runstore.Committed, error) { return s.all.CommitMulti(ctx, batches) })
}
