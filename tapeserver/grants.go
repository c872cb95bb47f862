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

// With tape.FenceConnection the server presents fences on behalf of clients that do not support
// them. It stores, per HTTP/2 connection, the grants that it returned there, and makes a driver's
// write on a connection under the grant of that connection. The store checks this fence like any
// other. Invariants:
//
//  1. A grant is presented only on the connection on which it was returned. So of two processes,
//     even with the same owner name, the one that was granted the lease later writes, and the other
//     is refused.
//  2. A connection without a grant of a run makes no write that needs one. After a broken
//     connection, after a restart of the server, or on another replica, the client calls BeginRun
//     again.
//  3. A heartbeat from another connection, as some SDKs send, renews the lease if it names the
//     holder's owner (tape.Tape.ResumeRun), even a lease that has expired and that no other driver
//     took: after a pause a process may send a heartbeat before its driver's next write. It moves
//     no grant. A process that wants the lease calls BeginRun, or sets wait_for_lease.
//  4. BeginRun and ResumeRun on a connection whose grant was taken over leave a live lease alone,
//     even of the same owner name: a driver that resumes after its successor has begun does not
//     take the run back.
//  5. An event of a session names its run by session and invocation. On a connection with that
//     run's grant the event is appended under the grant, so a driver that was taken over appends
//     nothing. On any other connection it is appended without a fence: events also come from users,
//     and before the run begins.
//  6. A write to a value names no run. On a connection with grants it is made under the latest one;
//     on any other connection, without a fence. A process that drives several runs and needs each
//     write under its own run's grant presents that grant.
//
// A connection must be one process: a proxy that puts the calls of several processes on one
// connection makes them one driver.
//
// A grant is deleted when its run ends or is parked and when the connection closes. The server closes
// no connection for being idle in this mode; see Options.keepalive. Above maxGrants and
// maxGrantsInAll the oldest grants of the connection are evicted.

const (
	// maxGrants is the number of grants that a connection stores.
	maxGrants = 4096
	// maxGrantsInAll is the number of grants that all connections store together: 100 MB at 500
	// bytes each, with the longest owner names.
	maxGrantsInAll = 200_000
)

// grants are the grants of one connection.
type grants struct {
	mu    sync.Mutex
	byRun map[runstore.RunID]tape.Grant
	order []runstore.RunID // oldest first
	all   *atomic.Int64    // number of grants of all connections; nil before the first grant

	closed bool
}

// put stores a grant, unless its connection has closed. A late reply does not restore a grant that
// a later one has replaced.
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
		return // the run's driver is refused, and must begin on a connection with room
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

// last returns the grant that was stored last, if any.
func (g *grants) last() (tape.Grant, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.order) == 0 {
		return tape.Grant{}, false
	}
	return g.byRun[g.order[len(g.order)-1]], true
}

// forget deletes the grant of a run, up to a token.
func (g *grants) forget(run runstore.RunID, token runstore.Token) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.byRun[run].Token <= int64(token) {
		g.remove(run)
	}
}

// close deletes all grants and rejects later ones.
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

// fence returns the fence of a driver's write: the presented one, or else the grant of its
// connection.
func (s *service) fence(ctx context.Context, run runstore.RunID, req fencedRequest) (runstore.Fence, error) {
	f, err := fenceOf(ctx, run, req)
	if err == nil && f.IsZero() {
		f, err = s.ofConnection(ctx, run)
	}
	return f, err
}

// wrote counts a driver's write that was made, if it was made without a fence.
func (s *service) wrote(f runstore.Fence) {
	if f.IsZero() {
		s.unfenced.Add(1)
	}
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

// sessionFence returns the fence of a write to a session: the presented one, or else the grant of a
// run on the call's connection. An empty run means no run. If the connection's grant was taken
// over, the write is refused; it is not tried without a fence.
func (s *service) sessionFence(ctx context.Context, run runstore.RunID, req fencedRequest) (runstore.Fence, error) {
	f, present, err := sharedFence(ctx, req)
	if err != nil || present {
		return f, err
	}
	return s.ofConnection(ctx, run)
}

// valueFence returns the fence of a write to a value: the presented one, or else the last grant of
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

// sharedFence returns the fence that a write to a session or a value presents. It must name its
// run.
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

// granted stores a grant that is returned on the connection of a call, unless the call renewed it:
// the reply to a heartbeat may come after the run has ended.
func (s *service) granted(ctx context.Context, lease runstore.Lease, renewed runstore.Token) {
	if s.opts.Fence == tape.FenceConnection && lease.Token != 0 && lease.Token != renewed {
		connOf(ctx).grants.put(lease, s.grants)
	}
}

// released deletes the grant of a run that has ended or is parked, under the fence of that write.
func (s *service) released(ctx context.Context, f runstore.Fence) {
	if s.opts.Fence == tape.FenceConnection && !f.IsZero() {
		connOf(ctx).grants.forget(f.Run(), f.Token())
	}
}

// orFree calls a method that needs a driver's authority for some requests and none for others. A
// request without a fence is tried under the grant of its connection and, if that grant was taken
// over, again without one: work that outlives a lease is not refused because its process once held
// the lease.
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

// take calls a method that requests a run's lease. A request without a fence is tried under the
// grant of its connection first, as a heartbeat, unless it waits for the lease: then it must not get the
// live grant of another caller on the connection. If that grant was taken over, or its run was purged,
// the request is repeated without the grant and leaves a live lease alone.
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
		own, err := s.ofConnection(ctx, run)
		switch {
		case err != nil:
			return err
		case !wait:
			f = own
		case !own.IsZero():
			takeover = tape.TakeNone // the driver has the owner's name, too
		}
	}
	err = call(f, takeover)
	if presented.IsZero() && !f.IsZero() && (errors.Is(err, runstore.ErrFenced) || errors.Is(err, tape.ErrNoSuchRun)) {
		err = call(runstore.Fence{}, tape.TakeNone)
	}
	return err
}
