package matcher

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/tapestore/tapestore/internal/pace"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tail"
	"github.com/tapestore/tapestore/tape"
	"github.com/tapestore/tapestore/tape/predicate"
)

// The pauses after a failed read of the feed and after a failed commit: they double from the first
// to the last.
const (
	firstPause = 100 * time.Millisecond
	lastPause  = 30 * time.Second
)

// run reads the feed for a lane as long as the lane has followers.
func (x *reaction) run(l *lane) {
	for wait := firstPause; ; {
		x.mu.Lock()
		if len(l.followers) == 0 {
			l.running, l.restart = false, nil
			x.mu.Unlock()
			return
		}
		from, last := l.lowest(), l.highest()
		ctx, restart := context.WithCancel(x.ctx)
		l.restart = restart
		if l == &x.behind && from < last {
			if l.foremost = !l.foremost; l.foremost {
				from = last
				time.AfterFunc(maxStep, restart) // there may be no page: what followed may have been purged
			}
		}
		l.position, l.history = from, x.m.tail.FeedHistory()
		x.mu.Unlock()

		pages, err := x.read(ctx, l, from)
		restarted := ctx.Err() != nil
		restart()
		switch {
		case x.ctx.Err() != nil:
			x.abandon(l)
		case restarted, err == nil:
			wait = firstPause
		case errors.Is(err, runstore.ErrStoreBehind):
			x.mu.Lock()
			x.giveUp(l, func(*follower) bool { return true })
			x.mu.Unlock()
		default:
			if pages > 0 {
				wait = firstPause
			}
			x.m.opts.Logger.Warn("a reaction cannot read the feed, and tries again", "reaction", x.current().ID, "position", int64(from), "pause", wait, "error", err)
			pace.Pause(x.ctx, wait)
			wait = min(2*wait, lastPause)
		}
	}
}

// abandon empties a lane whose reaction has ended.
func (x *reaction) abandon(l *lane) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for s := range l.followers {
		x.remove(s)
	}
}

// errRestored ends followers whose positions may be ahead of the store. Their cursors are read
// again.
var errRestored = errors.New("the store knows less of the feed than before: it was restored from a backup")

// giveUp ends the selected followers of a lane with errRestored. The caller holds the mutex, and
// none of them may be busy.
func (x *reaction) giveUp(l *lane, which func(*follower) bool) {
	for s := range l.followers {
		if which(s) {
			x.remove(s)
			s.left <- errRestored
		}
	}
}

// read follows the feed after a position for a lane, until the feed fails. It returns nil if the
// lane must start again: ctx has ended, or the store was restored.
func (x *reaction) read(ctx context.Context, l *lane, from runstore.Position) (pages int, err error) {
	for page, err := range x.m.tail.Feed(ctx, from) {
		if err != nil {
			return pages, err
		}
		pages++
		if !x.step(ctx, l, from, page) {
			return pages, nil
		}
		from = page[len(page)-1].Position
	}
	return pages, errors.New("the feed ended")
}

// step matches a page, which begins after the position from, for the followers of a lane at that position
// or after it, waits until they have handled it, and returns true. It returns false if the lane must start
// again: ctx has ended, or the followers that are behind are at other positions than the end of the page.
func (x *reaction) step(ctx context.Context, l *lane, from runstore.Position, page []tail.FeedEvent) bool {
	end := page[len(page)-1].Position
	x.mu.Lock()
	if ctx.Err() != nil { // add and remove cancel ctx under the mutex
		x.mu.Unlock()
		return false
	}
	history := x.m.tail.FeedHistory()
	x.giveUp(l, func(s *follower) bool { return s.history != history })
	if history != l.history || len(l.followers) == 0 { // the page may belong to an earlier history
		x.mu.Unlock()
		return false
	}
	rule, followers := x.rule, make([]*follower, 0, len(l.followers))
	for s := range l.followers {
		if s.read >= from {
			s.busy.Add(1)
			followers = append(followers, s)
		}
	}
	l.position = end
	x.mu.Unlock()

	byShard := x.match(rule, page, followers)
	var work sync.WaitGroup
	for _, s := range followers {
		matched, passed := byShard[s.shard.number], behindOf(page, s.read)
		if !s.due(len(matched), passed) {
			s.pass(end, passed)
			s.busy.Done()
			continue
		}
		work.Go(func() {
			defer s.busy.Done()
			s.handle(rule, matched, end)
		})
	}
	work.Wait()
	x.mu.Lock()
	defer x.mu.Unlock()
	if l == &x.behind {
		x.catchUp()
		return l.lowest() == end && l.highest() == end
	}
	x.split()
	return true
}

// behindOf returns the number of a page's events after a position.
func behindOf(page []tail.FeedEvent, after runstore.Position) int {
	first, _ := slices.BinarySearchFunc(page, after+1, func(e tail.FeedEvent, at runstore.Position) int { return cmp.Compare(e.Position, at) })
	return len(page) - first
}

// match returns the entries of a page that the reaction has to handle and that are after the
// positions of their shards, by shard.
func (x *reaction) match(rule *rule, page []tail.FeedEvent, followers []*follower) map[int32][]tape.Entry {
	reads := make(map[int32]runstore.Position, len(followers))
	for _, s := range followers {
		reads[s.shard.number] = s.read
	}
	matched := map[int32][]tape.Entry{}
	for _, e := range page {
		if e.Err != nil {
			x.m.passDamaged(e)
			continue
		}
		in, ok := inputOf(e)
		if !ok {
			continue
		}
		shard := rule.ShardOf(in.Entry.Run)
		if read, mine := reads[shard]; mine && e.Position > read && rule.matches(in) {
			matched[shard] = append(matched[shard], in.Entry)
		}
	}
	return matched
}

// inputOf returns the entry of an event, and false for an event that the feed leaves out. If the
// tail derives entries for its subscribers, they share the parsed payload.
func inputOf(e tail.FeedEvent) (*predicate.Input, bool) {
	if in, shared := e.Derived.(*predicate.Input); shared {
		return in, true
	}
	entry, ok := tape.FeedEntryOf(e.FeedEvent)
	if !ok {
		return nil, false
	}
	return predicate.NewInput(entry), true
}
