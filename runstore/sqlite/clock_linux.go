package sqlite

import (
	"bufio"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Up reads CLOCK_BOOTTIME, which includes the time that the host was suspended and which nobody can
// set. A time namespace shifts it; Up subtracts that shift, so that processes inside and outside of
// containers agree (time_namespaces(7)).
func (c systemClock) Up() (string, time.Duration) {
	var ts unix.Timespec
	if c.boot == "" || unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts) != nil {
		return "", 0
	}
	return c.boot, time.Duration(ts.Nano()) - c.shift
}

// bootShift returns the shift of CLOCK_BOOTTIME in this process's time namespace: 0 where there are
// no time namespaces.
func bootShift() time.Duration {
	text, err := os.ReadFile("/proc/self/timens_offsets")
	if err != nil {
		return 0
	}
	return parseShift(string(text))
}

func parseShift(offsets string) time.Duration {
	for lines := bufio.NewScanner(strings.NewReader(offsets)); lines.Scan(); {
		var clock string
		var seconds, nanos int64
		if _, err := fmt.Sscan(lines.Text(), &clock, &seconds, &nanos); err == nil && clock == "boottime" {
			return time.Duration(seconds)*time.Second + time.Duration(nanos)
		}
	}
	return 0
}
