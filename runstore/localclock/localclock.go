// Package localclock reads the clock of the process that an adapter runs in.
//
// An adapter measures waits and deadlines with that clock. It never judges an expiry or stamps a
// write with it: only the store clock, which is the engine's, does that. A process's time of day
// may be hours wrong, and may step while a handle is open.
//
// A [Reading] therefore keeps two values apart, as a time.Time does: the time of day, which tests
// replace ([New]) to set it wrong, and a monotonic reading, which steps do not change. Durations
// come from the monotonic reading alone, except for [Clock.LeastUntil] and [Clock.MostSince]. A Reading is not a
// time.Time, so that it cannot be compared with a time of the store by mistake: that requires a call of Wall.
//
// The adapters of this module read no other clock of their process; package internal/clocklint
// enforces that.
package localclock

import "time"

// Clock is the clock of one process. The zero Clock is the system's.
type Clock struct{ wall func() time.Time }

// New returns a clock whose time of day is wall, or the system's if wall is nil.
func New(wall func() time.Time) Clock { return Clock{wall} }

// Read returns the current reading of the clock.
func (c Clock) Read() Reading {
	now := time.Now()
	r := Reading{mono: now, wall: now}
	if c.wall != nil {
		r.wall = c.wall()
	}
	return r
}

// Since returns the time elapsed since r.
func (c Clock) Since(r Reading) time.Duration { return c.Read().Sub(r) }

// MostSince returns the time elapsed since r, as Since does or by the time of day, whichever is more. It bounds
// what may have happened since r. Since alone does not, because the monotonic clock may stop while the machine is
// suspended. The result may be too long: the time of day may have been set ahead.
func (c Clock) MostSince(r Reading) time.Duration {
	now := c.Read()
	return max(now.Sub(r), now.Wall().Sub(r.Wall()))
}

// Until returns the time left until r; it may be negative.
func (c Clock) Until(r Reading) time.Duration { return r.Sub(c.Read()) }

// LeastUntil returns the time left until r, as Until does or by the time of day, whichever is less;
// it may be negative. It bounds an action that must not happen after r. Until alone does not, because
// the monotonic clock may stop while the machine is suspended. A result of 0 or less does not prove
// that r has passed: the time of day may have been set ahead.
func (c Clock) LeastUntil(r Reading) time.Duration {
	now := c.Read()
	return min(r.Sub(now), r.Wall().Sub(now.Wall()))
}

// Reading is one reading of a process's clock. The zero Reading is before all others.
type Reading struct {
	mono time.Time // only its monotonic part is used
	wall time.Time
}

// IsZero reports whether r is the zero Reading.
func (r Reading) IsZero() bool { return r.mono.IsZero() }

// Wall returns the process's time of day. It may be hours wrong and may have stepped since the
// previous reading.
func (r Reading) Wall() time.Time { return r.wall.Round(0) }

// Sub returns the time between earlier and r.
func (r Reading) Sub(earlier Reading) time.Duration { return r.mono.Sub(earlier.mono) }

// Add returns the reading d later.
func (r Reading) Add(d time.Duration) Reading {
	return Reading{mono: r.mono.Add(d), wall: r.wall.Add(d)}
}

// Before reports whether r is earlier than other.
func (r Reading) Before(other Reading) bool { return r.mono.Before(other.mono) }
