package sqlite

import (
	"context"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// HostClock provides the host's clocks, from which the store clock is derived.
//
// SQLite is used on one host, so the host judges expiry. The host's wall clock alone would not do,
// because it can step: a step forwards would expire every lease at once, and a step backwards would
// prevent takeovers for as long. So the store clock is the wall clock at the moment when the store
// clock was set, plus the time that the host has been up since.
//
//  1. All processes of one boot agree on the store clock, and steps of the wall clock do not move
//     it.
//  2. A wall clock that is more than maxStep ahead is followed, because it is ahead for a good
//     reason: the host was suspended as a virtual machine, or its clock was wrong at boot. Then the
//     store clock steps too, and the same transaction extends every live lease by the same amount,
//     so that no holder loses its lease.
//  3. A wall clock that is behind is not followed: the store clock never goes back.
type HostClock interface {
	// Wall returns the host's wall clock.
	Wall() time.Time
	// Up returns the id of the host's boot and how long the host has been up. If boot is empty, the
	// store clock is the wall clock, kept from going back.
	Up() (boot string, since time.Duration)
}

// maxStep is how far the wall clock may be ahead before the store clock follows it. 2 s: a smaller
// difference comes from reading two clocks.
const maxStep = 2 * time.Second

// clock is a handle's copy of the store clock.
type clock struct {
	host HostClock

	mu     sync.Mutex
	anchor anchor
	seen   time.Time // the latest time returned; no later result is before it
}

// anchor is the moment when the store clock was set.
type anchor struct {
	boot  string
	since time.Duration
	at    time.Time
}

// now returns the store clock. behind reports whether the wall clock is so far ahead that the store
// clock must be set again.
func (c *clock) now() (now time.Time, behind bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	wall := c.host.Wall().UTC().Truncate(runstore.TimePrecision)
	now = c.read(c.anchor, wall)
	if now.After(c.seen) {
		c.seen = now
	}
	return c.seen, wall.Sub(c.seen) > maxStep
}

func (c *clock) read(a anchor, wall time.Time) time.Time {
	boot, since := c.host.Up()
	if boot == "" || boot != a.boot {
		return wall
	}
	return a.at.Add(since - a.since).Truncate(runstore.TimePrecision)
}

// refresh adopts the anchor in the database when another handle has set it since. That anchor is of
// this boot, because this process is still running. An anchor only moves forward: an older one
// comes from a snapshot that was taken earlier. Processes that do not know their boot set none.
func (c *clock) refresh(since, at int64) {
	boot, _ := c.host.Up()
	a := anchor{boot: boot, since: time.Duration(since), at: runstore.FromMicros(at)}
	c.mu.Lock()
	defer c.mu.Unlock()
	if boot != "" && a.at.Add(-a.since).After(c.anchor.at.Add(-c.anchor.since)) {
		c.anchor = a
	}
}

func (c *clock) set(a anchor) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.anchor = a
	if a.boot == "" && a.at.After(c.seen) {
		c.seen = a.at
	}
}

// load returns the clock of the database and its present time. It sets the clock again when the
// host was booted since or its wall clock is far ahead. tx must be in a write transaction; the
// result is valid once that has committed.
func (c *clock) load(ctx context.Context, tx *conn) (a anchor, now time.Time, err error) {
	stored, seen, err := readClock(ctx, tx)
	if err != nil {
		return a, now, err
	}
	wall := c.host.Wall().UTC().Truncate(runstore.TimePrecision)
	boot, since := c.host.Up()
	fresh := anchor{boot: boot, since: since, at: wall}
	if boot == "" || boot != stored.boot {
		// Another boot: only the wall clock shows how long the host was down.
		last, err := tx.one(ctx, sqlClockLastWrite)
		if err != nil {
			return a, now, err
		}
		for _, at := range []time.Time{seen, runstore.FromMicros(last[0].(int64)), runstore.FromMicros(last[1].(int64))} {
			if at.After(fresh.at) {
				fresh.at = at
			}
		}
	} else {
		now = c.read(stored, wall)
		step := wall.Sub(now)
		if step <= maxStep {
			return stored, now, nil
		}
		if _, err := tx.exec(ctx, sqlLeaseExtendAll, step.Microseconds(), now.UnixMicro()); err != nil {
			return a, now, err
		}
	}
	set := fresh
	if boot == "" {
		set = stored // it stays for the processes that know their boot
	}
	_, err = tx.exec(ctx, sqlClockSet, set.boot, int64(set.since), set.at.UnixMicro(), fresh.at.UnixMicro())
	return fresh, fresh.at, err
}

// readClock returns the clock of the database, unchanged, and the latest time that was written
// there.
func readClock(ctx context.Context, c *conn) (a anchor, seen time.Time, err error) {
	row, err := c.one(ctx, sqlClockRead)
	if err != nil {
		return a, seen, err
	}
	a = anchor{
		boot: text[string](row[0]), since: time.Duration(row[1].(int64)),
		at: runstore.FromMicros(row[2].(int64)),
	}
	return a, runstore.FromMicros(row[3].(int64)), nil
}

// systemClock reads the clocks of this host.
type systemClock struct {
	boot  string
	shift time.Duration
}

func newSystemClock() systemClock {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return systemClock{}
	}
	return systemClock{boot: strings.TrimSpace(string(id)), shift: bootShift()}
}

// Wall implements HostClock.
func (systemClock) Wall() time.Time { return time.Now() }
