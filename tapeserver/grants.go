package tapeserver

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tape"
)

// With tape.FenceConnection the server presents grants for clients that know of none. It remembers,
// per HTTP/2 connection, the grants that it answered there, and applies a driver's write on a
// connection under the grant of that connection. The store checks it as it checks every fence.
//
//  1. A grant is presented on the connection on which it was answered, and on no other. So of two
//     processes, whatever their owner's names are, the one that was granted the lease later writes,
//     and the other is refused.
//  2. A connection that has no grant of a run writes nothing that needs one. After a broken
//     connection, a restart of the server, or on another replica, the client calls BeginRun or
//     ResumeRun again.
//  3. A heartbeat from another connection, as some SDKs send, renews the lease if it names the
//     holder's owner (tape.Tape.ResumeRun). It moves no grant.
//  4. BeginRun and ResumeRun on a connection whose grant was taken over leave a live lease alone: a
//     driver that wakes up after its successor has begun does not take the run back.
//
// Grants are forgotten when the run ends or is parked, when the connection closes, and, the oldest
// first, beyond maxGrants.

// maxGrants is how many grants a connection remembers: some 300 bytes each.
const maxGrants = 4096

// grants are those of one connection.
type grants struct {
	mu    sync.Mutex
	byRun map[runstore.RunID]tape.Grant
	order []runstore.RunID // the oldest first
}

func (g *grants) put(lease runstore.Lease) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.byRun == nil {
		g.byRun = map[runstore.RunID]tape.Grant{}
	}
	g.remove(lease.Run)
	if len(g.order) == maxGrants {
		g.remove(g.order[0])
	}
	g.byRun[lease.Run] = tape.GrantOf(lease)
	g.order = append(g.order, lease.Run)
}

func (g *grants) get(run runstore.RunID) (tape.Grant, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	grant, ok := g.byRun[run]
	return grant, ok
}

func (g *grants) forget(run runstore.RunID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.remove(run)
}

// remove removes a run's grant. The caller holds g.mu.
func (g *grants) remove(run runstore.RunID) {
	if _, ok := g.byRun[run]; ok {
		delete(g.byRun, run)
		g.order = slices.Delete(g.order, slices.Index(g.order, run), slices.Index(g.order, run)+1)
	}
}

// fence returns the fence of a driver's write: what the request presents, or the grant of its
// connection.
func (s *service) fence(ctx context.Context, run runstore.RunID, req fencedRequest) (runstore.Fence, error) {
	f, err := fenceOf(ctx, run, req)
	if err != nil || !f.IsZero() || s.opts.Fence != tape.FenceConnection {
		return f, err
	}
	if grant, ok := connOf(ctx).grants.get(run); ok {
		return grant.Fence(run)
	}
	return runstore.Fence{}, nil
}

// granted remembers a grant that is answered on the connection of a call.
func (s *service) granted(ctx context.Context, lease runstore.Lease) {
	if s.opts.Fence == tape.FenceConnection && lease.Token != 0 {
		connOf(ctx).grants.put(lease)
	}
}

// released forgets the grant of a run that has ended or is parked.
func (s *service) released(ctx context.Context, run runstore.RunID) {
	if s.opts.Fence == tape.FenceConnection {
		connOf(ctx).grants.forget(run)
	}
}

// take calls a method that asks for a run's lease. A request that presents no fence is tried under
// the grant of its connection first, so that it is a heartbeat. If that grant was taken over, the
// request leaves a live lease alone.
func (s *service) take(ctx context.Context, run runstore.RunID, req fencedRequest, wait bool, call func(f runstore.Fence, wait bool) error) error {
	wait = wait || s.opts.WaitForLease
	presented, err := fenceOf(ctx, run, req)
	if err != nil {
		return err
	}
	f := presented
	if f.IsZero() {
		if f, err = s.fence(ctx, run, req); err != nil {
			return err
		}
	}
	err = call(f, wait)
	if presented.IsZero() && !f.IsZero() && errors.Is(err, runstore.ErrFenced) {
		err = call(runstore.Fence{}, true)
	}
	return err
}
