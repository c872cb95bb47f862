package lease

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/tapestore/tapestore/internal/pace"
	"github.com/tapestore/tapestore/runstore"
)

// headReader is what a contender with a Grace needs of a store besides its lease methods.
type headReader interface {
	GetRun(ctx context.Context, id runstore.RunID) (runstore.Run, error)
}

// Outage tracks whether a contender could reach the store, and for how long not. After an outage
// the holders get time to renew their leases before contenders take the expired ones. The zero
// Outage is ready to use, by one goroutine at a time.
type Outage struct {
	since time.Time // when the first request was sent that did not reach the store; zero after an answer
	until time.Time // the end of the grace
}

// Observe records the result of a request that was sent at the given time.
func (o *Outage) Observe(k *Keeper, sent time.Time, err error) {
	switch {
	case transient(err):
		if o.since.IsZero() {
			o.since = sent
		}
	case !o.since.IsZero():
		if o.lasts(k) {
			grace := min(k.opts.TTL, k.opts.Grace)
			o.until = time.Now().Add(grace + rand.N(grace/2+1))
		}
		o.since = time.Time{}
	}
}

// InGrace reports whether expired leases are still left to their holders.
func (o *Outage) InGrace() bool { return time.Now().Before(o.until) }

// lasts reports whether the store could not be reached for a quarter of the TTL. A lease of a live
// holder expires later: the TTL less a heartbeat after the outage began.
func (o *Outage) lasts(k *Keeper) bool {
	return k.opts.Grace > 0 && !o.since.IsZero() && time.Since(o.since) >= k.opts.TTL/4
}

// hung reports whether a call that began at the given time and has just returned took so long that the store
// was away, and records the outage. It is for calls whose results [Outage.Observe] does not get, such as
// the commit of a request for a handoff.
func (o *Outage) hung(k *Keeper, began time.Time) bool {
	if k.opts.Grace == 0 || time.Since(began) < k.opts.TTL/4 {
		return false
	}
	if o.since.IsZero() {
		o.since = began
	}
	return true
}

// awaitGrace waits for the end of an outage and for that of the grace, as long as the run's lease is
// held by another owner who has not renewed it since. It reports false if ctx ended first.
func (k *Keeper) awaitGrace(ctx context.Context, o *Outage, req runstore.AcquireRequest) bool {
	store, ok := runstore.As[headReader](k.store)
	if !ok || !o.lasts(k) {
		return true
	}
	var renewed time.Time // of the lease, when the store answered first
	for backoff := k.opts.MinBackoff; ; backoff = min(2*backoff, k.opts.MaxBackoff) {
		sent := time.Now()
		bound, cancel := context.WithTimeout(ctx, k.opts.RequestTimeout)
		run, err := store.GetRun(bound, req.Run)
		cancel()
		o.Observe(k, sent, err)
		wait := pace.Jitter(backoff)
		if !transient(err) {
			if renewed.IsZero() {
				renewed = run.Holder.RenewedAt
			}
			// A contender of the same owner name succeeds its own former process.
			free := err != nil || run.Holder.Token == 0 || run.Holder.Owner == req.Owner
			if free || run.Holder.RenewedAt.After(renewed) || !o.InGrace() {
				return true
			}
			wait = min(wait, time.Until(o.until))
		}
		if !pace.Pause(ctx, wait) {
			return false
		}
	}
}
