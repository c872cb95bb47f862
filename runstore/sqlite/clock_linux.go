package sqlite

import (
	"time"

	"golang.org/x/sys/unix"
)

// Up reads CLOCK_BOOTTIME, which counts the time that the host was suspended and
// which nobody can set.
func (c systemClock) Up() (string, time.Duration) {
	var ts unix.Timespec
	if c.boot == "" || unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts) != nil {
		return "", 0
	}
	return c.boot, time.Duration(ts.Nano())
}
