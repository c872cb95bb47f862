package tapeserver

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/tapestore/tapestore/internal/clientlimit"
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
//  4. On a connection whose grant was taken over or broken, ResumeRun without wait_for_lease takes no
//     lease, live or not: a heartbeat of a replaced driver does not take the run back. BeginRun leaves
//     a live lease alone there, even of the same owner name, and takes one that is free or expired. So
//     a grant that was taken over stays stored, and none is evicted.
//  5. An event of a session names its run by session and invocation. On a connection with that
//     run's grant the event is appended under the grant, so a driver that was taken over appends
//     nothing. On any other connection it is appended without a fence: events also come from users,
//     and before the run begins.
//  6. A write to a value names no run. On a connection with grants it is made under the latest one
//     that was not refused, as fenced or because its run was purged, or under the latest one if all were; on any other connection,
//     without a fence. A process that drives several runs and needs each write under its own run's
//     grant presents that grant.
//  7. A write that needs no driver's authority is made without a fence on a connection without a
//     grant of its run, and under that grant on a connection with one: EndRun with CANCELLED, and
//     CompleteEffect of an outbox effect. Only CompleteEffect is repeated without a fence if the
//     grant was taken over. It reports what a dispatcher did, and leaves the run's state and lease
//     alone. EndRun would end the successor's run.
//
// A connection must be one process: a proxy that puts the calls of several processes on one
// connection makes them one driver.
//
// A grant is deleted when its run ends or is parked and when the connection closes. The server closes
// no connection for being idle or silent in this mode; see Options.keepalive. A call that needs room for
// another grant is refused above maxGrants, maxGrantsInAll and the client's share of the latter,
// before it takes a lease. It first deletes grants that are the last of their runs if those have ended
// elsewhere for good. A grant that was taken over stays also then: without it the late driver could
// cancel the run that its successor has ended, and append to its session.

const (
	// maxGrants is the number of grants that a connection stores: 4,096, above the 1,024 open calls
	// of a connection.
	maxGrants = 4096
	// maxGrantsInAll is the number of grants that all connections store together: 100 MB at 500
	// bytes each, with the longest owner names. Calls that began below the limit may exceed it, by
	// at most Limits.Streams.
	maxGrantsInAll = 200_000
	// checkedGrants is the number of a connection's grants whose runs are read when there is no room
	// for another grant: 16, so that a refusal costs the store a few reads.
	checkedGrants = 16
)

// grantPool counts the grants of all connections, by client.
type grantPool struct {
	mu       sync.Mutex
	total    int
	byClient map[string]int
}

func newGrantPool() *grantPool { return &grantPool{byClient: map[string]int{}} }

// add counts n more grants of a client.
func (p *grantPool) add(client string, n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.total += n
	if p.byClient[client] += n; p.byClient[client] == 0 {
		delete(p.byClient, client)
	}
}

// room returns the status of a call of the client if there is no room for another grant.
func (p *grantPool) room(client string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.total >= maxGrantsInAll {
		return limitError("Grants", maxGrantsInAll, "too many runs are being driven")
	}
	if share := clientlimit.Share(maxGrantsInAll); p.byClient[client] >= share {
		return limitError("GrantsPerClient", share, "this client drives too many runs")
	}
	return nil
}

// grants are the grants of one connection.
type grants struct {
	mu    sync.Mutex
	byRun map[runstore.RunID]storedGrant
	order []runstore.RunID // oldest first
	pool  *grantPool       // nil before the first grant
	next  int              // index in order of the grant that is checked next

	closed bool
}

// storedGrant is a grant of a connection.
type storedGrant struct {
	tape.Grant
	client string // the client that the grant counts for
	fenced bool   // the store has refused the grant as fenced, or its run was purged
}

// put stores a grant, unless its connection has closed. A late reply does not restore a grant that
// a later one has replaced.
func (g *grants) put(lease runstore.Lease, client string, pool *grantPool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return
	}
	if g.byRun == nil {
		g.byRun, g.pool = map[runstore.RunID]storedGrant{}, pool
	}
	if known, ok := g.byRun[lease.Run]; ok && known.Token > int64(lease.Token) {
		return
	}
	g.remove(lease.Run)
	g.byRun[lease.Run] = storedGrant{Grant: tape.GrantOf(lease), client: client}
	g.order = append(g.order, lease.Run)
	pool.add(client, 1)
}

func (g *grants) get(run runstore.RunID) (tape.Grant, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	grant, ok := g.byRun[run]
	return grant.Grant, ok
}

// last returns the grant that was stored last among those that the store has not refused as fenced,
// or else among all; false if there is none.
func (g *grants) last() (tape.Grant, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.order) == 0 {
		return tape.Grant{}, false
	}
	for _, run := range slices.Backward(g.order) {
		if grant := g.byRun[run]; !grant.fenced {
			return grant.Grant, true
		}
	}
	return g.byRun[g.order[len(g.order)-1]].Grant, true
}

// fenced records that the store has refused a grant as fenced.
func (g *grants) fenced(run runstore.RunID, token runstore.Token) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if grant, ok := g.byRun[run]; ok && grant.Token == int64(token) {
		grant.fenced = true
		g.byRun[run] = grant
	}
}

// room returns the status of a call of the client if there is no room for another grant.
func (g *grants) room(client string, pool *grantPool) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.order) >= maxGrants {
		return limitError("GrantsPerConnection", maxGrants, "this connection drives too many runs")
	}
	return pool.room(client)
}

// check returns up to n grants. Successive calls return all grants in turn.
func (g *grants) check(n int) []tape.Grant {
	g.mu.Lock()
	defer g.mu.Unlock()
	var some []tape.Grant
	for range min(n, len(g.order)) {
		g.next %= len(g.order)
		some = append(some, g.byRun[g.order[g.next]].Grant)
		g.next++
	}
	return some
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
	if grant, ok := g.byRun[run]; ok {
		delete(g.byRun, run)
		i := slices.Index(g.order, run)
		g.order = slices.Delete(g.order, i, i+1)
		g.pool.add(grant.client, -1)
	}
}

// room returns the status of BeginRun or ResumeRun if the call may take a lease whose grant its
// connection has no room for. Without the grant the driver could not write, and the former holder
// would have lost the run. heartbeat is the owner name of a call that is a heartbeat while that
// owner holds the lease; a heartbeat needs no room.
func (s *service) room(ctx context.Context, run runstore.RunID, req fencedRequest, heartbeat string) error {
	if s.opts.Fence != tape.FenceConnection {
		return nil
	}
	if _, present, err := presented(ctx, req); present || err != nil {
		return nil // the call renews the presented grant, or is refused
	}
	g, client := &connOf(ctx).grants, clientOf(ctx)
	if _, ok := g.get(run); ok {
		return nil // a later grant of the run replaces it
	}
	if g.room(client, s.grants) == nil {
		return nil
	}
	if heartbeat != "" {
		if r, err := s.tape.GetRun(ctx, run); err == nil && r.LeaseOwner == heartbeat {
			return nil
		}
	}
	for _, grant := range g.check(checkedGrants) {
		r, err := s.tape.GetRun(ctx, grant.Run)
		if err == nil && int64(r.Token) == grant.Token && hasEndedForGood(r.Status) {
			g.forget(grant.Run, runstore.Token(grant.Token))
		}
	}
	return g.room(client, s.grants)
}

// hasEndedForGood reports whether no call revives a run of this status, until it is purged. A run that failed,
// was cancelled or was purged can be begun again, and then its former drivers must still have their grants.
func hasEndedForGood(status tape.RunStatus) bool {
	return status == tape.RunTerminal || status == tape.RunStuck
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
		connOf(ctx).grants.put(lease, clientOf(ctx), s.grants)
	}
}

// refused returns the error of a write under a fence. If the store has refused the fence as stale, or
// has no such run any longer, it marks the grant of the call's connection.
func (s *service) refused(ctx context.Context, f runstore.Fence, err error) error {
	if s.opts.Fence == tape.FenceConnection && !f.IsZero() && hasEndedGrant(err) {
		connOf(ctx).grants.fenced(f.Run(), f.Token())
	}
	return err
}

// hasEndedGrant reports whether a write was refused because the grant of its fence has ended.
func hasEndedGrant(err error) bool {
	return errors.Is(err, runstore.ErrFenced) || errors.Is(err, tape.ErrNoSuchRun)
}

// released deletes the grant of a run that has ended or is parked, under the fence of that write.
func (s *service) released(ctx context.Context, f runstore.Fence) {
	if s.opts.Fence == tape.FenceConnection && !f.IsZero() {
		connOf(ctx).grants.forget(f.Run(), f.Token())
	}
}

// orFree calls CompleteEffect, which needs a driver's authority for an inline effect and none for an
// outbox effect. A request without a fence is tried under the grant of its connection and, if that
// grant was taken over, again without one: the report of a dispatcher outlives the lease, and is not
// refused because its process once held the lease. A method that changes the state or the lease of
// the run must not be called this way: it would change them for the run's next driver.
func (s *service) orFree(ctx context.Context, run runstore.RunID, req fencedRequest, call func(f runstore.Fence) error) error {
	presented, err := fenceOf(ctx, run, req)
	if err != nil {
		return err
	}
	f, err := s.fence(ctx, run, req)
	if err != nil {
		return err
	}
	err = s.refused(ctx, f, call(f))
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
// the request is repeated without the grant: BeginRun leaves a live lease alone, and ResumeRun takes none.
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
	err = s.refused(ctx, f, call(f, takeover))
	if presented.IsZero() && !f.IsZero() && hasEndedGrant(err) {
		err = call(runstore.Fence{}, tape.TakeNone)
	}
	return err
}
