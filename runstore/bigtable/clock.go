package bigtable

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/tapestore/tapestore/runstore/localclock"
)

// The store clock is Bigtable's: the timestamps that its servers give to cells. A
// read-modify-write returns one, and in its row it never goes back:
// https://cloud.google.com/bigtable/docs/reference/data/rpc/google.bigtable.v2#readmodifywriterowrequest
//
// Whether a lease has expired is asked of the server that holds the run's row. For
// the times that a write tells (its events', its records', its lease's) no request is
// spent: a handle knows what Bigtable's clock showed at its last reading, and how long
// ago that was on its own monotonic clock. The time can have been no earlier, so a
// time that is told is at most that of the commit. The process's wall clock tells no
// time: where it and the monotonic one disagree, Bigtable's is read again.

// reading is what Bigtable's clock showed, and when that was known here.
type reading struct {
	server time.Time
	local  localclock.Reading
}

type clock struct {
	local localclock.Clock // of this process

	mu    sync.Mutex
	last  reading
	reads atomic.Int64

	refreshing atomic.Bool
}

// maxDrift bounds how fast this process's clock may run ahead of the server's: a part in…
const maxDrift = 4096

// resolution is that of Bigtable's timestamps.
const resolution = time.Millisecond

// learn takes over a reading that has just arrived, and was asked for at a time. One
// that took long says less than is known.
func (c *clock) learn(server time.Time, asked localclock.Reading) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.local.Read()
	known := c.floor(now)
	putBack := known.Sub(server) > maxExpirySkew+now.Sub(asked) // or another server's is behind
	if !server.Before(known) || putBack {
		c.last = reading{server, now}
	}
}

// isStale reports whether the reading says too little: it is from long ago, or this process
// was suspended since, while its clock stood still. The wall clock is good enough to
// suspect that.
func (c *clock) isStale() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.local.Read()
	elapsed := now.Sub(c.last.local)
	wall := now.Wall().Sub(c.last.local.Wall())
	return elapsed > 4*refreshAfter || (wall-elapsed).Abs() > suspendThreshold
}

// suspendThreshold is by how much the wall clock has to leave the other behind.
const suspendThreshold = 20 * time.Millisecond

// floor is the earliest that Bigtable's clock can show now. The caller holds c.mu.
func (c *clock) floor(now localclock.Reading) time.Time {
	if c.last.local.IsZero() {
		return time.Time{}
	}
	elapsed := now.Sub(c.last.local)
	return c.last.server.Add(elapsed - elapsed/maxDrift).Truncate(resolution)
}

// estimate returns the earliest that Bigtable's clock can show now, and how long ago
// it was read.
func (c *clock) estimate() (floor time.Time, age time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.local.Read()
	return c.floor(now), now.Sub(c.last.local)
}

// readServerClock reads Bigtable's clock in a row.
func (s *engine) readServerClock(ctx context.Context, row string) (time.Time, error) {
	rmw := bigtable.NewReadModifyWrite()
	rmw.Increment(familyClock, columnClock, 1)
	var now time.Time
	var asked localclock.Reading
	err := s.retry(ctx, func(ctx context.Context) error {
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
		return time.Time{}, err
	}
	s.clock.learn(now, asked)
	if row[:1] == kindClock && s.clock.reads.Add(1)%pruneEvery == 0 {
		s.inBackground(func(ctx context.Context) error { return s.writeAll(ctx, []mutation{{row, pruneReadings(now), 32}}) })
	}
	return now, nil
}

// pruneEvery is after how many readings the older ones are deleted from a clock's row.
// The policy would do it too, in its own time.
const pruneEvery = 64

// pruneReadings deletes the readings before one, which stays: the clock goes on from it.
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
		now = floor // another row's server was ahead
	}
	return now, err
}

// refreshAfter is how old a reading may grow before the clock is read again, beside
// the operations.
const refreshAfter = 5 * time.Second
