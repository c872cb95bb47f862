package matcher

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tape"
)

// The pace of commits that move a cursor past entries without a match. A shard of which nothing matches makes one when it
// has passed bareEntries events, and at most one every bareInterval; it makes none while the feed is at rest. After a crash
// its successor reads and matches so many events again, at most: nothing that it had matched is among them.
const (
	// bareEntries is 4,096: some pages of the feed, milliseconds to match again.
	bareEntries = 4096
	// bareInterval is 30 s, so that 1,000 shards that match nothing cost a busy store 33 commits per second.
	bareInterval = 30 * time.Second
)

// follower is a shard that follows the feed under one lease, from one reading of its cursor on. It ends with the
// first failure.
type follower struct {
	shard  *shard
	ctx    context.Context // ends with the lease
	fence  runstore.Fence
	failed chan error // receives the failure
	// history is of the feed (tail.Tail.FeedHistory), before the cursor was read: the positions are of it.
	history int
	busy    sync.WaitGroup // held while a page is matched for it
	lane    *lane          // that it is in; guarded by reaction.mu

	// For the goroutine that has it busy, and for reaction.join before.
	cursor    tape.Cursor
	read      runstore.Position // up to which entries are handled or do not match; at least the cursor's
	passed    int               // events between the cursor and read
	committed time.Time         // when the cursor moved last
	advanced  bool              // it has moved
}

// due reports whether a page with so many matches, and so many events behind s.read, is to be committed.
func (s *follower) due(matches, passed int) bool {
	return matches > 0 || s.passed+passed >= bareEntries && time.Since(s.committed) >= bareInterval
}

// pass moves past events that do not match.
func (s *follower) pass(end runstore.Position, events int) {
	s.read = max(s.read, end)
	s.passed += events
}

// handle handles the matches of a page that ends at a position, in order, and moves the cursor there.
func (s *follower) handle(rule *rule, matches []tape.Entry, end runstore.Position) {
	if err := s.advance(rule, matches, end); err != nil {
		s.shard.reaction.leave(s)
		s.failed <- err
		return
	}
	s.read, s.passed, s.committed = end, 0, time.Now()
	if !s.advanced {
		s.advanced = true
		s.shard.recovered()
	}
}

// advance begins the runs that an AGENT reaction asks for, and commits the cursor with the tasks of the others. When it
// fails, the cursor is where the last commit left it; what that was is to be read again.
func (s *follower) advance(rule *rule, matches []tape.Entry, end runstore.Position) error {
	m := s.shard.reaction.m
	if rule.Handler == tape.HandlerAgent {
		for _, e := range matches {
			if err := m.request(s.ctx, func(ctx context.Context) error { return m.tape.BeginReactionRun(ctx, rule.Reaction, e) }); err != nil {
				return err
			}
		}
		matches = nil // they have no task
	}
	for s.cursor.Position < end {
		before := s.cursor.Position
		for len(matches) > 0 && matches[0].Position <= before {
			matches = matches[1:]
		}
		err := m.request(s.ctx, func(ctx context.Context) (err error) {
			s.cursor, err = m.tape.Advance(ctx, s.fence, rule.Reaction, s.cursor, matches, end)
			return err
		})
		if err != nil {
			return err
		}
		if s.cursor.Position <= before {
			return errors.New("the cursor does not move")
		}
	}
	return nil
}
