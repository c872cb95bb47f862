package matcher

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tape"
)

// The pace of commits that move a cursor past entries without a match. A shard that matches nothing
// commits once it has passed bareEntries events, at most every bareInterval, and never while the
// feed is idle. After a crash its successor reads and matches at most that many events again; none
// of them had matched.
const (
	// bareEntries is 4,096 events: several pages of the feed, which take milliseconds to match
	// again.
	bareEntries = 4096
	// bareInterval is 30 s, so that 1,000 shards that match nothing cost a busy store 33 commits per second.
	bareInterval = 30 * time.Second
)

// follower is a shard that follows the feed under one lease, from one read of its cursor on. It
// ends at the first failure.
type follower struct {
	shard *shard
	ctx   context.Context // ends with the lease
	fence runstore.Fence
	left  chan error // receives the reason why the lane dropped it: a failure, or errSlow
	// history is the feed's history (tail.Tail.FeedHistory) before the cursor was read: the
	// positions belong to it.
	history int
	busy    sync.WaitGroup // held while a lane works on a page for it
	lane    *lane          // the lane it is in; guarded by reaction.mu

	// Used by the goroutine that holds busy, and before that by reaction.join.
	cursor    tape.Cursor
	read      runstore.Position // entries up to here are handled or do not match; at least the cursor's position
	passed    int               // events between the cursor and read
	committed time.Time         // when the cursor last moved
	advanced  bool              // the cursor has moved
}

// due reports whether to commit after a page with that many matches and that many events after
// s.read.
func (s *follower) due(matches, passed int) bool {
	return matches > 0 || s.passed+passed >= bareEntries && time.Since(s.committed) >= bareInterval
}

// pass moves past events that do not match. A shard that stalled has read the feed again.
func (s *follower) pass(end runstore.Position, events int) {
	s.shard.recovered()
	s.read = max(s.read, end)
	s.passed += events
}

// maxStep is 1 s, within which a match should have its task. A shard whose work on a page takes
// longer leaves its lane for the rest of it, so that it delays the others by at most maxStep and
// one request.
const maxStep = time.Second

// errSlow makes a shard leave its lane and join again. It is not a failure.
var errSlow = errors.New("the work on a page takes long")

// handle handles the matches of a page that ends at end, in order, and moves the cursor to end.
func (s *follower) handle(rule *rule, matches []tape.Entry, end runstore.Position) {
	if err := s.advance(rule, matches, end); err != nil {
		s.shard.reaction.leave(s)
		s.left <- err
		return
	}
	s.read, s.passed = end, 0
}

// advance commits the cursor with the tasks of the matches, or with the runs to begin, and begins
// these runs. After a failure the cursor in the store is that of the last commit and must be read
// again. advance returns errSlow, after a commit, if work is left after maxStep.
func (s *follower) advance(rule *rule, matches []tape.Entry, end runstore.Position) error {
	began := time.Now()
	slow := func() bool { return time.Since(began) >= maxStep }
	for commits := 0; ; commits++ {
		for s.cursor.PendingRuns() > 0 {
			if slow() {
				return errSlow
			}
			if err := s.begin(); err != nil {
				return err
			}
		}
		if s.cursor.Position >= end && s.cursor.Settled() {
			return nil
		}
		if s.cursor.Position < end && commits > 0 && slow() {
			return errSlow
		}
		for len(matches) > 0 && matches[0].Position <= s.cursor.Position {
			matches = matches[1:]
		}
		if err := s.commit(rule, matches, max(end, s.cursor.Position)); err != nil {
			return err
		}
	}
}

// begin begins the next of the runs that the cursor names.
func (s *follower) begin() error {
	x := s.shard.reaction
	return x.m.request(s.ctx, func(ctx context.Context) (err error) {
		s.cursor, err = x.m.tape.BeginReactionRun(ctx, x.id, s.cursor)
		return err
	})
}

// commit makes one commit of the cursor.
func (s *follower) commit(rule *rule, matches []tape.Entry, end runstore.Position) error {
	m, before := s.shard.reaction.m, s.cursor.Version
	err := m.request(s.ctx, func(ctx context.Context) (err error) {
		s.cursor, err = m.tape.Advance(ctx, s.fence, rule.Reaction, s.cursor, matches, end)
		return err
	})
	if err == nil && s.cursor.Version == before {
		err = errors.New("the cursor does not move")
	}
	if err != nil {
		return err
	}
	s.committed = time.Now()
	if !s.advanced {
		s.advanced = true
		s.shard.recovered()
	}
	return nil
}

// settle begins the runs that the cursor names, outside of a lane: runs that another replica has
// left, or that would block the lane for too long.
func (s *follower) settle() error {
	for s.cursor.PendingRuns() > 0 {
		if err := s.begin(); err != nil {
			return err
		}
	}
	if s.cursor.Settled() {
		return nil
	}
	return s.commit(s.shard.reaction.current(), nil, s.cursor.Position)
}
