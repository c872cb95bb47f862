package matcher

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/tapestore/tapestore/internal/pace"
	"github.com/tapestore/tapestore/lease"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tape"
)

// reactor is the role in which a replica holds the lease of a shard.
const reactor = "matcher"

// shard is one shard of a reaction, which this replica drives or waits for.
type shard struct {
	reaction *reaction
	number   int32
	ctx      context.Context // ends with the reaction, with Run, and when the reaction has fewer shards
	cancel   context.CancelFunc

	// Used only by the shard's goroutine.
	id    runstore.RunID   // the shard's run; "" before it is opened
	grant runstore.GrantID // the grant id of a request whose outcome is unknown; else ""

	stalled atomic.Bool // a warning was logged and no recovery since
}

// run requests the shard's lease, first after wait, and drives the shard whenever it holds the
// lease.
func (s *shard) run(wait time.Duration) {
	defer s.cancel()
	defer s.unstall()
	fails := backoff{}
	for pace.Pause(s.ctx, wait) {
		var err error
		wait, err = s.turn()
		if err != nil && s.ctx.Err() == nil {
			wait = fails.next()
			s.warn(err, wait, fails.count)
			continue
		}
		fails = backoff{}
	}
}

// turn requests the lease once and, if it is granted, drives the shard under it. It returns the
// time until the next turn.
func (s *shard) turn() (wait time.Duration, err error) {
	m := s.reaction.m
	if s.id == "" {
		err := m.request(s.ctx, func(ctx context.Context) (err error) {
			s.id, err = m.tape.OpenShard(ctx, s.reaction.current().Reaction, s.number)
			return err
		})
		if err != nil {
			s.id = ""
			return 0, err
		}
	}
	repeated := s.grant != ""
	if !repeated {
		s.grant = runstore.NewGrantID()
	}
	var granted lease.Granted
	err = m.request(s.ctx, func(ctx context.Context) (err error) {
		granted, err = m.keeper.TryAcquire(ctx, runstore.AcquireRequest{
			Run:       s.id,
			LeaseSpec: runstore.LeaseSpec{Owner: runstore.Owner(m.opts.Owner), Reactor: reactor, Grant: s.grant},
		})
		return err
	})
	if runstore.OutcomeOf(err) == runstore.Unknown || repeated && errors.Is(err, runstore.ErrUnavailable) {
		return 0, err // the next turn repeats the request
	}
	s.grant = ""
	var held *runstore.LeaseHeldError
	switch {
	case err == nil:
	case errors.As(err, &held) && string(held.Holder.Owner) == m.opts.Owner:
		return firstPause, nil // this replica's earlier lease is being released, or expires
	case errors.As(err, &held):
		s.unstall() // another replica drives the shard
		return m.spread.wait(s, string(held.Holder.Owner), held.Remaining), nil
	case repeated && errors.Is(err, runstore.ErrFenced):
		return 0, nil // the earlier request was granted, and the grant has ended since
	default:
		if errors.Is(err, runstore.ErrNotFound) {
			s.id = ""
		}
		return 0, err
	}
	if repeated {
		granted.Sent = time.Time{} // the first request may have been granted long ago
	}
	m.spread.grant(s)
	defer m.spread.end()
	err = m.keeper.Hold(s.ctx, granted, s.drive)
	if s.ctx.Err() != nil {
		return 0, nil
	}
	m.opts.Logger.Warn("a replica lost the lease of a shard", "reaction", s.reaction.current().ID, "shard", s.number,
		"run", s.id, "owner", m.opts.Owner, "token", granted.Lease.Token, "error", err)
	return pace.Jitter(m.opts.TTL / 4), nil
}

// drive follows the feed under the lease until ctx ends or the store refuses the lease. After any
// other failure it reads the cursor again and continues from there.
func (s *shard) drive(ctx context.Context, held *lease.Held) error {
	fails := backoff{}
	for {
		advanced, err := s.follow(ctx, held.Fence())
		switch {
		case ctx.Err() != nil:
			return nil // Hold returns the reason
		case leaseLost(err):
			return err
		case advanced:
			fails = backoff{}
		}
		wait := fails.next()
		s.warn(err, wait, fails.count)
		if !pace.Pause(ctx, wait) {
			return nil
		}
	}
}

// follow follows the feed from the shard's cursor, and reports whether the cursor has moved.
func (s *shard) follow(ctx context.Context, fence runstore.Fence) (advanced bool, err error) {
	m := s.reaction.m
	f := &follower{shard: s, ctx: ctx, fence: fence, left: make(chan error, 1), history: m.tail.FeedHistory(), committed: time.Now()}
	err = m.request(ctx, func(ctx context.Context) (err error) {
		f.cursor, err = m.tape.ShardCursor(ctx, s.id)
		return err
	})
	if err != nil {
		return false, err
	}
	for {
		if err := f.settle(); err != nil {
			return f.advanced, err
		}
		f.read, f.passed = f.cursor.Position, 0
		s.reaction.join(f)
		var why error
		select {
		case <-ctx.Done():
			s.reaction.leave(f)
		case why = <-f.left:
		}
		f.busy.Wait()
		if why != errSlow || ctx.Err() != nil {
			return f.advanced, why
		}
	}
}

// leaseLost reports whether err says that the grant under which a write was made is not the current
// one.
func leaseLost(err error) bool {
	switch runstore.KindOf(err) {
	case runstore.ErrFenced, runstore.ErrLeaseExpired, runstore.ErrStoreBehind, runstore.ErrNotFound:
		return true
	default:
		return errors.Is(err, tape.ErrNoSuchRun)
	}
}

// warn logs why the shard stalls; other shards continue. An error that is usually transient is
// logged as a warning only if it persists.
func (s *shard) warn(err error, wait time.Duration, failures int) {
	level := slog.LevelWarn
	switch runstore.KindOf(err) {
	case runstore.ErrUnavailable, runstore.ErrUnknownOutcome, runstore.ErrConflict:
		if failures < 3 {
			level = slog.LevelDebug
		}
	}
	if level == slog.LevelWarn {
		s.stall()
	}
	s.reaction.m.opts.Logger.Log(s.ctx, level, "a shard of a reaction stalls, and is tried again",
		"reaction", s.reaction.current().ID, "shard", s.number, "pause", wait, "error", err)
}

// recovered logs that the shard continues after a warning.
func (s *shard) recovered() {
	if s.unstall() {
		s.reaction.m.opts.Logger.Info("a shard of a reaction resumes", "reaction", s.reaction.current().ID, "shard", s.number)
	}
}

// backoff counts consecutive failures.
type backoff struct{ count int }

// next counts a failure and returns the pause after it.
func (b *backoff) next() time.Duration {
	b.count++
	return pace.Jitter(min(2*firstPause<<min(b.count-1, 16), lastPause))
}

// LeaseVector describes the lease of a replica on a shard of a reaction.
func LeaseVector() runstore.LeaseVector {
	return runstore.LeaseVector{
		Substrate:   "the lease of one run for each shard of a reaction",
		Payload:     "the engine's; the owner is the replica, and the shard's cursor is a record",
		Enforcement: "by the store, at each advance: the tasks and the cursor past their entries are one step under the fence",
		Token:       "the run's",
		Handoff:     "release, or expiry; replicas with fewer shards ask first",
	}
}
