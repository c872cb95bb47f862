package bigtable

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/tapestore/tapestore/runstore/localclock"
)

// The store clock is Bigtable's: the timestamps that its servers give to cells. A read-modify-write returns
// one, and in its row it never goes back:
// https://cloud.google.com/bigtable/docs/reference/data/rpc/google.bigtable.v2#readmodifywriterowrequest
//
// Whether a lease has expired is decided by the clock of the server that holds the run's row, which
// costs a request. The times that a write returns (of its events, records and lease) cost none: they are
// an estimate, Bigtable's clock at the handle's last reading plus the time since then on the process's
// monotonic clock. The reading is taken for as late as it can have been, when the reply arrived, so the
// estimate is never later than the commit. The process's wall clock decides nothing. If it has moved
// away from the monotonic clock, the process may have been suspended, and the handle reads Bigtable's
// clock again.

// reading is a reading of Bigtable's clock, and the local time at which the reply arrived.
type reading struct {
	server time.Time
	local  localclock.Reading
}

// clock is a handle's estimate of Bigtable's clock.
type clock struct {
	local localclock.Clock // of this process

	mu    sync.Mutex
	last  reading
	reads atomic.Int64 // of rows of kindClock

	refreshing atomic.Bool
}

// maxDrift bounds how much faster this process's clock may be than the server's: 1 part in 4096. A quartz
// clock is off by less than 1 part in 10,000.
const maxDrift = 4096

// resolution is the resolution of Bigtable's timestamps.
const resolution = time.Millisecond

// learn records a reading that has just arrived and was requested at asked. It ignores a reading that took so
// long that the estimate is better, unless Bigtable's clock was put back.
func (c *clock) learn(server time.Time, asked localclock.Reading) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.local.Read()
	known := c.floor(now)
	putBack := known.Sub(server) > maxExpirySkew+now.Sub(asked) // or another server's clock is behind
	if !server.Before(known) || putBack {
		c.last = reading{server, now}
	}
}

// isStale reports whether the last reading is too old, or this process may have been suspended since
// while its monotonic clock stood still. The wall clock is good enough to suspect that.
func (c *clock) isStale() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.local.Read()
	elapsed := now.Sub(c.last.local)
	wall := now.Wall().Sub(c.last.local.Wall())
	return elapsed > 4*refreshAfter || (wall-elapsed).Abs() > suspendThreshold
}

// suspendThreshold is by how much the wall clock has to differ from the monotonic one. 20 ms: a clock that is
// slewed by 500 ppm differs by that after 40 s, when the reading is too old anyway.
const suspendThreshold = 20 * time.Millisecond

// floor returns the earliest time that Bigtable's clock can show now. The caller holds c.mu.
func (c *clock) floor(now localclock.Reading) time.Time {
	if c.last.local.IsZero() {
		return time.Time{}
	}
	elapsed := now.Sub(c.last.local)
	return c.last.server.Add(elapsed - elapsed/maxDrift).Truncate(resolution)
}

// estimate returns the earliest time that Bigtable's clock can show now, and the age of the last reading.
func (c *clock) estimate() (floor time.Time, age time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.local.Read()
	return c.floor(now), now.Sub(c.last.local)
}

// readServerClock reads Bigtable's clock in a row.
func (s *engine) readServerClock(ctx context.Context, row string) (time.Time, error) {
	now, _, err := s.askServerClock(ctx, row)
	return now, err
}

// askServerClock reads Bigtable's clock in a row. asked is when the request was sent: the clock showed now after
// that.
func (s *engine) askServerClock(ctx context.Context, row string) (now time.Time, asked localclock.Reading, err error) {
	rmw := bigtable.NewReadModifyWrite()
	rmw.Increment(familyClock, columnClock, 1)
	err = s.retry(ctx, func(ctx context.Context) error {
		asked = s.clock.local.Read()
		r, err := s.table.ApplyReadModifyWrite(ctx, row, rmw)
		if err != nil {
			return err
		}
		for _, item := range r[familyClock] {
			if at := item.Timestamp.Time().UTC(); at.After(now) {
				now = at
			}
		}
		return nil
	})
	if err != nil {
		return time.Time{}, asked, err
	}
	s.clock.learn(now, asked)
	if row[:1] == kindClock && s.clock.reads.Add(1)%pruneEvery == 0 {
		s.inBackground(func(ctx context.Context) error { return s.writeAll(ctx, []mutation{{row, pruneReadings(now), 32}}) })
	}
	return now, asked, nil
}

// pruneEvery is after how many readings the older ones are deleted from a clock's row. 64: a prune costs one
// request for 64 readings. The table's garbage collection deletes them, too, but may take days.
const pruneEvery = 64

// pruneReadings deletes the readings before one, which stays: the clock of the row never goes back from it.
func pruneReadings(before time.Time) *bigtable.Mutation {
	m := bigtable.NewMutation()
	m.DeleteTimestampRange(familyClock, columnClock, 0, bigtable.Time(before))
	return m
}

const columnClock = "clock"

// Now implements adapter.Core.
func (s *engine) Now(ctx context.Context) (time.Time, error) {
	now, err := s.readServerClock(ctx, clockKey())
	if floor, _ := s.clock.estimate(); floor.After(now) {
		now = floor // the clock of another row's server was ahead
	}
	return now, err
}

// refreshAfter is how old a reading may grow before the handle reads the clock again, in the background.
const refreshAfter = 5 * time.Second
