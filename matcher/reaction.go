package matcher

import (
	"cmp"
	"context"
	"fmt"
	"sync"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tape"
	"github.com/tapestore/tapestore/tape/predicate"
)

// reaction is a live reaction with the shards that this replica drives or waits for.
type reaction struct {
	m      *Matcher
	id     string
	ctx    context.Context // ends with the reaction, and with Run
	cancel context.CancelFunc
	shards []*shard // all of the reaction's, by number; for the goroutine of Run

	mu   sync.Mutex
	rule *rule
	// head follows the end of the feed. behind has the shards whose position is before that of head, until they
	// have caught up with it. Both are guarded by mu.
	head, behind lane
	// uneven says that a shard has joined head that has handled more of the feed than head has read. It is guarded by mu.
	uneven bool
}

// rule is a definition of a reaction, ready to match.
type rule struct {
	tape.Reaction
	pattern   tape.Pattern
	predicate *predicate.Predicate
	never     bool // it matches nothing: its pattern or predicate is malformed, or it has no handler
}

// compile returns the rule of a definition.
func (m *Matcher) compile(r tape.Reaction) *rule {
	compiled := &rule{Reaction: r}
	var err error
	if compiled.pattern, err = tape.ParsePattern(r.Pattern); err == nil {
		compiled.predicate, err = m.predicates.Compile(r.Predicate)
	}
	if err == nil {
		err = compiled.predicate.Err()
	}
	switch r.Handler {
	case tape.HandlerAgent, tape.HandlerTask, tape.HandlerPublish:
	default:
		err = cmp.Or(err, fmt.Errorf("its handler is of the kind %d", r.Handler))
	}
	if compiled.never = err != nil; compiled.never {
		m.opts.Logger.Info("a reaction matches nothing", "reaction", r.ID, "error", err)
	}
	return compiled
}

// matches reports whether the reaction is to handle an entry.
func (r *rule) matches(in *predicate.Input) bool {
	return !r.never && r.pattern.Match(in.Entry.Subject) && r.predicate.Match(in)
}

// define makes r the reaction's definition, ends the shards that it has no more and returns those that it has now.
func (x *reaction) define(r tape.Reaction) (fresh []*shard) {
	x.mu.Lock()
	known := x.rule != nil && x.rule.Version == r.Version && x.rule.CreatedAtMS == r.CreatedAtMS && x.rule.Start == r.Start
	x.mu.Unlock()
	if known {
		return nil
	}
	compiled := x.m.compile(r)
	x.mu.Lock()
	x.rule = compiled
	x.mu.Unlock()
	n := int(max(r.Shards, 1))
	for i := len(x.shards); i > n; i-- {
		x.shards[i-1].cancel()
	}
	x.shards = x.shards[:min(len(x.shards), n)]
	for i := len(x.shards); i < n; i++ {
		s := &shard{reaction: x, number: int32(i)}
		s.ctx, s.cancel = context.WithCancel(x.ctx)
		x.shards, fresh = append(x.shards, s), append(fresh, s)
	}
	return fresh
}

// current returns the definition that holds now.
func (x *reaction) current() *rule {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.rule
}

// join lets a shard follow the feed behind its position.
func (x *reaction) join(s *follower) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(x.head.followers) == 0 || s.read >= x.head.position {
		x.uneven = x.uneven || len(x.head.followers) > 0 && s.read > x.head.position
		x.add(&x.head, s)
	} else {
		x.add(&x.behind, s)
	}
}

// split moves the followers of head that are not at its last one's position to behind: those with a backlog that joined
// first would keep the others waiting. The goroutine of head calls it when it has none of them busy. It does so once
// for each shard that joins, so that pages that end at different positions do not move followers to and fro.
func (x *reaction) split() {
	if !x.uneven {
		return
	}
	x.uneven = false
	var last runstore.Position
	for s := range x.head.followers {
		last = max(last, s.read)
	}
	if last <= x.head.position {
		return
	}
	for s := range x.head.followers {
		if s.read < last {
			x.remove(s)
			x.add(&x.behind, s)
		}
	}
	x.head.position = last
	x.head.restart()
}

// leave takes a shard out of its lane, if it is in one. A page that the lane is at may still be matched for it: the
// caller waits for follower.idle.
func (x *reaction) leave(s *follower) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.remove(s)
}

// add puts a follower into a lane. The lane's reader starts anew if it has read past the follower's position.
func (x *reaction) add(l *lane, s *follower) {
	if l.followers == nil {
		l.followers = map[*follower]struct{}{}
	}
	if len(l.followers) == 0 {
		l.position = s.read
	}
	l.followers[s], s.lane = struct{}{}, l
	switch {
	case !l.running:
		l.running = true
		x.m.work.Go(func() { x.run(l) })
	case s.read < l.position && l.restart != nil:
		l.restart()
	}
}

// remove takes a follower out of its lane. A lane without followers stops to read.
func (x *reaction) remove(s *follower) {
	l := s.lane
	if l == nil {
		return
	}
	s.lane = nil
	delete(l.followers, s)
	if len(l.followers) == 0 && l.restart != nil {
		l.restart()
	}
}

// catchUp moves followers from behind to head that are no longer behind it.
func (x *reaction) catchUp() {
	for s := range x.behind.followers {
		if len(x.head.followers) == 0 || s.read >= x.head.position {
			x.remove(s)
			x.add(&x.head, s)
		}
	}
}

// lane is a reader of the feed with followers. It matches each page once for all of them. Its fields are guarded by
// reaction.mu.
type lane struct {
	followers map[*follower]struct{}
	position  runstore.Position // the end of the page that the lane is at: it reads on behind it
	history   int               // of the feed, that the pages are of
	running   bool              // its goroutine is there
	restart   context.CancelFunc
}

// lowest returns the position of the follower that is last.
func (l *lane) lowest() runstore.Position {
	low := runstore.Position(runstore.MaxPosition)
	for s := range l.followers {
		low = min(low, s.read)
	}
	return low
}
