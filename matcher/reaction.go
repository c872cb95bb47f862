package matcher

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

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
	shards []*shard // all shards of the reaction, by number; used only by the goroutine of Run

	mu   sync.Mutex
	rule *rule
	// head follows the end of the feed. behind has the shards whose positions are before that of
	// head, until they have caught up. mu guards both.
	head, behind lane
	// uneven reports that a shard that has handled more of the feed than head has read joined head.
	// mu guards it.
	uneven bool
}

// rule is a compiled definition of a reaction.
type rule struct {
	tape.Reaction
	pattern        tape.Pattern
	predicate      *predicate.Predicate
	matchesNothing bool // the rule matches nothing: its pattern or predicate is malformed, or it has no handler
	log            *slog.Logger
	failed         atomic.Bool // a fault of the predicate was logged
}

// compile returns the rule of a definition.
func compile(r tape.Reaction, predicates *predicate.Cache, log *slog.Logger) *rule {
	compiled := &rule{Reaction: r, log: log}
	var err error
	if compiled.pattern, err = tape.ParsePattern(r.Pattern); err == nil {
		compiled.predicate, err = predicates.Compile(r.Predicate)
	}
	if err == nil {
		err = compiled.predicate.Err()
	}
	switch r.Handler {
	case tape.HandlerAgent, tape.HandlerTask, tape.HandlerPublish:
	default:
		err = cmp.Or(err, fmt.Errorf("its handler is of the kind %d", r.Handler))
	}
	if compiled.matchesNothing = err != nil; compiled.matchesNothing {
		log.Warn("a reaction matches nothing", "reaction", r.ID, "error", err)
	}
	return compiled
}

// matches reports whether the reaction has to handle an entry. It logs the first fault of the predicate.
func (r *rule) matches(in *predicate.Input) bool {
	if r.matchesNothing || !r.pattern.Match(in.Entry.Subject) {
		return false
	}
	selected, fault := r.predicate.Evaluate(in)
	if fault != nil && !r.failed.Swap(true) {
		r.log.Warn("the predicate of a reaction fails on an entry; such entries are skipped, and further ones are not logged",
			"reaction", r.ID, "error", fault, "run", in.Entry.Run, "seq", in.Entry.Seq)
	}
	return selected
}

// define makes r the reaction's definition, ends surplus shards, and returns the shards that are
// new.
func (x *reaction) define(r tape.Reaction) (fresh []*shard) {
	x.mu.Lock()
	known := x.rule != nil && x.rule.Reaction == r // not the version alone, which repeats after a restore
	x.mu.Unlock()
	if known {
		return nil
	}
	compiled := compile(r, &x.m.predicates, x.m.opts.Logger)
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

// current returns the current definition.
func (x *reaction) current() *rule {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.rule
}

// join adds a shard to a lane, which follows the feed from the shard's position.
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

// split moves the followers of head that are behind its foremost follower to the lane behind:
// followers with a backlog that joined first would delay the others. The goroutine of head calls it
// while none of them is busy. It runs once for each shard that joins, so that pages that end at
// different positions do not move followers back and forth.
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

// leave removes a shard from its lane, if it is in one. The lane may still be working on a page for
// the shard: the caller waits for follower.busy.
func (x *reaction) leave(s *follower) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.remove(s)
}

// add adds a follower to a lane. The lane's reader restarts if it has read past the follower's
// position.
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

// remove removes a follower from its lane. A lane without followers stops reading.
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

// catchUp moves followers from behind to head once they are no longer behind it.
func (x *reaction) catchUp() {
	for s := range x.behind.followers {
		if len(x.head.followers) == 0 || s.read >= x.head.position {
			x.remove(s)
			x.add(&x.head, s)
		}
	}
}

// lane is a reader of the feed with followers. It matches each page once for all of them.
// reaction.mu guards its fields.
type lane struct {
	followers map[*follower]struct{}
	position  runstore.Position // the end of the page in work: the next read starts after it
	history   int               // the feed's history that the pages belong to
	running   bool              // the lane has a goroutine
	restart   context.CancelFunc

	// foremost reports that the page in work is that of the foremost followers of behind, and not of its last
	// ones. The lane reads for both in turn, unless all are at one position. So the foremost, which may have
	// little left, do not wait for the backlog of the last, and no page is read that all followers have passed, for
	// example because the last one stalls and joins again. A backlog takes at most twice its pages.
	foremost bool
}

// lowest returns the lowest position of the followers.
func (l *lane) lowest() runstore.Position {
	low := runstore.Position(runstore.MaxPosition)
	for s := range l.followers {
		low = min(low, s.read)
	}
	return low
}

// highest returns the highest position of the followers.
func (l *lane) highest() runstore.Position {
	high := runstore.Position(0)
	for s := range l.followers {
		high = max(high, s.read)
	}
	return high
}
