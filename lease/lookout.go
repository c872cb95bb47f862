package lease

import (
	"context"
	"errors"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// lookout is how a contender with a Grace waits for one lease: once it was refused, it reads the head
// of the run, and requests the lease only when the head shows that the lease is free, has expired or
// was granted to another holder. A server that freezes performs a request when it goes on, however late;
// a request that was sent while the lease was live would then take the lease from a live holder.
//
// The head shows the expiry on the store clock, which is not compared with this process's. The refusal
// says how much remains of the lease, and later expiries are counted from there.
type lookout struct {
	keeper *Keeper
	store  headReader // nil if the contender has no Grace

	token   runstore.Token // of the holder that the last refusal named; 0 before the first
	expires time.Time      // the expiry that was seen last, on the store clock
	local   time.Time      // the same on this process's clock
}

func (k *Keeper) newLookout() *lookout {
	l := &lookout{keeper: k}
	if k.opts.Grace > 0 {
		l.store, _ = runstore.As[headReader](k.store) // New has refused a store without one
	}
	return l
}

// acquire sends one request for the lease, as acquireOnce does, unless the head of the run rules a grant
// out. Then the error is the one with which the store would refuse, or that of the read.
func (l *lookout) acquire(ctx context.Context, req runstore.AcquireRequest) (Granted, error) {
	sent := time.Now()
	if err := l.look(ctx, req.Run); err != nil {
		return Granted{Sent: sent}, err
	}
	granted, err := l.keeper.acquireOnce(ctx, req)
	var held *runstore.LeaseHeldError
	if errors.As(err, &held) {
		l.token, l.expires, l.local = held.Holder.Token, held.Holder.ExpiresAt, time.Now().Add(held.Remaining)
	}
	return granted, err
}

// look returns nil if the lease is to be requested.
func (l *lookout) look(ctx context.Context, id runstore.RunID) error {
	if l.store == nil || l.token == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, l.keeper.opts.RequestTimeout)
	defer cancel()
	run, err := l.store.GetRun(ctx, id)
	switch {
	case transient(err):
		return err
	case err != nil || run.Holder.Token != l.token:
		return nil // the store answers the request
	}
	if h := run.Holder; !h.ExpiresAt.Equal(l.expires) {
		// The renewal came before the read, so drift between the clocks does not add up.
		atMost := time.Now().Add(h.ExpiresAt.Sub(h.RenewedAt))
		if l.local = l.local.Add(h.ExpiresAt.Sub(l.expires)); l.local.After(atMost) {
			l.local = atMost
		}
		l.expires = h.ExpiresAt
	}
	if left := time.Until(l.local); left > 0 {
		return &runstore.OpError{Op: "acquire lease", Run: id, Err: &runstore.LeaseHeldError{Holder: run.Holder, Remaining: left}}
	}
	return nil
}
