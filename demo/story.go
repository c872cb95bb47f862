package main

import (
	"context"
	"fmt"
	"time"

	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

// The points of the story at which a driver is lost.
const (
	// inFlight is the ending of the key of the effect in which worker-1 is killed.
	inFlight = "/decision-0/wire_sweep/0"
	// pausedBefore is the tool before whose call worker-2 is stopped.
	pausedBefore = "hedge_buy"
	// heartbeats is how many of them worker-2 makes before it is stopped.
	heartbeats = 2
)

// play plays the story and returns what was seen. What went so wrong that there is
// nothing to check is an error.
func (s *stage) play(ctx context.Context) (seen evidence, err error) {
	seen.TTL = s.opts.ttl
	// A write that presents no fence would show.
	if err := s.startServer(ctx, "--fence", "required"); err != nil {
		return seen, err
	}
	if err := s.startBank(ctx, inFlight); err != nil {
		return seen, err
	}
	if err := s.killInMidEffect(ctx, &seen); err != nil {
		return seen, err
	}
	zombie, err := s.takeOverAndPause(ctx, &seen)
	if err != nil {
		return seen, err
	}
	if err := s.takeOverAndFinish(ctx, &seen); err != nil {
		return seen, err
	}
	if err := s.wake(ctx, zombie, &seen); err != nil {
		return seen, err
	}
	if seen.Bank, err = s.teller.ledger(ctx); err != nil {
		return seen, fmt.Errorf("the bank's ledger: %w", err)
	}
	if err := s.stopServer(ctx); err != nil {
		return seen, err
	}
	return seen, seen.readStore(ctx, s.database())
}

// killInMidEffect has worker-1 begin the run, and kills it while the bank holds the
// reply to an operation that it has applied.
func (s *stage) killInMidEffect(ctx context.Context, seen *evidence) error {
	p, err := s.startWorker("worker-1")
	if err != nil {
		return err
	}
	began, err := p.await(ctx, holding)
	if err != nil {
		return err
	}
	seen.RunID = began.Run
	applied, err := s.bank.await(ctx, held)
	if err != nil {
		return err
	}
	seen.Killed.Key = applied.Key
	p.kill()
	s.out.act("worker-1 is killed with SIGKILL: the money has moved, and nobody has noted it")
	seen.Killed.Exit = p.status()
	if seen.Killed.Bank, err = s.teller.ledger(ctx); err != nil {
		return err
	}
	e, err := s.tape.GetEffect(ctx, &tapepb.GetEffectRequest{RunId: seen.RunID, IdempotencyKey: applied.Key})
	if err != nil {
		return callError("GetEffect", err)
	}
	seen.Killed.Effect = e.GetEffect().GetStatus()
	seen.Killed.LeaseUntil, err = s.leaseUntil(ctx, seen.RunID)
	return err
}

// takeOverAndPause has worker-2 take over, and stops it between having put an effect
// on file and acting on it, when its heartbeats have prolonged its lease.
func (s *stage) takeOverAndPause(ctx context.Context, seen *evidence) (*process, error) {
	p, err := s.startWorker("worker-2", "-recover", "-pause", pausedBefore, "-insist")
	if err != nil {
		return nil, err
	}
	at, err := p.await(ctx, waiting)
	if err != nil {
		return nil, err
	}
	seen.Zombie.Key = at.Key
	for range heartbeats {
		if _, err := p.await(ctx, renewed); err != nil {
			return nil, err
		}
	}
	if err := freeze(p.cmd.Process); err != nil {
		return nil, fmt.Errorf("stop worker-2: %w", err)
	}
	seen.Zombie.pausedAt = time.Now()
	s.out.act("worker-2 is stopped with SIGSTOP, about to call the bank for " + pausedBefore)
	seen.Zombie.LeaseUntil, err = s.leaseUntil(ctx, seen.RunID)
	return p, err
}

// takeOverAndFinish has worker-3 take over and end the run.
func (s *stage) takeOverAndFinish(ctx context.Context, seen *evidence) error {
	p, err := s.startWorker("worker-3", "-recover")
	if err != nil {
		return err
	}
	if _, err := p.wait(ctx); err != nil {
		return err
	}
	seen.FinisherExit = p.cmd.ProcessState.ExitCode()
	if seen.FinisherExit != exitDone {
		return fmt.Errorf("worker-3 did not finish the run: %s%s", p.status(), p.errors)
	}
	return nil
}

// wake lets worker-2 go on, and waits until it has stopped by itself.
func (s *stage) wake(ctx context.Context, p *process, seen *evidence) (err error) {
	if seen.Zombie.Before, err = s.run(ctx, seen.RunID); err != nil {
		return err
	}
	// worker-3 needed nothing but the end of the lease, which may have been half over
	// already. The sleep is to outlast a whole one.
	left := time.NewTimer(time.Until(seen.Zombie.pausedAt.Add(s.opts.ttl + s.opts.ttl/10)))
	defer left.Stop()
	select {
	case <-left.C:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	// It finds the word to go on when it wakes up.
	if _, err := fmt.Fprintln(p.stdin, "go"); err != nil {
		return fmt.Errorf("wake worker-2: %w", err)
	}
	s.out.act("worker-2 is woken with SIGCONT; it does not know that it slept")
	seen.Zombie.Paused = time.Since(seen.Zombie.pausedAt)
	if err := thaw(p.cmd.Process); err != nil {
		return fmt.Errorf("wake worker-2: %w", err)
	}
	said, err := p.wait(ctx)
	if err != nil {
		return fmt.Errorf("worker-2 did not stop by itself: %w", err)
	}
	for _, r := range said {
		if r.Attempt != nil {
			seen.Zombie.Attempts = append(seen.Zombie.Attempts, *r.Attempt)
		}
	}
	seen.Zombie.Exit = p.cmd.ProcessState.ExitCode()
	seen.Zombie.After, err = s.run(ctx, seen.RunID)
	return err
}

// leaseUntil returns when the run's lease is over, by the store's clock.
func (s *stage) leaseUntil(ctx context.Context, id string) (time.Time, error) {
	r, err := s.run(ctx, id)
	return time.UnixMilli(r.GetLeaseExpiresAtMs()), err
}

// run returns the run as it stands.
func (s *stage) run(ctx context.Context, id string) (*tapepb.RunState, error) {
	r, err := s.tape.GetRun(ctx, &tapepb.GetRunRequest{RunId: id})
	return r, callError("GetRun", err)
}
