package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/tapestore/tapestore/runstore"
)

// readPart measures reads.
func readPart() Part {
	return Part{
		Name: "read", Title: "Reads", Run: measureReads,
		Doc: `One reader replays whole journals, follows the feed of all runs from its start, and reads the first page of an ` +
			`index. Each is compared between stores of different size, in turn. A setting names the size that was asked for; where the ` +
			`time for filling was too short, the size that was reached is beside it. The cost against the smallest is the time of ` +
			`the same read there, divided. Every event and entry is compared with what the store had acknowledged. ` +
			`Allocations are those of the whole process: on an embedded engine the engine's too. Held memory is the most that ` +
			`the process held in addition during a pass over the journal, garbage not counted: it is flat when it does not grow with the ` +
			`length. The delay of a follower is the time from the acknowledgement of a commit to the delivery of its event; each ` +
			`commit comes up to 20 ms after the delivery before it, so that the follower waits.`,
	}
}

func measureReads(ctx context.Context, s *Session) error {
	return errors.Join(
		s.inStore(ctx, 0, "journals", s.readJournals),
		s.inStore(ctx, 2, "followers", s.readAsFollower),
		s.readIndexes(ctx),
	)
}

// readSteps is the number of the part's measurements, for its progress.
const readSteps = 5

// inStore calls do with a new store and an open handle.
func (s *Session) inStore(ctx context.Context, step int, what string, do func(context.Context, Store, runstore.RunStore) error) error {
	s.Step(step, readSteps, what)
	return s.WithStore(ctx, func(store Store) error {
		handle, err := store.Open(ctx)
		if err != nil {
			return err
		}
		return errors.Join(do(ctx, store, handle), handle.Close())
	})
}

// readJournals compares replays of journals of all lengths, and reads the feed of these journals.
func (s *Session) readJournals(ctx context.Context, store Store, handle runstore.RunStore) error {
	start, err := feedEnd(ctx, handle)
	if err != nil {
		return err
	}
	var journals []*filledJournal
	add := func(length, perCommit int) error {
		s.Step(0, readSteps, fmt.Sprintf("writing %d events, %d a commit", length, perCommit))
		j, err := fillJournal(ctx, s.fillers(), handle, journalID(store, len(journals)), length, perCommit, s.Scale.Payloads[0], s.Scale.Fill)
		if err != nil {
			return err
		}
		if got := len(j.numbers); got < length {
			s.Note(s.Target.System.Name, "a journal of %d events, %d a commit, was filled to %d in %v", length, perCommit, got, s.Scale.Fill)
		}
		journals = append(journals, j)
		return nil
	}
	lengths := slices.Sorted(slices.Values(s.Scale.Lengths))
	for _, length := range lengths {
		if err := add(length, min(100, length)); err != nil {
			return err
		}
	}
	if err := add(lengths[len(lengths)-1], 1); err != nil {
		return err
	}

	s.Step(1, readSteps, "replay")
	var sides []Side
	wanted := 0 // events of all journals
	for i, j := range journals {
		wanted += j.wanted
		r := &replay{store: handle, journal: j}
		if err := r.first(ctx); err != nil {
			s.Fault(s.Target.System.Name, fmt.Errorf("replay of %d events: %w", len(j.numbers), err))
			continue
		}
		side := Side{
			Group: "journal replay", System: s.Target.System.Name, Side: fmt.Sprintf("%d a commit", j.perCommit),
			Params: map[string]string{"events": strconv.Itoa(j.wanted)}, Reached: &Size{len(j.numbers), "events"},
			Round: r.round, Verify: r.verify,
		}
		if i > 0 && len(sides) > 0 {
			side.Under = map[string]int{fmt.Sprintf("cost against %d events", journals[0].wanted): 0}
		}
		sides = append(sides, side)
	}
	f := newFeedTail(handle, start, journals)
	if err := f.whole(ctx); err != nil {
		s.Fault(s.Target.System.Name, fmt.Errorf("feed: %w", err))
	} else {
		sides = append(sides, Side{
			Group: "feed", System: s.Target.System.Name, Side: "from the start",
			Params: map[string]string{"events": strconv.Itoa(wanted)}, Reached: &Size{f.total, "events"}, Round: f.round, Verify: f.verify,
		})
	}
	return s.Compare(ctx, sides...)
}

// readIndexes compares scans of stores with different numbers of runs.
func (s *Session) readIndexes(ctx context.Context) (err error) {
	var sides []Side
	var wanted, filled []int
	for i, n := range slices.Sorted(slices.Values(s.Scale.Runs)) {
		s.Step(3, readSteps, fmt.Sprintf("writing %d runs", n))
		store, handle, closeStore, err := s.openStore(ctx)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, closeStore()) }()
		runs, err := fillRuns(ctx, s.fillers(), store, handle, n, func(int) bool { return false }, s.Scale.Payloads[0], s.Scale.Fill)
		if err != nil {
			return err
		}
		got := len(runs.ids)
		if got < n {
			s.Note(s.Target.System.Name, "a store of %d runs was filled to %d in %v", n, got, s.Scale.Fill)
		}
		if i > 0 && got <= filled[0] {
			s.Note(s.Target.System.Name, "a store of %d runs was left out: no more than %d were filled", n, filled[0])
			continue
		}
		wanted, filled = append(wanted, n), append(filled, got)
		for _, index := range []runstore.IndexName{runstore.IndexRuns, runstore.IndexRunnable, runs.index(store)} {
			c := &indexScan{store: handle, index: index, name: string(index), runs: runs}
			if index == runs.index(store) {
				c.name, c.own = "records", true
			}
			sides = s.addScan(ctx, sides, c, "index scan", Size{got, "runs"}, n, wanted[0])
		}
	}
	s.Step(4, readSteps, "index scans")
	return s.Compare(ctx, sides...)
}

// addScan verifies a scan and adds a side for it, which is compared with the first side of the same
// index. wanted and smallest are sizes that were asked for: of this store, and of the smallest one.
func (s *Session) addScan(ctx context.Context, sides []Side, c *indexScan, group string, reached Size, wanted, smallest int) []Side {
	param := reached.Unit
	if err := c.whole(ctx); err != nil {
		s.Fault(s.Target.System.Name, fmt.Errorf("%s, %s, %d %s: %w", group, c.name, reached.N, param, err))
		return sides
	}
	side := Side{
		Group: group, System: s.Target.System.Name, Side: c.name,
		Params: map[string]string{param: strconv.Itoa(wanted)}, Reached: &reached, Round: c.round, Verify: c.verify,
	}
	if first := slices.IndexFunc(sides, func(other Side) bool { return other.Side == c.name }); first >= 0 {
		side.Under = map[string]int{fmt.Sprintf("cost against %d %s", smallest, param): first}
	}
	return append(sides, side)
}

// openStore makes a store and opens a handle. It serves measurements that use several stores at
// once.
func (s *Session) openStore(ctx context.Context) (Store, runstore.RunStore, func() error, error) {
	store, err := s.Target.NewStore(ctx)
	if err != nil {
		return store, nil, nil, err
	}
	drop := func() error {
		if store.Drop == nil {
			return nil
		}
		return store.Drop()
	}
	handle, err := store.Open(ctx)
	if err != nil {
		return store, nil, nil, errors.Join(err, drop())
	}
	return store, handle, func() error { return errors.Join(handle.Close(), drop()) }, nil
}
