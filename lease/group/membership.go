package group

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tapestore/tapestore/internal/optimistic"
	"github.com/tapestore/tapestore/internal/pace"
	"github.com/tapestore/tapestore/lease"
	"github.com/tapestore/tapestore/runstore"
)

// MemberSpec describes a member that joins.
type MemberSpec struct {
	// Name identifies the member. It is from 1 to [MaxName] bytes. A process that restarts under its
	// former name keeps the shards of that name.
	Name string
	// Attributes are what the other members and observers see, for example an address: up to
	// [MaxAttributes] bytes.
	Attributes []byte
	// TakeOver ends a live membership of the same name. Without it, Join waits for its end.
	TakeOver bool
}

// Membership is a member's own view of its membership while the work runs. It is safe for concurrent
// use.
type Membership struct {
	group   *Group
	name    string
	held    *lease.Held
	ctx     context.Context // that of the work
	holding context.Context // ends when the lease is lost or the work has returned
	poller  *poller

	shards          atomic.Pointer[shardSet] // of the call of Shards, if any
	ends, withdrawn atomic.Int64             // the number of ended calls of Shards, and of those whose end is recorded
}

// Join joins the group and runs work as a member; it leaves the group when work has returned.
//
// The membership is the lease of the run [Group.MemberRun]. If another process is a member under the
// same name, Join waits until its membership has ended, or ends it (MemberSpec.TakeOver). The end of
// the former membership, with its one event, is applied in the same atomic step as the grant.
//
// The context of work ends when ctx ends or when the membership is lost; then its cause is a
// lease.LostError. While work runs, the member also removes members that are dead. When work has
// returned, the removal of the member's record and the event with the reason [Released] are applied
// with the release of the lease, in one atomic step.
//
// Errors: runstore.ErrInvalid or ErrTooLarge for a bad name or attributes. Those of
// lease.Keeper.Acquire and lease.Keeper.Hold: a lost membership is a lease.LostError, and the error of
// work is joined to it. If ctx ends before the membership begins, its cause is returned, and work does
// not run; if the reply to the last request for the lease was lost too, a membership may have begun,
// and it ends by expiry.
//
// A process that was preempted does not take the name over again, unless an operator decides so:
// two processes that do both would take it over from each other for ever.
func (g *Group) Join(ctx context.Context, spec MemberSpec, work func(ctx context.Context, m *Membership) error) error {
	err := errors.Join(checkName("member", spec.Name),
		tooLargeIf(len(spec.Attributes) > MaxAttributes, "attributes", "%d bytes, the limit is %d", len(spec.Attributes), MaxAttributes))
	if err != nil {
		return err
	}
	record := memberRecord{Name: spec.Name, Attributes: slices.Clone(spec.Attributes)}
	granted, err := g.acquire(ctx, spec, record)
	if err != nil {
		return err
	}
	left := false
	// The context of Hold does not end with ctx, so that the membership always ends with its event.
	err = g.keeper.Hold(context.WithoutCancel(ctx), granted, func(held context.Context, h *lease.Held) error {
		var last runstore.Writes
		g.end(&last, spec.Name, Released, h.Fence().Token())
		last.Delete(memberKey)
		h.ReleaseWith(last)
		defer func() { left = held.Err() == nil }()

		workCtx, cancel := mergeContexts(held, ctx)
		defer cancel()
		if workCtx.Err() != nil {
			return context.Cause(workCtx)
		}
		g.announce(workCtx)
		m := &Membership{group: g, name: spec.Name, held: h, ctx: workCtx, holding: held}
		maintained, stop := context.WithCancel(workCtx)
		m.poller = g.newPoller(maintained)
		var maintenance sync.WaitGroup
		maintenance.Go(func() { m.maintain(maintained) })
		defer maintenance.Wait()
		defer stop()
		return work(workCtx, m)
	})
	if left {
		g.announce(ctx)
	}
	return err
}

// mergeContexts returns a context with the values of a that ends, with its cause, when a or b ends.
func mergeContexts(a, b context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(a)
	if b.Err() != nil { // AfterFunc would end ctx a moment later
		cancel(context.Cause(b))
	}
	stop := context.AfterFunc(b, func() { cancel(context.Cause(b)) })
	return ctx, func() {
		stop()
		cancel(nil)
	}
}

// acquire acquires the lease of a member's run with the writes that begin the membership.
func (g *Group) acquire(ctx context.Context, spec MemberSpec, record memberRecord) (lease.Granted, error) {
	run := g.MemberRun(spec.Name)
	for conflicts := 0; ; {
		req, err := g.joinRequest(ctx, spec, record)
		if err == nil {
			var granted lease.Granted
			if granted, err = g.keeper.Acquire(ctx, req); err == nil {
				return granted, nil
			}
		}
		switch {
		case ctx.Err() != nil:
			return lease.Granted{}, errors.Join(context.Cause(ctx), err)
		case errors.Is(err, runstore.ErrNotFound):
			if err := g.create(ctx, run); err != nil {
				return lease.Granted{}, err
			}
		case errors.Is(err, runstore.ErrConflict), errors.Is(err, runstore.ErrFenced), errors.Is(err, lease.ErrLost):
			// Another process was faster, or the membership of a lost reply has ended already. That is
			// progress of the group, so a short pause is enough.
			conflicts = min(conflicts+1, 50)
			if !pace.Pause(ctx, rand.N(time.Duration(conflicts)*20*time.Millisecond)) {
				return lease.Granted{}, context.Cause(ctx)
			}
		default:
			return lease.Granted{}, err
		}
	}
}

// joinRequest returns the request that begins a membership, and ends the former one, if any, in the
// same step. Its guards make it void once the run's lease or record has changed.
//
// The reason of the former end: the store grants a request without Preempt only if the lease is not
// live. A request with Preempt follows a read that found the lease live.
func (g *Group) joinRequest(ctx context.Context, spec MemberSpec, record memberRecord) (req runstore.AcquireRequest, err error) {
	var head runstore.Run
	var now time.Time
	err = g.retry(ctx, func(ctx context.Context) error {
		if now, err = g.store.Now(ctx); err == nil {
			head, err = g.store.GetRun(ctx, g.MemberRun(spec.Name))
		}
		return err
	})
	if err != nil {
		return req, err
	}
	req = runstore.AcquireRequest{
		Run:       head.ID,
		LeaseSpec: runstore.LeaseSpec{Owner: runstore.Owner(spec.Name), Reactor: "group-member"},
		Guards:    []runstore.Guard{runstore.AtToken(head.Token), runstore.AtVersion(memberKey, head.Summary.Version)},
	}
	reason := reasonOf(head, head.Summary)
	if spec.TakeOver {
		req.Preempt = "a process of the same name took over"
		if head.Live(now) && head.Token == head.Summary.Updated.Token {
			reason = Preempted
		}
	}
	if head.Summary.Version != 0 {
		g.end(&req.Writes, spec.Name, reason, head.Summary.Updated.Token)
	}
	event := req.Writes.Append(EventJoined, encode(Joined{Group: g.name, Member: spec.Name}))
	g.put(&req.Writes, record)
	req.Writes.Records[0].Event = event
	return req, nil
}

// put adds a put of a member's record.
func (g *Group) put(w *runstore.Writes, record memberRecord) {
	w.Put(memberKey, encode(record), runstore.Place{Index: g.index(), At: runstore.After(0)})
}

// Name returns the member's name.
func (m *Membership) Name() string { return m.name }

// Fence returns the fence of the membership's lease, for writes to the member's run and for
// transactions that only a member may commit.
func (m *Membership) Fence() runstore.Fence { return m.held.Fence() }

// Trusted reports whether the process may still rely on its membership, and until when, as
// [lease.Held.Trusted] does.
func (m *Membership) Trusted() (until time.Time, ok bool) { return m.held.Trusted() }

// SetAttributes replaces the member's attributes, up to [MaxAttributes] bytes. A write whose reply is
// lost is repeated under its id until ctx or the membership ends. The errors are those of
// runstore.RunStore.Commit: ErrFenced if the membership is over.
func (m *Membership) SetAttributes(ctx context.Context, attributes []byte) error {
	if err := tooLargeIf(len(attributes) > MaxAttributes, "attributes", "%d bytes, the limit is %d", len(attributes), MaxAttributes); err != nil {
		return err
	}
	var cancel context.CancelFunc
	if m.holding.Err() == nil {
		ctx, cancel = mergeContexts(ctx, m.holding)
	} else { // one attempt, which the store refuses
		ctx, cancel = m.group.attempt(ctx)
	}
	defer cancel()
	return m.update(ctx, func(r *memberRecord) { r.Attributes = slices.Clone(attributes) })
}

// update changes the member's record. The write is guarded by the version that was read, so a late copy
// of it replaces no newer record.
func (m *Membership) update(ctx context.Context, change func(*memberRecord)) error {
	run := m.held.Fence().Run()
	for conflicts := 0; ; conflicts++ {
		var head runstore.Run
		err := m.group.retry(ctx, func(ctx context.Context) (err error) {
			head, err = m.group.store.GetRun(ctx, run)
			return err
		})
		if err != nil {
			return err
		}
		record := memberRecord{Name: m.name}
		if head.Summary.Version != 0 { // else the membership is over, and the fence is refused
			if err := json.Unmarshal(head.Summary.Value, &record); err != nil {
				return fmt.Errorf("group: the record of the member %.64q cannot be read: %w", m.name, err)
			}
		}
		change(&record)
		b := runstore.NewBatch(run, m.held.Fence(), runstore.AtVersion(memberKey, head.Summary.Version))
		m.group.put(&b.Writes, record)
		switch _, err = m.group.commit(ctx, b); {
		case errors.Is(err, runstore.ErrConflict): // with another call of this process, or a late copy
			if err := optimistic.Rest(ctx, conflicts, err); err != nil {
				return err
			}
		case err == nil:
			m.group.announce(ctx)
			return nil
		default:
			return err
		}
	}
}

// withdrawing reports whether the end of a call of Shards is not recorded yet. Then maintain records it: until
// then no other member takes the shards over.
func (m *Membership) withdrawing() bool { return m.ends.Load() != m.withdrawn.Load() }

// withdraw records that the member runs no shards, unless it has begun to share them again.
func (m *Membership) withdraw(ctx context.Context) {
	ends := m.ends.Load()
	err := m.update(ctx, func(r *memberRecord) {
		if s := m.shards.Load(); s == nil || s.hasEnded() {
			r.Shards = 0
		}
	})
	if err == nil {
		m.withdrawn.Store(ends)
	} else {
		m.group.opts.Logger.Debug("group: the end of the shards was not recorded", "group", m.group.name, "member", m.name, "error", err)
	}
}

// maintain reads the group until ctx ends. It removes dead members, and has the shards follow the
// members.
func (m *Membership) maintain(ctx context.Context) {
	schedule := reapSchedule{}
	for next := noBound; ; {
		v, err := m.poller.next(ctx, next)
		if err != nil { // of a closed store: the lease is lost soon
			if !pace.Pause(ctx, m.group.opts.Interval) {
				return
			}
			continue
		}
		next = noBound
		if shards := m.shards.Load(); shards != nil {
			next = shards.step(ctx, v)
		}
		if m.withdrawing() {
			attempt, cancel := m.group.attempt(ctx)
			m.withdraw(attempt)
			cancel()
			next = min(next, m.group.opts.Interval/5)
		}
		next = min(next, m.group.reap(ctx, schedule, v))
	}
}
