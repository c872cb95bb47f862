package lease

import "time"

// trust is how long a holder may believe in its lease without asking the store.
type trust struct {
	// sent is when the request left that won the lease or extended it. Its
	// monotonic reading is what counts.
	sent time.Time
	// wall is the wall clock at that moment.
	wall time.Time
	// until is when the trust ends, on the monotonic clock.
	until time.Time
}

// over reports whether the trusted time has passed on the monotonic clock.
func (t trust) over(now time.Time) bool { return !now.Before(t.until) }

// doubtful reports whether the trusted time has passed if the wall clock is
// right. On several systems the monotonic clock stands still while the machine
// is suspended, and only the wall clock tells of it. But a wall clock may also
// have been set, so doubt ends no lease: it asks for a renewal, and the store
// decides.
func (t trust) doubtful(now, wall time.Time) bool {
	asleep := wall.Sub(t.wall) - now.Sub(t.sent)
	return asleep > 0 && t.over(now.Add(asleep))
}

// extend returns the trust that a request won: it left at sent and was granted
// for ttl. An earlier and longer trust in the same grant stays, as the store
// never shortens a lease.
func (t trust) extend(sent, wall time.Time, ttl, margin time.Duration) trust {
	until := sent.Add(ttl - margin)
	if until.Before(t.until) {
		until = t.until
	}
	return trust{sent: sent, wall: wall, until: until}
}
