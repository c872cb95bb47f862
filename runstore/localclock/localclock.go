// Package localclock reads the clock of the process that an adapter runs in.
//
// An adapter measures waits and deadlines with that clock. It never judges an expiry or
// stamps a write with it: only the store clock does, which is the engine's. A process may
// be hours wrong about the time of day, and the time of day may step while a handle is
// open.
//
// A [Reading] therefore keeps two things apart, as a time.Time does: the time of day, which
// tests replace ([New]) to set it wrong, and a monotonic reading, which steps do not move.
// Durations come from the monotonic reading alone. A reading is no time.Time, so that it
// cannot be compared with a time of the store by mistake: that takes a call of Wall.
//
// The adapters of this module read no other clock of their process; package
// internal/clocklint enforces that.
package localclock

import "time"

// Clock is the clock of one process. The zero Clock is the system's.
type Clock struct{ wall func() time.Time }

// New returns a clock that shows wall as the time of day, or the system's if wall is nil.
func New(wall func() time.Time) Clock { return Clock{wall} }

// Read returns what the clock shows.
func (c Clock) Read() Reading {
	now := time.Now()
	r := Reading{mono: now, wall: now}
	if c.wall != nil {
		r.wall = c.wall()
	}
	return r
}

// Since returns how long ago r was read.
func (c Clock) Since(r Reading) time.Duration { return c.Read().Sub(r) }

// Until returns how long it takes until r; it may be negative.
func (c Clock) Until(r Reading) time.Duration { return r.Sub(c.Read()) }

// Reading is what a process's clock showed at one moment. The zero Reading is before all
// others.
type Reading struct {
	mono time.Time // its monotonic part counts
	wall time.Time
}

// IsZero reports whether r was never read.
func (r Reading) IsZero() bool { return r.mono.IsZero() }

// Wall returns the time of day, as the process has it. It may be hours wrong and may have
// stepped since the reading before.
func (r Reading) Wall() time.Time { return r.wall.Round(0) }

// Sub returns the time that passed between earlier and r.
func (r Reading) Sub(earlier Reading) time.Duration { return r.mono.Sub(earlier.mono) }

// Add returns the reading d later.
func (r Reading) Add(d time.Duration) Reading {
	return Reading{mono: r.mono.Add(d), wall: r.wall.Add(d)}
}

// Before reports whether r is earlier than other.
func (r Reading) Before(other Reading) bool { return r.mono.Before(other.mono) }
