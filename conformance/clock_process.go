package conformance

import (
	"fmt"
	"iter"
	"slices"
	"sync/atomic"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// How wrong a process's clock is, in the order in which a case sets it: hours off and back
// again. The first is how the clock is when the handle is opened. Hours are far more than
// any TTL of a case, so that a result which depends on the clock differs visibly.
var (
	aheadFirst = []time.Duration{3 * time.Hour, -3 * time.Hour, 0}
	backFirst  = []time.Duration{-3 * time.Hour, 3 * time.Hour, 0}
)

// ProcessClock is the clock of one process, which a case sets wrong.
type ProcessClock struct {
	skews    []time.Duration
	skew     atomic.Int64         // a time.Duration
	readings atomic.Int64         // since skew was set
	passed   func() time.Duration // on the store clock alone
}

// Skewed opens a handle of a process whose clock is wrong, by the first of skews at first.
func (e *Env) Skewed(t T, skews []time.Duration) (runstore.RunStore, *ProcessClock) {
	t.Helper()
	c := &ProcessClock{skews: slices.Clone(skews), passed: e.advanced}
	if e.FollowsClockAhead {
		t.Logf("no clock is set ahead: the engine follows a host whose clock is ahead")
		for i, skew := range c.skews {
			c.skews[i] = min(skew, -2*skew)
		}
	}
	c.Set(c.skews[0])
	s := closing(t, func() (runstore.RunStore, error) { return e.OpenSkewed(t.Context(), c.Now) })
	return s, c
}

// Now returns the time of day. The process reads its clock by it.
func (c *ProcessClock) Now() time.Time {
	c.readings.Add(1)
	return time.Now().Add(c.passed() + time.Duration(c.skew.Load()))
}

// Set makes the clock wrong by skew, and returns what to call the process.
func (c *ProcessClock) Set(skew time.Duration) (who string) {
	c.skew.Store(int64(skew))
	c.readings.Store(0)
	return c.String()
}

// String names the process by its clock.
func (c *ProcessClock) String() string {
	switch skew := time.Duration(c.skew.Load()); {
	case skew > 0:
		return fmt.Sprintf("a process whose clock is %v ahead", skew)
	case skew < 0:
		return fmt.Sprintf("a process whose clock is %v behind", -skew)
	default:
		return "a process whose clock is right again"
	}
}

// steps sets the clock wrong in one way after the other and yields what to call the
// process. It fails the case if the process did not read its clock in one of them.
func (c *ProcessClock) steps(t T) iter.Seq[string] {
	return func(yield func(who string) bool) {
		for _, skew := range c.skews {
			if !yield(c.Set(skew)) {
				return
			}
			c.wasRead(t)
		}
	}
}

// wasRead fails the case if the process has not read its clock since it was set.
func (c *ProcessClock) wasRead(t T) {
	t.Helper()
	if c.readings.Load() == 0 {
		t.Errorf("the handle of %s never read that clock, which proves nothing: OpenSkewed ignores the clock that it is given. "+
			"Let the adapter read it, or leave OpenSkewed nil", c)
	}
}

// suspect returns a hint for a time that is off by so much: about as much as a case sets a
// process's clock wrong means that the time comes from such a clock.
func wrongClockHint(off time.Duration) string {
	for _, skew := range aheadFirst {
		if skew > 0 && off.Abs() > skew-time.Minute && off.Abs() < 2*skew+time.Minute {
			return ", as much as a process's clock was set wrong: it comes from that clock, not from the store's"
		}
	}
	return ""
}
