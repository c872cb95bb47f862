package bench

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/tapestore/tapestore/lease"
	"github.com/tapestore/tapestore/runstore"
)

// pauseTTL is the TTL of a lease that a paused holder outlives: 100 ms, because each pause waits
// for it.
const pauseTTL = 100 * time.Millisecond

func pausePart() Part {
	return Part{
		Name: "pause", Strategies: true, Title: "A holder that is paused beyond its lease",
		Doc: `A holder acquires a lease, writes, and is paused: it renews nothing. Another contender takes the lease over and writes. ` +
			`Then the first wakes and writes as if it still held the lease. The store must refuse that write: one that stores it fails the run. ` +
			`A peer that stores it is a finding. The takeover is the time from the pause to the grant of the successor; the TTL of the lease is part of it.`,
		Run: runPause,
	}
}

func runPause(ctx context.Context, s *Session) error {
	return s.withArena(ctx, func(a arena) error {
		all := append([]Strategy{a.strategy("fenced commit", keeperPolls)}, s.Target.Strategies...)
		for i, strategy := range all {
			s.Step(i, len(all), strategy.Name)
			if err := s.pauseAndWake(ctx, strategy); ctx.Err() != nil {
				return ctx.Err()
			} else if err != nil {
				s.Fault(strategy.System, fmt.Errorf("%s: %w", strategy.Name, err))
			}
		}
		return nil
	})
}

// pauseAndWake runs the scenario once for a peer, whose leases may be long, and in every round for
// a store. A strategy that cannot run it has no result.
func (s *Session) pauseAndWake(ctx context.Context, strategy Strategy) (err error) {
	contest, err := strategy.New(ctx, 2, 1)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, contest.Close()) }()
	pauser, ok := contest.(Pauser)
	if !ok {
		return nil
	}
	rounds := 1
	if _, own := contest.(*storeContest); own {
		rounds = s.Scale.Rounds
	}
	r := Result{Group: "a late write", System: strategy.System, Side: strategy.Name}
	for range rounds {
		woke, err := pauser.PauseAndWake(ctx)
		if err != nil {
			return err
		}
		stored := 0.0
		if woke.Stored {
			stored = 1
		}
		if woke.Stored && strategy.System == s.Target.System.Name {
			s.Fault(strategy.System, fmt.Errorf("%s: a holder that was paused beyond its lease wrote under it after the takeover; the answer: %s", strategy.Name, woke.Answer))
		}
		var m Measured
		m.Add("late write stored", "", Less, stored)
		m.Add("takeover", "ms", Less, float64(woke.Takeover)/float64(time.Millisecond))
		r.add(m.metrics)
		r.Params = map[string]string{"ttl": woke.TTL.String()}
		r.Verified = "the late write is not in the store; its answer: " + woke.Answer
		if woke.Stored {
			r.Verified = "the late write is in the store; its answer: " + woke.Answer
		}
	}
	s.Record(r)
	return nil
}

// PauseAndWake implements Pauser. It uses the first of the contest's runs.
func (c *storeContest) PauseAndWake(ctx context.Context) (Woke, error) {
	woke := Woke{TTL: pauseTTL}
	run := c.runs[0]
	paused, err := c.handle.AcquireLease(ctx, runstore.AcquireRequest{Run: run, LeaseSpec: runstore.LeaseSpec{Owner: "paused", TTL: pauseTTL}})
	if err != nil {
		return woke, err
	}
	write := func(l runstore.Lease, kind string) error {
		batch := runstore.NewBatch(run, l.Fence())
		batch.Append(kind, []byte(strconv.FormatUint(uint64(l.Token), 10)))
		_, err := c.handle.Commit(ctx, batch)
		return err
	}
	if err := write(paused.Lease, "work"); err != nil {
		return woke, err
	}
	began := time.Now()
	k, err := lease.New(&caller{RunStore: c.handle}, &lease.Options{MinBackoff: contestMinBackoff, MaxBackoff: contestMaxBackoff})
	if err != nil {
		return woke, err
	}
	successor, err := k.Acquire(ctx, runstore.AcquireRequest{Run: run, LeaseSpec: runstore.LeaseSpec{Owner: "successor"}})
	if err != nil {
		return woke, err
	}
	woke.Takeover = time.Since(began)
	if err := write(successor.Lease, "work"); err != nil {
		return woke, err
	}
	late := write(paused.Lease, "late")
	woke.Answer = "the write was acknowledged"
	if late != nil {
		woke.Answer = late.Error()
	}
	var kinds []string
	for e, err := range runstore.Journal(ctx, c.handle, run, 1) {
		if err != nil {
			return woke, err
		}
		woke.Stored = woke.Stored || e.Kind == "late"
		if e.Token == paused.Token || e.Token == successor.Lease.Token {
			kinds = append(kinds, e.Kind)
		}
	}
	if len(kinds) < 2 || kinds[0] != "work" || kinds[1] != "work" {
		return woke, fmt.Errorf("the writes before and after the takeover are not both stored: %q", kinds)
	}
	if late != nil && !woke.Stored && runstore.OutcomeOf(late) != runstore.NotApplied {
		return woke, fmt.Errorf("the late write was not refused: %w", late)
	}
	if late == nil && !woke.Stored {
		return woke, errors.New("the late write was acknowledged and is not stored")
	}
	_, err = c.handle.ReleaseLease(ctx, runstore.ReleaseRequest{Fence: successor.Lease.Fence()})
	return woke, err
}
