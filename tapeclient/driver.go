package tapeclient

import (
	"context"
	"errors"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/tapestore/tapestore/internal/pace"
	"github.com/tapestore/tapestore/lease"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

// Work drives a run. It must return soon after ctx has ended; context.Cause(ctx) is a
// [lease.LostError] if the lease was lost.
type Work func(ctx context.Context, run *Run) error

// Begin begins the run that req names, or takes over the existing one, and runs work under its
// lease. The request's owner and TTL are the client's; its other fields are sent unchanged.
//
// A live lease of another owner is taken over at once, and its holder is fenced. With
// req.WaitForLease, Begin waits for the lease to end instead. While the server does not respond,
// Begin repeats the request. Both last until ctx ends.
//
// Errors: the error of work, if the lease was held to the end; a [lease.LostError], joined with
// that error, if the lease was lost; [ErrEnded] for a run that has ended; runstore.ErrUnsupported
// from a server that grants no leases; otherwise an [*Error] of BeginRun.
func (c *Client) Begin(ctx context.Context, req *tapepb.BeginRunRequest, work Work) error {
	return c.drive(ctx, true, work, func(ctx context.Context, ttl time.Duration) (taken, error) {
		own := proto.CloneOf(req)
		own.LeaseOwner, own.LeaseTtlMs = c.opts.Owner, ttl.Milliseconds()
		answer := &tapepb.BeginRunResponse{}
		err := c.attempt(ctx, tapepb.Tape_BeginRun_FullMethodName, own, answer)
		return taken{id: answer.GetRunId(), resumed: answer.GetResumed(), lastSeq: answer.GetNextSeq(), status: answer.GetStatus(), grant: answer.GetGrant()}, err
	})
}

// Resume acquires the lease of a run that has no live lease, and runs work under it. It never takes
// over a live lease, so processes that resume the same run do not evict each other.
//
// Errors: as those of [Client.Begin]; runstore.ErrLeaseHeld, with the holder and the remaining
// time, if the lease is live.
func (c *Client) Resume(ctx context.Context, run string, work Work) error {
	return c.drive(ctx, false, work, func(ctx context.Context, ttl time.Duration) (taken, error) {
		answer := &tapepb.ResumeRunResponse{}
		err := c.attempt(ctx, tapepb.Tape_ResumeRun_FullMethodName, &tapepb.ResumeRunRequest{
			RunId: run, LeaseOwner: c.opts.Owner, LeaseTtlMs: ttl.Milliseconds(), WaitForLease: true,
		}, answer)
		state := answer.GetRun()
		return taken{
			id: run, resumed: true, lastSeq: state.GetSeqCursor(), status: state.GetStatus(), grant: answer.GetGrant(),
			heartbeat: answer.GetGrant() == nil && state.GetToken() > 0,
		}, err
	})
}

// taken is the reply of BeginRun or ResumeRun.
type taken struct {
	id      string
	resumed bool
	lastSeq int64
	status  tapepb.RunStatus
	grant   *tapepb.Grant // nil if the call granted no lease
	// heartbeat reports that the call has renewed the live lease of this owner.
	heartbeat bool
}

// drive acquires a lease and runs work under it.
func (c *Client) drive(ctx context.Context, wait bool, work Work, take func(ctx context.Context, ttl time.Duration) (taken, error)) error {
	run := &Run{client: c, ending: make(chan struct{}, 1)}
	run.tape = tapepb.NewTapeClient(&invoker{client: c, run: run})
	leases := &leases{run: run, take: take}
	keeper, err := lease.New(leases, &c.opts.Lease)
	if err != nil {
		return err
	}
	acquire := keeper.TryAcquire
	if wait {
		acquire = keeper.Acquire
	}
	asking, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	leases.refused = giveUp
	granted, err := acquire(asking, runstore.AcquireRequest{LeaseSpec: runstore.LeaseSpec{Owner: runstore.Owner(c.opts.Owner)}})
	if refused := context.Cause(asking); err != nil && final(refused) && ctx.Err() == nil {
		return refused
	}
	if err != nil {
		return err
	}
	return keeper.Hold(ctx, granted, func(ctx context.Context, held *lease.Held) error {
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		run.held, run.work, run.cancel = held, ctx, cancel
		return work(ctx, run)
	})
}

// Run is a run under the lease of a driver. It is safe for concurrent use until the work that
// received it has returned.
type Run struct {
	client *Client
	tape   tapepb.TapeClient
	taken  taken
	lease  runstore.Lease
	held   *lease.Held
	work   context.Context // the context of the work
	cancel context.CancelCauseFunc

	// ending is a lock held by a heartbeat and by a call that ends the grant: a heartbeat that
	// arrived after such a call would be refused, and the lease considered lost. Between attempts
	// that were not applied the call releases it for heartbeats.
	ending chan struct{}

	mu    sync.Mutex
	ended bool  // this driver has ended the grant
	lost  error // the error with which a write of the work was fenced
}

// ID returns the run's id.
func (r *Run) ID() string { return r.taken.id }

// Resumed reports whether the run existed before, and the seq of its last journal entry at that
// time.
func (r *Run) Resumed() (lastSeq int64, resumed bool) { return r.taken.lastSeq, r.taken.resumed }

// Token returns the fencing token of the grant.
func (r *Run) Token() int64 { return r.taken.grant.GetToken() }

// Tape returns the protocol's RPCs as [Client.Tape] does. Every write that names the run, and every
// write to a session, presents the fence of the grant unless the request has one; EndRun and
// AwaitSignal are then repeated too. A write that is refused because the grant is not current
// cancels the work's context.
func (r *Run) Tape() tapepb.TapeClient { return r.tape }

// fence returns the grant in the form that a request presents.
func (r *Run) fence() *tapepb.Fence {
	g := r.taken.grant
	return &tapepb.Fence{Owner: g.GetOwner(), Token: g.GetToken(), GrantId: g.GetGrantId(), RunId: r.ID()}
}

// invoke makes a call of the driver.
func (r *Run) invoke(ctx context.Context, method string, req, reply proto.Message, opts ...grpc.CallOption) error {
	wait := sleeping
	if endsGrant(req) && runOf(req) == r.lease.Run {
		if !r.enter(ctx) {
			return notSent(ctx, method, req)
		}
		inside := true
		defer func() {
			if inside {
				<-r.ending
			}
		}()
		wait = func(ctx context.Context, d time.Duration, ambiguous bool) bool {
			if ambiguous {
				return pace.Pause(ctx, d)
			}
			<-r.ending // let heartbeats continue: the grant has not ended
			inside = false
			inside = pace.Pause(ctx, d) && r.enter(ctx)
			return inside
		}
	}
	err := r.client.retryCall(ctx, method, req, reply, !unrepeatable(req), wait, opts...)
	if err == nil {
		if parked, ok := reply.(*tapepb.AwaitSignalResponse); endsGrant(req) && runOf(req) == r.lease.Run && !(ok && parked.GetDelivered()) {
			r.mu.Lock()
			r.ended = true
			r.mu.Unlock()
		}
		return nil
	}
	r.cancelIfFenced(req, err)
	return err
}

// enter acquires ending. It reports false if ctx ended first.
func (r *Run) enter(ctx context.Context) bool {
	select {
	case r.ending <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

// endsGrant reports whether a request, if applied, ends the grant under which it is made.
func endsGrant(req proto.Message) bool {
	switch r := req.(type) {
	case *tapepb.EndRunRequest:
		return r.GetStatus() != tapepb.RunStatus_RUN_STATUS_COMPENSATING
	case *tapepb.AwaitSignalRequest:
		return true
	default:
		return false
	}
}

// cancelIfFenced cancels the work if err says that this grant is not the run's current one.
func (r *Run) cancelIfFenced(req proto.Message, err error) {
	if presents, ok := req.(interface{ GetFence() *tapepb.Fence }); !ok || !proto.Equal(presents.GetFence(), r.fence()) {
		return // a read, a write without a fence, or a write with a fence of the caller's
	}
	var fenced *runstore.FencedError
	var behind *runstore.StoreBehindError
	reason := &runstore.OpError{Op: "write", Run: r.lease.Run}
	switch {
	case errors.As(err, &fenced):
		reason.Err = fenced
	case errors.As(err, &behind):
		reason.Err = behind
	case errors.Is(err, runstore.ErrLeaseExpired):
		reason.Err = runstore.ErrLeaseExpired
	default:
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.lost == nil && !r.ended {
		r.lost = reason
		r.cancel(&lease.LostError{Run: r.lease.Run, Token: r.lease.Token, Reason: reason})
	}
}

// leases adapts the lease of one run to the store interface of a keeper.
type leases struct {
	run  *Run
	take func(ctx context.Context, ttl time.Duration) (taken, error)
	// refused cancels the keeper's attempts to acquire the lease after a final error.
	refused context.CancelCauseFunc
}

// AcquireLease requests the lease once. BeginRun and ResumeRun return a new grant each time: if a
// reply is lost, the grant of the repeat counts.
func (l *leases) AcquireLease(ctx context.Context, req runstore.AcquireRequest) (runstore.Granted, error) {
	answer, err := l.take(ctx, req.TTL)
	if final(err) {
		l.refused(err)
	}
	if err != nil {
		return runstore.Granted{}, err
	}
	r := l.run
	r.taken = answer
	r.lease = runstore.Lease{
		Run: runstore.RunID(answer.id), Owner: runstore.Owner(answer.grant.GetOwner()), TTL: req.TTL,
		Token: runstore.Token(answer.grant.GetToken()), Grant: runstore.GrantID(answer.grant.GetGrantId()),
	}
	live := answer.status == tapepb.RunStatus_RUN_STATUS_RUNNING || answer.status == tapepb.RunStatus_RUN_STATUS_COMPENSATING
	switch {
	case answer.grant != nil:
		return runstore.Granted{Lease: r.lease}, nil
	case answer.heartbeat && live: // this process already drives the run
		held := &runstore.LeaseHeldError{Holder: runstore.Holder{Owner: req.Owner}, Remaining: req.TTL}
		return runstore.Granted{}, &Error{OpError: &runstore.OpError{Op: "take lease", Run: r.lease.Run, Err: held}}
	case live:
		return runstore.Granted{}, &Error{OpError: &runstore.OpError{
			Op: "take lease", Run: r.lease.Run,
			Err: &runstore.InputError{Kind: runstore.ErrUnsupported, Field: "grant", Problem: "the server grants no leases"},
		}}
	default:
		return runstore.Granted{}, &Error{OpError: &runstore.OpError{
			Op: "take lease", Run: r.lease.Run, Err: &EndedError{Status: answer.status},
		}}
	}
}

// RenewLease sends a heartbeat: ResumeRun under the fence. If the driver itself has ended the
// grant, there is nothing to renew.
func (l *leases) RenewLease(ctx context.Context, req runstore.RenewRequest) (runstore.Renewed, error) {
	r := l.run
	beat := &tapepb.ResumeRunRequest{
		RunId: r.ID(), LeaseOwner: r.client.opts.Owner, LeaseTtlMs: req.TTL.Milliseconds(), Fence: r.fence(),
	}
	if !r.enter(ctx) {
		return runstore.Renewed{}, notSent(ctx, "ResumeRun", beat)
	}
	defer func() { <-r.ending }()
	if r.hasEnded() {
		return runstore.Renewed{Lease: r.lease}, nil
	}
	answer := &tapepb.ResumeRunResponse{}
	if err := r.client.attempt(ctx, tapepb.Tape_ResumeRun_FullMethodName, beat, answer); err != nil {
		return runstore.Renewed{}, err
	}
	if answer.GetGrant() == nil { // a server without fences returns no grant for a run that has ended
		return runstore.Renewed{}, &Error{OpError: &runstore.OpError{
			Op: "ResumeRun", Run: r.lease.Run, Err: &runstore.FencedError{Presented: r.lease.Token, Current: r.lease.Token},
		}}
	}
	return runstore.Renewed{Lease: r.lease}, nil
}

// ReleaseLease sends nothing, as the protocol cannot release a lease: either the work has ended the
// grant, or it expires. It returns the error if a write of the work was fenced.
func (l *leases) ReleaseLease(context.Context, runstore.ReleaseRequest) (runstore.Committed, error) {
	l.run.mu.Lock()
	defer l.run.mu.Unlock()
	return runstore.Committed{}, l.run.lost
}

func (r *Run) hasEnded() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ended
}
