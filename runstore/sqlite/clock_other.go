//go:build !linux

package sqlite

import "time"

// Up returns no boot on this system, so the store clock is the wall clock, kept from going back.
func (systemClock) Up() (string, time.Duration) { return "", 0 }

func bootShift() time.Duration { return 0 }
