package lease

import "time"

// trust is the period in which a holder may rely on its lease without asking the store.
type trust struct {
	// sent is when the request that won or extended the lease was sent. Only its monotonic reading
	// counts.
	sent time.Time
	// wall is the wall clock when that request was sent.
	wall time.Time
	// until is when the trusted time ends, on the monotonic clock.
	until time.Time
}

// over reports whether the trusted time has passed on the monotonic clock.
func (t trust) over(now time.Time) bool { return !now.Before(t.until) }

// maybeSuspended reports whether the trusted time is over according to the wall clock. On several
// systems the monotonic clock stops while the machine is suspended, and only the wall clock shows
// the suspension. But a wall clock may also have been set. So this result never ends a lease: it
// requests a renewal, and the store decides.
func (t trust) maybeSuspended(now, wall time.Time) bool {
	asleep := wall.Sub(t.wall) - now.Sub(t.sent)
	return asleep > 0 && t.over(now.Add(asleep))
}

// extend returns the trust after a request that was sent at sent and granted for ttl. It keeps an
// earlier trust that lasts longer, because the store never shortens a lease.
func (t trust) extend(sent, wall time.Time, ttl, margin time.Duration) trust {
	until := sent.Add(ttl - margin)
	if until.Before(t.until) {
		until = t.until
	}
	return trust{sent: sent, wall: wall, until: until}
}
