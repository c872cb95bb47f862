package bench

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// lengths measures commits of one event by one writer to journals of several lengths. The journals
// take turns.
func (c *commits) lengths(ctx context.Context) error {
	leases, err := c.hold(ctx, len(c.Scale.Lengths))
	if err != nil {
		return err
	}
	set := commitSetting{shape: commitShapes[0], writers: 1, bytes: smallBytes}
	data := payload(set.bytes)
	deadline := time.Now().Add(c.Scale.Fill)
	var sides []Side
	for i, length := range c.Scale.Lengths {
		lease := leases[i]
		filled, err := c.fill(ctx, lease, data, length, deadline)
		if err != nil {
			return err
		}
		if filled < length {
			c.Note(c.Target.System.Name, "journals of %d events and more: left out, filling them reached %d events in %v", length, filled, c.Scale.Fill)
			break
		}
		s := newCommitSide(set, func(ctx context.Context, _ int, w Write) (runstore.Seq, error) { return c.commit(ctx, lease, w) })
		side := Side{
			Group: "journal length", System: c.Target.System.Name, Side: "tapestore",
			Params: map[string]string{"events": strconv.Itoa(length)}, Round: c.round(s),
			Verify: func(ctx context.Context) (string, error) {
				text, err := c.verify(ctx, s, []runstore.Lease{lease}, int64(length))
				return fmt.Sprintf("%s, after the first %d", text, length), err
			},
		}
		if len(sides) > 0 {
			side.Under = map[string]int{"cost against the shortest": 0}
		}
		sides = append(sides, side)
	}
	return c.Compare(ctx, sides...)
}

// fill appends events up to the given length or until the deadline, and returns the number of
// events.
func (c *commits) fill(ctx context.Context, lease runstore.Lease, data []byte, length int, deadline time.Time) (filled int, err error) {
	for filled < length && time.Now().Before(deadline) {
		n := min(length-filled, runstore.MaxEvents)
		if _, err := c.commit(ctx, lease, Write{Events: n, Data: data}); err != nil {
			return filled, fmt.Errorf("filling a journal with %d events: %w", filled, err)
		}
		filled += n
	}
	return filled, ctx.Err()
}
