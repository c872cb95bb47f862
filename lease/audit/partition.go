package audit

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// A partition is a part of the runs that fits into memory: the runs whose hashes are from first to
// last. The feed and the indexes are read once for each partition.
//
// How many runs a store has is not known before they were read. So a partition begins with all hashes
// from first on, and whenever it has more than MaxRuns runs, it drops those of the upper half of
// its hashes. The next partition begins there. The hash is random, so the partitions are about equal.
//
// A partition with findings is read a second time, with only the runs that have any (suspects). What a
// check concludes in the second reading holds although others write, because the head of each
// suspect was read before everything else: if the run still has the same creation time at the end,
// all that was read in between belongs to one incarnation of the run.
type partition struct {
	first, last uint64
	runs        map[runstore.RunID]*runState
	suspects    bool // this is the second reading

	after  runstore.Position // where the feed was read to
	noFeed bool              // the feed cannot be read to its end
	chains int               // the number of hashes in the chains of all runs
}

// runState is what is known of a run between the reading of the feed and that of its journal.
type runState struct {
	id runstore.RunID
	// before is the run's head before the second reading; exists is false if there was no such run.
	before runstore.Run
	exists bool

	// seen is the seq of the last event that the feed has shown, and chain the hash of the events
	// up to it. incomparable is set if the feed does not show these events completely.
	seen         runstore.Seq
	chain        uint64
	incomparable bool
	seenAt       runstore.Position
	feedEvents   int64
	chains       []uint64 // of a suspect: chain after each event, as long as there is room
	// listed and runnable report entries in the two indexes of runs; createdAt is the creation time
	// that such an entry shows.
	listed, runnable bool
	createdAt        time.Time
	entries          int64

	// end is the last seq of the journal and endChain the hash of its events, if the journal has
	// events that the feed has not shown yet; else end is 0.
	end      runstore.Seq
	endChain uint64
	latest   time.Time // the latest time in the run

	findings []Finding
}

// maxChains is how many hashes of events are kept to find the first event in which a feed and a
// journal differ: 8 MiB.
const maxChains = 1 << 20

// hash returns the place of a run in the order of the partitions.
func (c *checker) hash(id runstore.RunID) uint64 { return maphash.String(c.seed, string(id)) }

// track returns the state of a run, nil if the run is in another partition.
func (c *checker) track(s *partition, id runstore.RunID) *runState {
	if r := s.runs[id]; r != nil || s.suspects {
		return r
	}
	if h := c.hash(id); h < s.first || h > s.last {
		return nil
	}
	r := &runState{id: id}
	s.runs[id] = r
	for len(s.runs) > c.opts.MaxRuns && s.first < s.last {
		s.last = s.first + (s.last-s.first)/2
		maps.DeleteFunc(s.runs, func(id runstore.RunID, _ *runState) bool { return c.hash(id) > s.last })
	}
	return s.runs[id]
}

// add records a finding of a run until it is confirmed. Corruptions and warnings have separate quotas, so
// that no number of warnings keeps a corruption from being confirmed.
func (c *checker) add(r *runState, f Finding) {
	f.Run = r.id
	kept, suppressed, ofRun := &c.kept, &c.report.Suppressed, 0
	if f.Warning() {
		kept, suppressed = &c.keptWarnings, &c.report.SuppressedWarnings
	}
	for _, known := range r.findings {
		if known.identity() == f.identity() {
			return
		}
		if known.Warning() == f.Warning() {
			ofRun++
		}
	}
	if ofRun == maxPerRun || *kept == maxKept {
		*suppressed++
		return
	}
	*kept++
	r.findings = append(r.findings, f)
}

// checkPartition checks the partition that begins at a hash, and returns the last hash of the partition.
func (c *checker) checkPartition(ctx context.Context, first uint64) (last uint64, err error) {
	s := &partition{first: first, last: math.MaxUint64, runs: map[runstore.RunID]*runState{}}
	c.kept, c.keptWarnings = 0, 0
	if err := c.readPartition(ctx, s); err != nil {
		return 0, err
	}
	again := &partition{runs: map[runstore.RunID]*runState{}, suspects: true}
	for id, r := range s.runs {
		c.count(r)
		if len(r.findings) > 0 {
			again.runs[id] = &runState{id: id}
		}
	}
	if len(again.runs) == 0 {
		return s.last, nil
	}
	c.kept, c.keptWarnings = 0, 0
	suppressed, warnings := c.report.Suppressed, c.report.SuppressedWarnings
	if err := c.readPartition(ctx, again); err != nil {
		return 0, err
	}
	c.report.Suppressed, c.report.SuppressedWarnings = suppressed, warnings // count the first reading alone
	for _, id := range slices.Sorted(maps.Keys(again.runs)) {
		for _, f := range again.runs[id].findings {
			if slices.ContainsFunc(s.runs[id].findings, func(g Finding) bool { return g.identity() == f.identity() }) {
				c.publish(f)
			}
		}
	}
	return s.last, nil
}

// count adds what was read of a run, beside its journal and records, to the report.
func (c *checker) count(r *runState) {
	c.report.FeedEvents += r.feedEvents
	c.report.Entries += r.entries
}

// readPartition reads the feed and the indexes, then the runs, then the rest of the feed.
func (c *checker) readPartition(ctx context.Context, s *partition) (err error) {
	if s.suspects {
		for _, r := range s.runs {
			r.before, err = c.store.GetRun(ctx, r.id)
			if err != nil && !errors.Is(err, runstore.ErrNotFound) && !damaged(err) {
				return err
			}
			r.exists = err == nil
			r.before.Summary = runstore.Record{}
		}
	}
	if err := c.readFeed(ctx, s); err != nil {
		return err
	}
	for _, index := range append([]runstore.IndexName{runstore.IndexRuns, runstore.IndexRunnable}, c.opts.Indexes...) {
		if err := c.scan(ctx, s, index); err != nil {
			return err
		}
	}
	for _, id := range slices.Sorted(maps.Keys(s.runs)) {
		if err := c.examine(ctx, s, s.runs[id]); err != nil {
			return err
		}
	}
	return c.readRest(ctx, s)
}

// sameIncarnation reports whether all that was read of a run belongs to one incarnation of it: the
// run was not purged since the reading of the partition began. In the first reading that is not known.
func (s *partition) sameIncarnation(r *runState, head runstore.Run) bool {
	return !s.suspects || r.exists && r.before.CreatedAt.Equal(head.CreatedAt)
}

// problem formats the text of a finding.
func problem(format string, args ...any) string { return fmt.Sprintf(format, args...) }
