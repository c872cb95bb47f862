package bigtable

import (
	"context"
	"slices"
	"time"

	"google.golang.org/grpc/metadata"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter/outcome"
	"github.com/tapestore/tapestore/runstore/localclock"
)

// ByTest is the metadata of requests that a test makes through one of the functions
// here.
const ByTest = "tapestore-test"

func byTest(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(ctx, ByTest, "yes")
}

// StopWorkers ends what brings a handle's events into the feed and what clears up.
func StopWorkers(s *Store) {
	close(s.engine.feed.done)
	close(s.engine.waste.done)
	close(s.engine.upkeep.done)
	s.engine.background.Wait()
	s.engine.feed.done, s.engine.waste.done, s.engine.upkeep.done = make(chan struct{}), make(chan struct{}), make(chan struct{}) // for Close
}

// Sequence brings the events of runs into the feed.
func Sequence(ctx context.Context, s *Store, ids ...runstore.RunID) error {
	return s.engine.feed.sequence(byTest(ctx), ids...)
}

// Seal moves the events of a run that has many into segments.
func Seal(ctx context.Context, s *Store, id runstore.RunID) error {
	ctx = byTest(ctx)
	for {
		r, err := s.engine.runs.enter(ctx, id) // the handle has to know the run
		if err != nil {
			return err
		}
		s.engine.runs.leave(r)
		if err := s.engine.prepareSeal(ctx, id); err != nil {
			return err
		}
		e, err := s.engine.write(ctx, id, needs{fresh: true}, func(r *run, _ time.Time) (*edit, error) {
			p := r.sealing.Load()
			if p == nil || !r.exists() || !p.isNext(&r.head) {
				r.sealing.Store(nil)
				return nil, nil
			}
			e := newEdit(r, runstore.FromMicros(r.head.Time))
			e.seal(p)
			return e, nil
		})
		if err != nil || e == nil {
			return err
		}
	}
}

// Ahead has f run while a handle takes its clock to be an hour ahead.
func Ahead(s *Store, f func()) { Shift(s, time.Hour, f) }

// Shift has f run while a handle takes its clock to be off by d.
func Shift(s *Store, d time.Duration, f func()) {
	s.engine.clock.mu.Lock()
	known := s.engine.clock.last
	s.engine.clock.last.server = known.server.Add(d)
	s.engine.clock.mu.Unlock()
	f()
	s.engine.clock.mu.Lock()
	s.engine.clock.last = known
	s.engine.clock.mu.Unlock()
}

// Sweep passes over the marks of all shards, claimed or not. The handle must be one without workers.
func Sweep(ctx context.Context, s *Store) {
	all := make([]int, shards)
	for i := range all {
		all[i] = i
	}
	_ = s.engine.sweep(byTest(ctx), all)
}

// Pass passes over the marks that a handle without workers has claimed, and returns the number of shards.
func Pass(ctx context.Context, s *Store) int { return s.engine.upkeep.passClaimed(byTest(ctx)) }

// AgeClaims makes the claims that a handle has met old.
func AgeClaims(s *Store) {
	for i := range s.engine.upkeep.met {
		s.engine.upkeep.met[i].since = localclock.Reading{}
	}
}

// Collect collects garbage, and waits for no creation that may be under way.
func Collect(ctx context.Context, s *Store) error {
	s.engine.lonelyAfter = 0
	_, err := s.engine.collectGarbage(byTest(ctx))
	return err
}

// EmptyWaste deletes now what would be deleted in the background, sooner or later.
func EmptyWaste(ctx context.Context, s *Store) {
	s.engine.waste.mu.Lock()
	for i := range s.engine.waste.aging {
		s.engine.waste.aging[i].from = localclock.Reading{}
	}
	s.engine.waste.mu.Unlock()
	s.engine.waste.ripen()
	s.engine.waste.empty(byTest(ctx))
}

// AgeWaste makes what a handle is to delete look as if it had been found long ago.
func AgeWaste(s *Store) {
	for i := range s.engine.waste.found {
		s.engine.waste.found[i].at = s.engine.waste.found[i].at.Add(-time.Hour)
	}
	for i := range s.engine.waste.aging {
		s.engine.waste.aging[i].at = s.engine.waste.aging[i].at.Add(-time.Hour)
	}
}

// DeleteWaste deletes now what may be deleted without waiting for readers.
func DeleteWaste(ctx context.Context, s *Store) { s.engine.waste.empty(byTest(ctx)) }

// SetRetryTimeout changes how long the operations of a handle without workers try again.
func SetRetryTimeout(s *Store, d time.Duration) { s.engine.opts.RetryTimeout = d }

// SetYield changes how long the operations of a handle without workers wait for another
// one's turn.
func SetYield(s *Store, d time.Duration) { s.engine.yieldFor = d }

// Bound has a handle wait for one request, and for a scan, for as long as a slow machine may
// take.
func Bound(o *Options, d time.Duration) { o.bound = d }

// Hot has records leave the row of their run above so many bytes, and cold ones be rewritten early.
func Hot(o *Options, bytes int64) { o.hot = bytes }

// Relieve moves records out of a run's row, if it is heavy, and rewrites cold ones.
func Relieve(ctx context.Context, s *Store, id runstore.RunID, rewrite bool) error {
	ctx = byTest(ctx)
	again, err := s.engine.underLane(ctx, id, s.engine.moveRecords)
	for again = again || rewrite; again && err == nil; {
		again, err = s.engine.underLane(ctx, id, s.engine.rewrite)
	}
	return err
}

// RelieveHeavy does what a handle does in the background after a write of a run.
func RelieveHeavy(ctx context.Context, s *Store, id runstore.RunID) error {
	heavy, err := s.engine.underLane(ctx, id, func(_ context.Context, r *run, _ *outcome.Backoff) (bool, error) { return s.engine.isHeavy(r), nil })
	if err != nil || !heavy {
		return err
	}
	return Relieve(ctx, s, id, false)
}

// Moves returns how many moves the row of a run lists, and what the row holds of records.
func Moves(ctx context.Context, s *Store, id runstore.RunID) (moves int, bytes int64, err error) {
	r, err := s.engine.readRun(byTest(ctx), id, coldFilter())
	if err != nil {
		return 0, 0, err
	}
	c, err := r.cold()
	if c != nil {
		moves = len(c.moves)
	}
	return moves, r.head.RecordBytes, err
}

// SetHot is Hot for a handle that is open.
func SetHot(s *Store, bytes int64) {
	s.engine.hotBytes, s.engine.maxTombs, s.engine.rewriteRows = bytes, 10, 10
}

// ColdRows returns how many rows of cold records a run should have: one for each key and for each move.
func ColdRows(ctx context.Context, s *Store, id runstore.RunID) (int, error) {
	r, err := s.engine.readRun(byTest(ctx), id, coldFilter())
	if err != nil {
		return 0, err
	}
	c, err := r.cold()
	if err != nil || c == nil {
		return 0, err
	}
	return int(c.Keys) + len(c.moves), nil
}

// Rewrite makes one step of a rewriting, and reports whether it needs another.
func Rewrite(ctx context.Context, s *Store, id runstore.RunID) (more bool, err error) {
	return s.engine.underLane(byTest(ctx), id, s.engine.rewrite)
}

// DropTombs deletes, of the rows that a handle is to delete, the latest of each record.
func DropTombs(ctx context.Context, s *Store) error {
	var all []mutation
	last := ""
	var keys []string
	for _, g := range s.engine.waste.found {
		keys = append(keys, g.keys...)
	}
	for _, k := range slices.Sorted(slices.Values(keys)) {
		if k[:1] == kindCold && len(k) > 16 && k[:len(k)-16] != last {
			last = k[:len(k)-16]
			all = append(all, remove(k))
		}
	}
	return s.engine.writeAll(byTest(ctx), all)
}

// Compact compacts blocks of the feed's log that follow a hash.
func Compact(ctx context.Context, s *Store, hash string) error {
	return s.engine.compactSome(byTest(ctx), hash)
}

// SkipSegments makes the log of the feed go on with the next number that begins a step.
func SkipSegments(ctx context.Context, s *Store) error {
	ctx = byTest(ctx)
	if err := s.engine.feed.catchUp(ctx); err != nil {
		return err
	}
	made, err := s.engine.create(ctx, &segment{By: 1, Next: (s.engine.feed.end/stepSegments + 1) * stepSegments, number: s.engine.feed.end}, false)
	if err == nil && !made {
		err = errBusy
	}
	return err
}
