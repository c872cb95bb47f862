package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/tapestore/tapestore/runstore"
)

// scalePart measures operations whose cost may grow with the store.
func scalePart() Part {
	return Part{
		Name: "scale", Title: "Cost at scale", Run: measureScale,
		Doc: `What an operation costs as the store grows. Live leases: the scan for runs without a driver, among runs under a lease ` +
			`that was renewed once, so that the first scan finds each of them where its grant placed it; and taking and releasing a lease there. ` +
			`Run size: commits, reads of one record and pages of records in a run of many. Purge: of a run with many events, with the slowest heartbeat of ` +
			`another run meanwhile. Handles: each commits one event at a fixed pace to a run of its own, and a process of its own reads the feed; the lag is ` +
			`the time from the acknowledgement of a commit to the delivery of its event. The latency of a commit counts from the time at which it was due; those that were due while an earlier one of ` +
			`the same handle ran are missed, and count until that one ended. Stores are filled directly; what is ` +
			`measured passes a network which, to an emulator, adds a round trip of 4 ms. Requests are all that the measured handles send, ` +
			`those of their background among them. A setting names the size that was asked for, and the size reached is beside it. Everything acknowledged is read back.`,
	}
}

// scaleSteps is the number of the part's measurements, for its progress.
const scaleSteps = 4

func measureScale(ctx context.Context, s *Session) error {
	// The purge comes last in the shared store, because engines clean up after it.
	return errors.Join(
		s.scaleLive(ctx),
		s.WithStore(ctx, func(store Store) error {
			return errors.Join(s.scaleHandles(ctx, store), s.scaleRecords(ctx, store), s.scalePurge(ctx, store))
		}),
	)
}

// First numbers of the runs of the parts that share a store.
const (
	recordRuns = 1_000
	purgeRuns  = 2_000
)

// connect opens handles over a network of their own, and notes once if requests are not counted
// there.
func (s *Session) connect(ctx context.Context, store Store, handles int) (*connection, error) {
	c, err := connect(ctx, store, handles)
	if err == nil && !c.counted() && !s.uncounted {
		s.uncounted = true
		s.Note(s.Target.System.Name, "the requests to the engine are not counted: there are none, or nothing on their way can count them")
	}
	return c, err
}

// sized makes the sides of one operation at several sizes, each compared with the first.
type sized struct {
	s            *Session
	group, param string
	sides        []Side
	first        map[string]int // by the name of a side
}

// add adds a side at the size n, of which got was reached.
func (z *sized) add(name string, n, got int, side Side) {
	side.Group, side.System, side.Side = z.group, z.s.Target.System.Name, name
	side.Params, side.Reached = map[string]string{z.param: strconv.Itoa(n)}, &Size{got, z.param}
	if first, ok := z.first[name]; ok {
		side.Under = map[string]int{fmt.Sprintf("cost against %s %s", z.sides[first].Params[z.param], z.param): first}
	} else {
		if z.first == nil {
			z.first = make(map[string]int)
		}
		z.first[name] = len(z.sides)
	}
	z.sides = append(z.sides, side)
}

// reached notes a size that was not reached, and reports whether the size that was reached is
// useful: larger than the size before.
func (s *Session) reached(want, got, before int, what string) bool {
	if got < want {
		s.Note(s.Target.System.Name, "%d %s: filled to %d in %v", want, what, got, s.Scale.Growth)
	}
	if got <= before {
		s.Note(s.Target.System.Name, "%d %s: left out, no more than the %d before", want, what, before)
	}
	return got > before
}

// ascending returns the sizes in ascending order.
func ascending(sizes []int) []int { return slices.Sorted(slices.Values(sizes)) }

// holdRun creates a run under a lease that outlives the benchmark.
func holdRun(ctx context.Context, s runstore.RunStore, id runstore.RunID) (runstore.Lease, error) {
	created, err := s.CreateRun(ctx, runstore.RunSpec{ID: id, Lease: &runstore.LeaseSpec{Owner: "bench", TTL: runstore.MaxTTL}})
	if err == nil && !created.New {
		err = fmt.Errorf("run %s exists", id)
	}
	return created.Lease, err
}
