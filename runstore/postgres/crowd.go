package postgres

import (
	"context"
	"slices"
	"sync"
	"time"
)

// crowd lets appends to several runs share a round trip when more of them come than
// there are places: those that find none wait until one is free, and then go
// together. The commit of a transaction is the dearest part of an append, for the
// server and for its disk, and a shared one is paid once.
//
// What shares a round trip waits for no row: a row that another transaction has
// locked is left out, and so is one whose fence does not hold. Those go alone
// after that.
type crowd struct {
	mu      sync.Mutex
	free    int
	waiting []*party

	alone    func(ctx context.Context, group []*request) // sends a group of one run
	together func(ctx context.Context, parties []*party) // sends several groups, and marks those that it left out
}

// places is how many round trips of appends are under way before others share one.
const places = 2

// slow is after how long a round trip gives up its place, so that a few rows which
// somebody holds do not keep the appends to all others waiting.
const slow = 20 * time.Millisecond

// party is a group of one run that goes with those of other runs.
type party struct {
	ctx     context.Context
	group   []*request // copies: whoever sent the originals may leave before the answer
	leftOut bool
	done    chan struct{}
}

// run sends a group of one run, and returns when it has its answers, or its context
// has ended.
func (c *crowd) run(ctx context.Context, group []*request) {
	if !shareable(group) {
		c.alone(ctx, group)
		return
	}
	c.mu.Lock()
	if c.free > 0 {
		c.free--
		c.mu.Unlock()
		c.occupy(func() { c.alone(ctx, group) })
		return
	}
	p := &party{ctx: ctx, done: make(chan struct{})}
	for _, r := range group {
		own := *r
		if r.done == nil { // else it is independent of its caller already
			own.keep()
		}
		p.group = append(p.group, &own)
	}
	c.waiting = append(c.waiting, p)
	c.mu.Unlock()
	err := c.await(p)
	for i, r := range group {
		if r.err = err; err == nil {
			r.answer, r.err, r.sent = p.group[i].answer, p.group[i].err, p.group[i].sent
		}
	}
}

// shareable reports whether a group may share a statement with those of other runs: there is
// one for each of its batches, and one for all of them.
func shareable(group []*request) bool {
	return !slices.ContainsFunc(group, func(r *request) bool {
		return !r.direct() || r.write.single() || r.hints.forgets || r.fence != group[0].fence || len(group) > 1 && !r.plain()
	})
}

// await waits for the answer to a party. The error is that of a context that ended
// before.
func (c *crowd) await(p *party) error {
	select {
	case <-p.done:
		return nil
	case <-p.ctx.Done():
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if i := slices.Index(c.waiting, p); i >= 0 {
		c.waiting = slices.Delete(c.waiting, i, i+1)
		return notSent{p.ctx.Err()}
	}
	select {
	case <-p.done: // both had happened
		return nil
	default:
		return p.ctx.Err()
	}
}

// occupy does f, a round trip, in a place that was taken for it.
func (c *crowd) occupy(f func()) {
	leave := sync.OnceFunc(c.leave)
	defer leave()
	defer time.AfterFunc(slow, leave).Stop()
	f()
}

// leave gives a place to those who wait.
func (c *crowd) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if next := c.next(); len(next) > 0 {
		go c.occupy(func() { c.send(next) })
		return
	}
	c.free++
}

// next takes those who go next. The caller holds c.mu.
func (c *crowd) next() []*party {
	n, requests, events, size := 0, 0, 0, 0
	for _, p := range c.waiting {
		for _, r := range p.group {
			requests++
			events += r.appends()
			size += r.size
		}
		if n > 0 && (requests > maxGroup || events > maxGroupEvents || size > maxGroupBytes) {
			break
		}
		n++
	}
	next := slices.Clone(c.waiting[:n])
	c.waiting = slices.Delete(c.waiting, 0, n)
	return next
}

// send sends parties together, and then those that were left out.
func (c *crowd) send(parties []*party) {
	if len(parties) == 1 { // the place is taken until it has its answer
		defer close(parties[0].done)
		c.alone(parties[0].ctx, parties[0].group)
		return
	}
	all := make([]*request, len(parties))
	for i, p := range parties {
		all[i] = &request{ctx: p.ctx}
	}
	ctx, stop := whileAnyLives(all)
	c.together(ctx, parties)
	stop()
	for _, p := range parties {
		if !p.leftOut {
			close(p.done)
			continue
		}
		go func() {
			defer close(p.done)
			c.alone(p.ctx, p.group)
		}()
	}
}
