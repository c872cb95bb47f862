package harness

import (
	"fmt"
	"iter"
	"slices"
	"sync/atomic"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// ProcessClock is the clock of one process, which a case can set wrong.
type ProcessClock struct {
	skews    []time.Duration
	skew     atomic.Int64         // a time.Duration
	readings atomic.Int64         // since skew was set
	passed   func() time.Duration // the time that passed on the store clock by AdvanceClock
}

// Skewed opens a handle of a process whose clock is wrong by the first of skews.
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
	s := MustOpen(t, func() (runstore.RunStore, error) { return e.OpenSkewed(t.Context(), c.Now) })
	return s, c
}

// Skews returns the errors of the clock, in the order in which Steps sets them.
func (c *ProcessClock) Skews() []time.Duration { return slices.Clone(c.skews) }

// Now returns the time of day that the process reads.
func (c *ProcessClock) Now() time.Time {
	c.readings.Add(1)
	return time.Now().Add(c.passed() + time.Duration(c.skew.Load()))
}

// Set makes the clock wrong by skew and returns a name for the process.
func (c *ProcessClock) Set(skew time.Duration) (who string) {
	c.skew.Store(int64(skew))
	c.readings.Store(0)
	return c.String()
}

// String returns a name for the process that says how wrong its clock is.
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

// Steps sets the clock to each of its errors in turn and yields a name for the process. It fails
// the case if the process did not read its clock in one of the steps.
func (c *ProcessClock) Steps(t T) iter.Seq[string] {
	return func(yield func(who string) bool) {
		for _, skew := range c.skews {
			if !yield(c.Set(skew)) {
				return
			}
			c.WasRead(t)
		}
	}
}

// WasRead fails the case if the process has not read its clock since the clock was last set.
func (c *ProcessClock) WasRead(t T) {
	t.Helper()
	if c.readings.Load() == 0 {
		t.Errorf("the handle of %s never read that clock, which proves nothing: OpenSkewed ignores the clock that it is given. "+
			"Let the adapter read it, or leave OpenSkewed nil", c)
	}
}
