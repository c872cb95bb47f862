package conformance

import (
	"time"
)

// clockSlack is how far a time that an engine stamps may lie beside the readings
// of its own clock before and after: engines keep milliseconds, or take the time
// at the statement and not at the commit.
const clockSlack = 5 * time.Millisecond

// within fails the case unless at lies between two readings of the store clock.
func within(t T, what string, at, from, to time.Time) {
	t.Helper()
	if at.Before(from.Add(-clockSlack)) || at.After(to.Add(clockSlack)) {
		t.Errorf("%s is %v, want a time between the store clock's readings %v and %v", what, at, from, to)
	}
}
