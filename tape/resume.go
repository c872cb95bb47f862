package tape

import (
	"context"
	"errors"
	"time"

	"github.com/tapestore/tapestore/crossrun"
	"github.com/tapestore/tapestore/internal/optimistic"
	"github.com/tapestore/tapestore/runstore"
)

// ResumeRunRequest is the input of ResumeRun.
type ResumeRunRequest struct {
	Run runstore.RunID
	// Owner names the driver; it may be empty. A renewal keeps the owner of the grant.
	Owner string
	// Reactor is the role in which the driver holds the lease, for example "recovery". Empty means
	// "agent". A renewal keeps the role of the grant.
	Reactor string
	// TTL is how long the lease lasts. 0 or less means two minutes; more than runstore.MaxTTL means
	// MaxTTL.
	TTL time.Duration
	// Takeover is TakeAny by default.
	Takeover Takeover
	// Fence, if presented, must be the current grant, which is then renewed.
	Fence runstore.Fence
	// RenewExpired also treats a request without a fence, by the owner of the last grant, as a
	// heartbeat after that lease has expired, unless another driver has taken it.
	RenewExpired bool
	// Former, if presented, is a grant of the caller that has ended. The request is then a late
	// heartbeat: after a later grant of the run it takes no lease, live or not.
	Former runstore.Fence
}

// ResumeRun makes a run RUNNING and grants its lease to the caller, or renews it. It returns the
// new state of the run.
//
//   - With the fence of the current grant it is a heartbeat: the same grant, a later expiry.
//   - Without a fence, by the owner of the live lease, it is a heartbeat too. Two processes may use
//     the same owner name, so the caller gets no grant, and no authority that it did not have. With
//     RenewExpired the lease need not be live.
//   - Otherwise it takes the lease, live or not, under a new token.
//   - A run that has ended is returned unchanged, without a grant. So is a run that waits at a gate
//     and has no signal to consume, because a heartbeat may arrive after the driver has parked the
//     run. BeginRun takes such a run, and so does ResumeRun with TakeNone, which is no heartbeat.
//   - A run that is COMPENSATING stays so.
//
// Two round trips, two more for a heartbeat without a fence, and one more for a run that is WAITING.
//
// Errors: ErrNoSuchRun; runstore.ErrFenced for a fence that is not current, and for a former grant after
// a later one whose lease is not live; runstore.ErrLeaseHeld if Takeover does not allow to end the live
// lease, and for a former grant while a later one is live.
func (t *Tape) ResumeRun(ctx context.Context, req ResumeRunRequest) (Run, runstore.Lease, error) {
	if err := checkRun(req.Run); err != nil {
		return Run{}, runstore.Lease{}, err
	}
	spec, err := leaseSpec(req.Owner, req.Reactor, req.TTL)
	if err != nil {
		return Run{}, runstore.Lease{}, err
	}
	if !req.Fence.IsZero() {
		return t.renew(ctx, req.Run, req.Fence, spec.TTL)
	}
	var lost error
	for range optimistic.MaxAttempts {
		head, err := t.store.GetRun(ctx, req.Run)
		if err != nil {
			return Run{}, runstore.Lease{}, noSuchRun(err)
		}
		run, err := runOf(head)
		if err != nil || run.Status.ended() {
			return run, runstore.Lease{}, err
		}
		late := !req.Former.IsZero()
		if late && head.Token != req.Former.Token() {
			return Run{}, runstore.Lease{}, t.refuseFormer(ctx, head, req.Former)
		}
		if run.Status == RunWaiting && (late || req.Takeover != TakeNone) {
			if parked, err := t.isParked(ctx, req.Run); err != nil || parked {
				return run, runstore.Lease{}, err
			}
		}
		var fence runstore.Fence
		if req.Takeover != TakeNone {
			fence, err = t.heartbeatFence(ctx, head, spec.Owner, req.RenewExpired)
		}
		if err == nil && !fence.IsZero() {
			run, _, err = t.renew(ctx, req.Run, fence, spec.TTL)
			if !errors.Is(err, runstore.ErrFenced) {
				return run, runstore.Lease{}, err
			}
			lost = err // another driver has taken the run over meanwhile
			continue
		}
		var granted runstore.Granted
		if err == nil {
			granted, err = t.acquire(ctx, head, spec, acquisition{why: "resume run by ", takeover: req.Takeover, last: late})
		}
		if err == nil {
			if run.Status != RunCompensating {
				run.Status = RunRunning
			}
			run.LastSeq, run.LeaseOwner, run.LeaseExpiresAt = granted.Committed.LastSeq, req.Owner, granted.ExpiresAt
			run.Token, run.Reactor = granted.Token, string(granted.Reactor)
			return run, granted.Lease, nil
		}
		if !errors.Is(err, runstore.ErrConflict) {
			return Run{}, runstore.Lease{}, err
		}
		lost = err
	}
	return Run{}, runstore.Lease{}, lost
}

// refuseFormer returns why a former grant of a run gets no lease: ErrLeaseHeld for a live lease, else
// ErrFenced.
func (t *Tape) refuseFormer(ctx context.Context, head runstore.Run, former runstore.Fence) error {
	now, err := t.store.Now(ctx)
	switch {
	case err != nil:
		return err
	case head.Live(now):
		return &runstore.LeaseHeldError{Holder: head.Holder, Remaining: head.Holder.ExpiresAt.Sub(now)}
	default:
		return &runstore.FencedError{Presented: former.Token(), Current: head.Token, Holder: head.Holder}
	}
}

// renew extends the grant of f and makes sure that the run is RUNNING.
func (t *Tape) renew(ctx context.Context, id runstore.RunID, f runstore.Fence, ttl time.Duration) (Run, runstore.Lease, error) {
	if err := t.admit("ResumeRun", id, f); err != nil {
		return Run{}, runstore.Lease{}, err
	}
	renewed, err := optimistic.Repeat(ctx, func() (runstore.Renewed, error) {
		return t.store.RenewLease(ctx, runstore.RenewRequest{Fence: f, TTL: ttl})
	})
	if err != nil {
		return Run{}, runstore.Lease{}, noSuchRun(err)
	}
	head, err := t.store.GetRun(ctx, id)
	if err != nil {
		return Run{}, runstore.Lease{}, noSuchRun(err)
	}
	if head.Token != f.Token() { // the run was taken over after the renewal
		return Run{}, runstore.Lease{}, &runstore.FencedError{Presented: f.Token(), Current: head.Token, Holder: head.Holder}
	}
	run, err := runOf(head)
	if err == nil && run.Status != RunRunning && run.Status != RunCompensating {
		// Only a write without a fence can have changed the status under a current grant. The
		// heartbeat sets the status back, under the fence.
		b := runstore.NewBatch(id, f)
		b.Writes = RunRunning.writes()
		if _, err = t.commit(ctx, b); err == nil {
			run.Status = RunRunning
		}
	}
	return run, renewed.Lease, err
}

// EndRunRequest is the input of EndRun.
type EndRunRequest struct {
	Run runstore.RunID
	// Status is the run's new status; any number is stored unchanged.
	Status RunStatus
	// Detail is stored with the run, up to [MaxDetail] bytes.
	Detail string
	Fence  runstore.Fence
}

// method returns the name under which [Authorities] lists the request.
func (req EndRunRequest) method() string {
	if req.Status == RunCancelled {
		return "EndRun(CANCELLED)"
	}
	return "EndRun"
}

// EndRun sets a run's status, journals the end and releases the run's lease, whether the caller's
// or another driver's, in one commit. It does so at every call. COMPENSATING under a fence keeps
// the lease: the driver continues to unwind the run and ends it with another call. A run that is
// TERMINAL, FAILED, CANCELLED or STUCK may be compacted. EndRun returns the new state of the run.
// Two round trips: the summary is read before it is written.
//
// Errors: ErrNoSuchRun; runstore.ErrFenced.
func (t *Tape) EndRun(ctx context.Context, req EndRunRequest) (Run, error) {
	if err := t.admit(req.method(), req.Run, req.Fence); err != nil {
		return Run{}, err
	}
	detail := field{"detail_json", req.Detail}
	if err := checkText(detail); err != nil {
		return Run{}, err
	}
	if err := checkLength(detail.name, detail.text, MaxDetail); err != nil {
		return Run{}, err
	}
	retries, err := t.retries(ctx, runstore.SummaryKey, req.Run)
	if err != nil {
		return Run{}, err
	}
	defer retries.leave()
	compacted := false
	for {
		run, version, err := t.readRun(ctx, req.Run)
		if err != nil {
			return Run{}, err
		}
		run.Detail, run.Status = req.Detail, req.Status
		entry, value := run.entry(endWord(req.Status)), run.encode(true)
		b := guards(req.Run, req.Fence, runstore.AtVersion(runstore.SummaryKey, version))
		b.Writes = req.Status.writes()
		b.Append(kindRun, entry)
		places := run.places()
		if req.Status.ended() && !compacted {
			places = append(places, runstore.Place{Index: IndexEnded, At: runstore.After(0)})
			b.Require(runstore.AtVersion(compactionKey, 0))
		}
		putSummary(&b.Writes, value, places...)
		// A driver that unwinds its run keeps the lease until its final EndRun.
		if b.Release = req.Status != RunCompensating || req.Fence.IsZero(); b.Release {
			b.Require(crossrun.Idle())
		}
		done, err := t.commit(ctx, b)
		if err == nil {
			run.LastSeq, run.EndedAt = done.LastSeq, done.Time
			if b.Release {
				run.LeaseOwner, run.Reactor = "", ""
			}
			return run, nil
		}
		if !errors.Is(err, runstore.ErrConflict) {
			return Run{}, err
		}
		if meetsCompaction(err) {
			if _, err := t.awaitCompaction(ctx, req.Run); err != nil {
				return Run{}, err
			}
			compacted = true // a compaction is never undone
		}
		if meetsStep(err) {
			if err := t.endStep(ctx, req.Run, req.Fence); err != nil {
				return Run{}, err
			}
		}
		if err := retries.next(ctx, err); err != nil {
			return Run{}, err
		}
	}
}

// endWord returns the journal's word for a status that ends a run.
func endWord(s RunStatus) string {
	switch s {
	case RunTerminal:
		return "terminal"
	case RunFailed:
		return "failed"
	case RunStuck:
		return "stuck"
	case RunCancelled:
		return "cancelled"
	case RunCompensating:
		return "compensating"
	default:
		return "ended"
	}
}
