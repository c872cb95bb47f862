package sqlite

import (
	"context"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// HostClock is what the store clock is made of.
//
// SQLite lives on one host, so the host judges expiry. But a host's wall clock
// can step: forwards, and every lease would expire at once; backwards, and nobody
// could take over for as long. So the store clock is the wall clock of the moment
// when it was set, plus the time that the host has been up since: all processes
// of one boot agree on it, and steps do not move it. What remains is to follow a
// wall clock that is ahead for good reason (the host was suspended as a virtual
// machine, its clock was wrong at boot): then the store clock steps too, and
// every live lease is extended by as much, in the same transaction, so that
// nobody loses one. A wall clock that is behind is not followed: time never goes
// back.
type HostClock interface {
	// Wall is the host's wall clock.
	Wall() time.Time
	// Up names the host's boot and tells how long it has been up. Without a boot
	// the store clock is the wall clock, kept from going back.
	Up() (boot string, since time.Duration)
}

// maxStep is how far the wall clock may be ahead before the store clock follows
// it. Below that the difference is a matter of reading two clocks.
const maxStep = 2 * time.Second

// clock is the store clock as one handle knows it.
type clock struct {
	host HostClock

	mu     sync.Mutex
	anchor anchor
	seen   time.Time // the latest time shown, which no later one is before
}

// anchor is the moment when the store clock was set.
type anchor struct {
	boot  string
	since time.Duration
	at    time.Time
}

// now returns the store clock, and whether the wall clock is so far ahead that it
// must be set anew.
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

// refresh takes over the anchor that the database has, when another handle has
// set it since. It is of this boot, as long as this process lives. An anchor only
// moves forward: one that is behind comes from a snapshot that was taken earlier.
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

const (
	selectClock = `SELECT clock_boot, clock_since, clock_at, clock_seen FROM store`
	updateClock = `UPDATE store SET clock_boot = ?, clock_since = ?, clock_at = ?, clock_seen = max(clock_seen, ?)`
	lastTime    = `SELECT time FROM events ORDER BY pos DESC LIMIT 1`
	// extendLeases gives every live holder the time by which the clock steps.
	extendLeases = `UPDATE runs SET expires = expires + ? WHERE grant_state = 1 AND expires > ?`
)

// load returns the clock of the database and what it shows, set anew when the host
// was booted since or its wall clock is far ahead. The transaction is a writing
// one; what load returns is true once that has committed.
func (c *clock) load(ctx context.Context, tx *conn) (a anchor, now time.Time, err error) {
	stored, seen, err := readClock(ctx, tx)
	if err != nil {
		return a, now, err
	}
	wall := c.host.Wall().UTC().Truncate(runstore.TimePrecision)
	boot, since := c.host.Up()
	fresh := anchor{boot: boot, since: since, at: wall}
	if boot == "" || boot != stored.boot {
		// Another boot: only the wall clock can tell how long the host was down.
		last, err := tx.one(ctx, lastTime) // appends do not move what was seen
		if err != nil {
			return a, now, err
		}
		if last != nil && runstore.FromMicros(last[0].(int64)).After(seen) {
			seen = runstore.FromMicros(last[0].(int64))
		}
		if seen.After(fresh.at) {
			fresh.at = seen
		}
	} else {
		now = c.read(stored, wall)
		step := wall.Sub(now)
		if step <= maxStep {
			return stored, now, nil
		}
		if _, err := tx.exec(ctx, extendLeases, step.Microseconds(), now.UnixMicro()); err != nil {
			return a, now, err
		}
	}
	_, err = tx.exec(ctx, updateClock, fresh.boot, int64(fresh.since), fresh.at.UnixMicro(), fresh.at.UnixMicro())
	return fresh, fresh.at, err
}

// readClock returns the clock of the database as it is, and the latest time that
// was written there.
func readClock(ctx context.Context, c *conn) (a anchor, seen time.Time, err error) {
	row, err := c.one(ctx, selectClock)
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
