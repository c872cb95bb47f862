package tapeserver

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tape"
)

// With tape.FenceConnection the server presents grants for clients that know of none. It remembers,
// per HTTP/2 connection, the grants that it answered there, and applies a driver's write on a
// connection under the grant of that connection. The store checks it as it checks every fence.
//
//  1. A grant is presented on the connection on which it was answered, and on no other. So of two
//     processes, even of one owner's name, the one that was granted the lease later writes,
//     and the other is refused.
//  2. A connection that has no grant of a run writes nothing that needs one. After a broken
//     connection, a restart of the server, or on another replica, the client calls BeginRun again.
//  3. A heartbeat from another connection, as some SDKs send, renews the lease if it names the
//     holder's owner (tape.Tape.ResumeRun), also one that has expired and that nobody took over:
//     after a pause a process may send it before its driver's next write. It moves no grant. A
//     process that wants the lease calls BeginRun, or sets wait_for_lease.
//  4. BeginRun and ResumeRun on a connection whose grant was taken over leave a live lease alone,
//     even one of the same owner's name: a driver that wakes up after its successor has begun does not
//     take the run back.
//  5. An event of a session names its run by session and invocation. On a connection that has that
//     run's grant the event is appended under it, so a driver that was taken over appends nothing.
//     On any other connection it is appended: events come from users too, and before the run.
//
//  6. A write to a value names no run. On a connection with grants it is applied under the grant that
//     was answered last, on any other connection without one. A process that drives several runs and
//     needs each write under its own run's grant presents that grant.
//
// A connection is one process: a proxy that puts the calls of several processes on one connection
// makes them one driver.
//
// Grants are forgotten when the run ends or is parked, when the connection closes, and, the oldest
// of the connection first, beyond maxGrants and maxGrantsInAll.

const (
	// maxGrants is how many grants a connection remembers.
	maxGrants = 4096
	// maxGrantsInAll is how many all connections remember together: 100 MB at 500 bytes each, with
	// the longest owner's names.
	maxGrantsInAll = 200_000
)

// grants are those of one connection.
type grants struct {
	mu    sync.Mutex
	byRun map[runstore.RunID]tape.Grant
	order []runstore.RunID // the oldest first
	all   *atomic.Int64    // counts the grants of all connections; nil before the first

	closed bool
}

// put remembers a grant, unless its connection has closed. A reply that comes late brings no grant
// back that a later one has replaced.
func (g *grants) put(lease runstore.Lease, all *atomic.Int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return
	}
	if g.byRun == nil {
		g.byRun, g.all = map[runstore.RunID]tape.Grant{}, all
	}
	if known, ok := g.byRun[lease.Run]; ok && known.Token > int64(lease.Token) {
		return
	}
	g.remove(lease.Run)
	if len(g.order) == maxGrants || len(g.order) > 0 && all.Load() >= maxGrantsInAll {
		g.remove(g.order[0])
	}
	if all.Load() >= maxGrantsInAll {
		return // the run's driver is refused, and begins on a connection with room
	}
	g.byRun[lease.Run] = tape.GrantOf(lease)
	g.order = append(g.order, lease.Run)
	all.Add(1)
}

func (g *grants) get(run runstore.RunID) (tape.Grant, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	grant, ok := g.byRun[run]
	return grant, ok
}

// last returns the grant that was answered last, if there is one.
func (g *grants) last() (tape.Grant, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.order) == 0 {
		return tape.Grant{}, false
	}
	return g.byRun[g.order[len(g.order)-1]], true
}

// forget forgets the grant of a run, up to a token.
func (g *grants) forget(run runstore.RunID, token runstore.Token) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.byRun[run].Token <= int64(token) {
		g.remove(run)
	}
}

// close forgets all grants, and those that come later.
func (g *grants) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
	for len(g.order) > 0 {
		g.remove(g.order[len(g.order)-1])
	}
}

// remove removes a run's grant. The caller holds g.mu.
func (g *grants) remove(run runstore.RunID) {
	if _, ok := g.byRun[run]; ok {
		delete(g.byRun, run)
		i := slices.Index(g.order, run)
		g.order = slices.Delete(g.order, i, i+1)
		g.all.Add(-1)
	}
}

// fence returns the fence of a driver's write: what the request presents, or the grant of its
// connection.
func (s *service) fence(ctx context.Context, run runstore.RunID, req fencedRequest) (runstore.Fence, error) {
	f, err := fenceOf(ctx, run, req)
	if err == nil && f.IsZero() {
		if f, err = s.ofConnection(ctx, run); err == nil && f.IsZero() && s.opts.Fence != tape.FenceConnection {
			s.unfenced.Add(1)
		}
	}
	return f, err
}

// ofConnection returns the grant of a call's connection as a fence, if there is one.
func (s *service) ofConnection(ctx context.Context, run runstore.RunID) (runstore.Fence, error) {
	if s.opts.Fence != tape.FenceConnection {
		return runstore.Fence{}, nil
	}
	if grant, ok := connOf(ctx).grants.get(run); ok {
		return grant.Fence(run)
	}
	return runstore.Fence{}, nil
}

// sessionFence returns the fence of a write to a session: what the request presents, or the grant of a
// run on the call's connection. The run may be empty, for no run. A write under the connection's
// grant is refused once that grant was taken over; it is not tried without.
func (s *service) sessionFence(ctx context.Context, run runstore.RunID, req fencedRequest) (runstore.Fence, error) {
	f, present, err := sharedFence(ctx, req)
	if err != nil || present {
		return f, err
	}
	return s.ofConnection(ctx, run)
}

// valueFence returns the fence of a write to a value: what the request presents, or the last grant of
// the call's connection.
func (s *service) valueFence(ctx context.Context, req fencedRequest) (runstore.Fence, error) {
	f, present, err := sharedFence(ctx, req)
	if err != nil || present || s.opts.Fence != tape.FenceConnection {
		return f, err
	}
	if grant, ok := connOf(ctx).grants.last(); ok {
		return grant.Fence(grant.Run)
	}
	return runstore.Fence{}, nil
}

// sharedFence returns the fence that a write to what no run owns presents. It has to name its run.
func sharedFence(ctx context.Context, req fencedRequest) (f runstore.Fence, present bool, err error) {
	grant, present, err := presented(ctx, req)
	if err != nil || !present {
		return f, false, err
	}
	if grant.Run == "" {
		return f, false, malformed("fence.run_id", "is missing: sessions and values belong to no run")
	}
	f, err = grant.Fence(grant.Run)
	return f, true, err
}

// granted remembers a grant that is answered on the connection of a call, unless the call renewed it:
// the answer of a heartbeat may come after the run has ended.
func (s *service) granted(ctx context.Context, lease runstore.Lease, renewed runstore.Token) {
	if s.opts.Fence == tape.FenceConnection && lease.Token != 0 && lease.Token != renewed {
		connOf(ctx).grants.put(lease, s.grants)
	}
}

// released forgets the grant of a run that has ended or is parked, under the fence that did so.
func (s *service) released(ctx context.Context, f runstore.Fence) {
	if s.opts.Fence == tape.FenceConnection && !f.IsZero() {
		connOf(ctx).grants.forget(f.Run(), f.Token())
	}
}

// orFree calls a method that needs a driver's authority for some requests and none for others. A
// request that presents no fence is tried under the grant of its connection, and, if that was taken
// over, without one: work that outlives a lease is not refused because its process once held it.
func (s *service) orFree(ctx context.Context, run runstore.RunID, req fencedRequest, call func(f runstore.Fence) error) error {
	presented, err := fenceOf(ctx, run, req)
	if err != nil {
		return err
	}
	f, err := s.fence(ctx, run, req)
	if err != nil {
		return err
	}
	err = call(f)
	if presented.IsZero() && !f.IsZero() && errors.Is(err, runstore.ErrFenced) {
		if free := call(runstore.Fence{}); !errors.Is(free, tape.ErrFenceRequired) {
			return free
		}
	}
	return err
}

// take calls a method that asks for a run's lease. A request that presents no fence is tried under
// the grant of its connection first, so that it is a heartbeat. If that grant was taken over, the
// request leaves a live lease alone.
func (s *service) take(ctx context.Context, run runstore.RunID, req fencedRequest, wait bool, call func(f runstore.Fence, takeover tape.Takeover) error) error {
	takeover := tape.TakeAny
	if wait || s.opts.WaitForLease {
		takeover = tape.TakeOwn
	}
	presented, err := fenceOf(ctx, run, req)
	if err != nil {
		return err
	}
	f := presented
	if f.IsZero() {
		if f, err = s.ofConnection(ctx, run); err != nil {
			return err
		}
	}
	err = call(f, takeover)
	if presented.IsZero() && !f.IsZero() && errors.Is(err, runstore.ErrFenced) {
		err = call(runstore.Fence{}, tape.TakeNone)
	}
	return err
}
