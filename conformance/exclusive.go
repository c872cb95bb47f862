package conformance

import (
	"errors"
	"fmt"
	"sync"

	"github.com/tapestore/tapestore/runstore"
)

// exclusiveCases prove I1: at most one live grant.
func exclusiveCases() []Case {
	return []Case{
		{Guarantee: "I1", Name: "one-winner-per-round-of-an-acquire-race", Run: acquireRace},
	}
}

// acquireRace lets contenders, each with a handle of its own, race for one lease
// from a common start, round after round.
func acquireRace(t T, e *Env) {
	const contenders, rounds = 8, 10
	e.Create(t, "run")
	handles := make([]runstore.RunStore, contenders)
	for i := range handles {
		handles[i] = e.Reopen(t)
	}
	var last runstore.Token
	for round := range rounds {
		start := make(chan struct{})
		won := make(chan runstore.Lease, contenders)
		lost := make(chan error, contenders)
		var wg sync.WaitGroup
		for i, s := range handles {
			wg.Go(func() {
				<-start
				owner := runstore.Owner(fmt.Sprintf("contender-%d", i))
				lease, err := s.AcquireLease(t.Context(), acquire("run", owner, TTL))
				if err != nil {
					lost <- err
					return
				}
				won <- lease
			})
		}
		close(start)
		wg.Wait()
		close(won)
		close(lost)
		if len(won) != 1 {
			t.Fatalf("round %d: %d winners, want 1", round, len(won))
		}
		lease := <-won
		for err := range lost {
			var held *runstore.LeaseHeldError
			if !errors.As(err, &held) || !errors.Is(err, runstore.ErrLeaseHeld) {
				t.Fatalf("round %d: a loser got %v, want ErrLeaseHeld with the holder", round, err)
			}
			if held.Holder.Owner != lease.Owner || held.Holder.Token != lease.Token || held.Remaining <= 0 || held.Remaining > TTL {
				t.Errorf("round %d: a loser was told %+v, remaining %v; the winner is %q under token %v",
					round, held.Holder, held.Remaining, lease.Owner, lease.Token)
			}
		}
		if lease.Token != last+1 {
			t.Errorf("round %d: token %v follows %v, want %v", round, lease.Token, last, last+1)
		}
		last = lease.Token
		if _, err := e.Store.ReleaseLease(t.Context(), runstore.ReleaseRequest{Fence: lease.Fence()}); err != nil {
			t.Fatalf("round %d: release: %v", round, err)
		}
	}
}
