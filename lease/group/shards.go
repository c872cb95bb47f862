package group

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/tapestore/tapestore/crossrun"
	"github.com/tapestore/tapestore/internal/pace"
	"github.com/tapestore/tapestore/lease"
	"github.com/tapestore/tapestore/runstore"
)

// ErrMoved is the cause of the end of a shard's work when the shard was assigned to another member.
var ErrMoved = errors.New("the shard was assigned to another member")

// ShardWork drives one shard under the lease of its run. It must return soon after ctx has ended, so
// that the next owner can start. Every write to the shard's run presents held.Fence().
type ShardWork func(ctx context.Context, held *lease.Held, shard int) error

// proposeSpread is within which time after a change each member may commit the new assignment. The
// first commit is announced, so that few try.
const proposeSpread = 200 * time.Millisecond

// Shards shares n shards, 0 to n-1, with the other members that call it with the same n, from 1 to
// [MaxShards], and runs work for each shard that this member owns, until ctx or the membership ends.
// Only one call may be active.
//
// Who owns a shard is a record of the group's run ([Group.Assignment]). Once a change of the members
// has lasted for Options.Hysteresis, one of them commits a new assignment: loads of n/k, rounded up or
// down, with the fewest moves. A member acquires the lease of each shard's run that it owns, completes
// a step over two runs that the former owner left ([crossrun.Recover]), and runs work. The context of
// work ends with the cause [ErrMoved] when the shard is assigned to another member, which acquires the
// lease as soon as work has returned. The store accepts the writes of one owner at a time (I3).
//
// Work that returns although its context has not ended is run again, after a pause of 0.05 to 1 times
// Options.Interval, doubling. So is work whose lease was lost, for as long as the shard is assigned to
// this member. A panic of work ends the process, as in any goroutine.
//
// When ctx ends, Shards has the other members take the shards over, waits for work and for requests in
// flight, and returns ctx's cause. It returns earlier, with an error that matches runstore.ErrInvalid, if members of the group
// share another number of shards. Once no member shares that number, it can be changed.
func (m *Membership) Shards(ctx context.Context, n int, work ShardWork) error {
	if err := invalidIf(n < 1 || n > MaxShards, "shards", "%d is out of range, the limits are 1 and %d", n, MaxShards); err != nil {
		return err
	}
	ctx, cancel := mergeContexts(ctx, m.ctx)
	defer cancel()
	s := &shardSet{
		membership: m, n: n, work: work, logger: m.group.opts.Logger.With("group", m.group.name, "member", m.name),
		hysteresis: hysteresis{m.group.opts.Hysteresis, map[string]time.Time{}}, failed: make(chan error, 1),
		wanted: make([]bool, n), assigned: map[int]context.CancelCauseFunc{},
	}
	s.ctx, s.cancel = context.WithCancelCause(ctx)
	defer s.cancel(nil)
	if !m.shards.CompareAndSwap(nil, s) {
		return fmt.Errorf("group: the member %.64q runs its shards already", m.name)
	}
	defer m.shards.Store(nil)
	err := m.update(ctx, func(r *memberRecord) { r.Shards = n })
	if err != nil {
		err = errors.Join(context.Cause(ctx), err)
	} else {
		m.poller.request()
		select {
		case <-ctx.Done():
			err = context.Cause(ctx)
		case err = <-s.failed:
		}
	}
	s.end(err)
	// The other members wait for their hysteresis while the work of this one ends.
	m.ends.Add(1)
	if _, trusted := m.held.Trusted(); trusted {
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), announcementTimeout)
		defer cancel()
		m.withdraw(bounded)
	}
	if m.withdrawing() {
		m.poller.request()
	}
	s.running.Wait() // even after an error: an earlier assignment may have begun work
	return err
}

// shardSet is one call of Shards. Its method step runs on the goroutine of Membership.maintain, and
// each shard that is assigned to the member has a goroutine.
type shardSet struct {
	membership *Membership
	n          int
	work       ShardWork
	logger     *slog.Logger
	ctx        context.Context
	cancel     context.CancelCauseFunc
	failed     chan error
	running    sync.WaitGroup

	// Only step uses these.
	hysteresis hysteresis
	followed   runstore.Version // the generation that the shards follow
	proposeAt  time.Time        // when to commit a new assignment, on the store clock; zero if it fits

	mu       sync.Mutex
	ended    bool
	again    bool                            // a shard that was moved away and back has no goroutine
	wanted   []bool                          // the shards assigned to the member
	assigned map[int]context.CancelCauseFunc // ends the goroutine of a shard
}

// end ends the work on all shards.
func (s *shardSet) end(cause error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	s.cancel(cause)
}

func (s *shardSet) hasEnded() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ended
}

// step follows the assignment, and changes it if it does not fit the members. It returns the time until
// there is more to do.
func (s *shardSet) step(ctx context.Context, v view) (next time.Duration) {
	g := s.membership.group
	attempt, cancel := g.attempt(ctx)
	defer cancel()
	assignment, err := g.Assignment(attempt)
	if err != nil {
		if ctx.Err() == nil {
			s.logger.Warn("group: the assignment of shards could not be read", "error", err)
		}
		return g.opts.Interval / 5
	}
	present := map[string]bool{}
	for _, m := range v.members {
		if m.Shards == len(assignment.Owners) && m.Shards != s.n && assignment.Generation != 0 {
			s.fail(invalidIf(true, "shards", "%d: the member %.64q of the group shares %d", s.n, m.Name, m.Shards))
			return noBound
		}
		if m.Shards == s.n {
			present[m.Name] = true
		}
	}
	s.follow(assignment)
	var assigned []string
	if len(assignment.Owners) == s.n {
		assigned = assignment.members
	}
	want, next := s.hysteresis.observe(v.at, assigned, present)
	if slices.Equal(want, assigned) || !slices.Contains(want, s.membership.name) {
		s.proposeAt = time.Time{}
		return next
	}
	if s.proposeAt.IsZero() || s.proposeAt.Sub(v.at) > proposeSpread { // the clock was set back
		s.proposeAt = v.at.Add(rand.N(proposeSpread))
	}
	if wait := s.proposeAt.Sub(v.at); wait > 0 {
		return min(next, wait)
	}
	s.proposeAt = time.Time{}
	assignment, err = g.assign(ctx, s.membership.name, assignment, s.n, want)
	switch {
	case err == nil:
		s.follow(assignment)
		return next
	case ctx.Err() == nil && !errors.Is(err, runstore.ErrConflict):
		s.logger.Warn("group: the assignment of shards could not be changed", "error", err)
	}
	return min(next, proposeSpread) // after a conflict, another member has changed it
}

// fail ends the call of Shards with an error.
func (s *shardSet) fail(err error) {
	select {
	case s.failed <- err:
	default: // it has ended already
	}
}

// follow starts the work on the shards that are assigned to the member, and ends that on the others.
func (s *shardSet) follow(a Assignment) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended || a.Generation == s.followed && !s.again {
		return
	}
	s.followed, s.again = a.Generation, false
	for shard := range s.n {
		s.wanted[shard] = len(a.Owners) == s.n && a.Owners[shard] == s.membership.name
		end, assigned := s.assigned[shard]
		switch {
		case s.wanted[shard] && !assigned:
			s.start(shard)
		case !s.wanted[shard] && assigned:
			// The release that follows the end of the work is the handoff: the next owner waits for it in
			// hold. The assignment names it, so lease.Keeper.RequestHandoff would add only reads.
			end(ErrMoved)
		}
	}
}

// start starts the goroutine of a shard. The caller holds mu.
func (s *shardSet) start(shard int) {
	ctx, end := context.WithCancelCause(s.ctx)
	s.assigned[shard] = end
	s.running.Go(func() {
		defer func() {
			end(nil)
			s.mu.Lock()
			defer s.mu.Unlock()
			delete(s.assigned, shard)
			if s.wanted[shard] && !s.ended {
				s.again = true
				s.membership.poller.request()
			}
		}()
		s.run(ctx, shard)
	})
}

// run holds a shard until its context ends.
func (s *shardSet) run(ctx context.Context, shard int) {
	least, most := s.membership.group.opts.Interval/20, s.membership.group.opts.Interval
	for backoff := least; ; backoff = min(2*backoff, most) {
		began := time.Now()
		err := s.hold(ctx, shard)
		ended := ctx.Err() != nil
		if !ended || err != nil && !errors.Is(err, context.Cause(ctx)) && !errors.Is(err, ctx.Err()) {
			s.logger.Warn("group: the work on a shard ended with an error", "shard", shard, "run", s.membership.group.ShardRun(shard), "owner", s.membership.name, "error", err)
		}
		if time.Since(began) > most {
			backoff = least
		}
		if ended || !pace.Pause(ctx, pace.Jitter(backoff)) {
			return
		}
	}
}

// hold acquires the lease of a shard's run, waiting for the former owner, and runs the work.
func (s *shardSet) hold(ctx context.Context, shard int) error {
	g := s.membership.group
	req := runstore.AcquireRequest{
		Run:       g.ShardRun(shard),
		LeaseSpec: runstore.LeaseSpec{Owner: runstore.Owner(s.membership.name), Reactor: "group-shard"},
	}
	granted, err := g.keeper.Acquire(ctx, req)
	if errors.Is(err, runstore.ErrNotFound) {
		if err = g.create(ctx, req.Run); err == nil {
			granted, err = g.keeper.Acquire(ctx, req)
		}
	}
	if err != nil {
		return err
	}
	return g.keeper.Hold(ctx, granted, func(ctx context.Context, held *lease.Held) error {
		if err := recoverStep(ctx, g.store, held.Fence()); err != nil {
			held.Abandon() // the work has not run, and the former owner's may be unfinished
			return err
		}
		return s.work(ctx, held, shard)
	})
}

// recoveryTimeout bounds the recovery of a step: if the store never answered, the member would hold a
// shard that it does not work on.
const recoveryTimeout = 30 * time.Second

func recoverStep(ctx context.Context, store runstore.RunStore, f runstore.Fence) error {
	ctx, cancel := context.WithTimeout(ctx, recoveryTimeout)
	defer cancel()
	_, err := crossrun.Recover(ctx, store, f)
	return err
}
