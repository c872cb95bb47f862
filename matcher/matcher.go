package matcher

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tapestore/tapestore/internal/pace"
	"github.com/tapestore/tapestore/lease"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tail"
	"github.com/tapestore/tapestore/tape"
	"github.com/tapestore/tapestore/tape/predicate"
)

// Matcher is one replica: it drives the shards whose leases it acquires. Its methods are safe for
// concurrent use.
type Matcher struct {
	opts   Options
	tape   *tape.Tape
	tail   *tail.Tail
	keeper *lease.Keeper
	slots  chan struct{} // holds a value for each request to the store in flight
	wake   chan struct{}
	spread spread
	// stalled is the number of shards that are stalled.
	stalled atomic.Int64

	reactions map[string]*reaction // by id; used only by the goroutine of Run
	work      sync.WaitGroup       // the goroutines that Run started
	listFails bool

	predicates predicate.Cache

	mu      sync.Mutex
	damaged runstore.Position // damaged events up to here were logged
}

// New returns a matcher of the reactions of t, which follows the feed through feed. It starts no
// goroutine before Run. The caller closes the store, after Run has returned.
func New(t *tape.Tape, feed *tail.Tail, opts *Options) (*Matcher, error) {
	m := &Matcher{
		opts: opts.resolve(), tape: t, tail: feed, wake: make(chan struct{}, 1), reactions: map[string]*reaction{},
	}
	if m.opts.Requests < 1 || m.opts.ListInterval < 0 || len(m.opts.Owner) > runstore.MaxOwner {
		return nil, fmt.Errorf("matcher: %w: Requests is %d, ListInterval %v, and Owner has %d bytes of %d",
			runstore.ErrInvalid, m.opts.Requests, m.opts.ListInterval, len(m.opts.Owner), runstore.MaxOwner)
	}
	keeper, err := lease.New(t.Store(), m.opts.keeper())
	if err != nil {
		return nil, fmt.Errorf("matcher: %w", err)
	}
	m.keeper = keeper
	m.slots = make(chan struct{}, m.opts.Requests)
	m.spread.init(m.opts.TTL)
	return m, nil
}

// Wake makes Run list the reactions soon, after a reaction was registered or deregistered.
func (m *Matcher) Wake() {
	select {
	case m.wake <- struct{}{}:
	default: // a list is due already
	}
}

// Run drives shards until ctx ends, releases their leases, and returns. It may be called once. If
// the store's calls end with their contexts, Run returns within the time that
// lease.Options.ReleaseTimeout allows for a release.
func (m *Matcher) Run(ctx context.Context) {
	defer m.work.Wait()
	for {
		live, err := m.list(ctx)
		if ctx.Err() != nil {
			return
		}
		m.reportList(err)
		if err == nil {
			m.reconcile(ctx, live)
		}
		every := m.opts.ListInterval
		if err == nil && len(live) == 0 {
			every = m.opts.idleInterval()
		}
		timer := time.NewTimer(pace.Jitter(every)) // so that replicas do not list at the same time
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-m.wake:
			timer.Stop()
		case <-timer.C:
		}
	}
}

// list reads the live reactions, within requestTimeout.
func (m *Matcher) list(ctx context.Context) (live []tape.Reaction, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	for r, err := range m.tape.Reactions(ctx) {
		if err != nil {
			return nil, err
		}
		live = append(live, r)
	}
	return live, nil
}

// reportList logs the first of consecutive failures, and the recovery.
func (m *Matcher) reportList(err error) {
	switch {
	case err != nil && !m.listFails:
		m.opts.Logger.Warn("the matcher cannot list the reactions, and goes on with those it knows", "error", err)
	case err == nil && m.listFails:
		m.opts.Logger.Info("the matcher lists the reactions again")
	}
	m.listFails = err != nil
}

// reconcile ends the reactions that are no longer live, adopts new definitions, and starts new
// shards.
func (m *Matcher) reconcile(ctx context.Context, live []tape.Reaction) {
	known := make(map[string]bool, len(live))
	var fresh []*shard
	for _, r := range live {
		known[r.ID] = true
		x := m.reactions[r.ID]
		if x == nil {
			x = &reaction{m: m, id: r.ID}
			x.ctx, x.cancel = context.WithCancel(ctx)
			m.reactions[r.ID] = x
		}
		fresh = append(fresh, x.define(r)...)
	}
	for id, x := range m.reactions {
		if !known[id] {
			x.cancel()
			delete(m.reactions, id)
		}
	}
	// A random order lets each replica find other shards free.
	rand.Shuffle(len(fresh), func(i, j int) { fresh[i], fresh[j] = fresh[j], fresh[i] })
	for _, s := range fresh {
		wait := m.spread.enter()
		m.work.Go(func() {
			defer m.spread.leave(s)
			s.run(wait)
		})
	}
}

// requestTimeout is 10 s: a request without a reply by then is abandoned, so that it does not keep
// its slot, and its effect is read from the store.
const requestTimeout = 10 * time.Second

// request makes requests of one shard, in one of the slots and within requestTimeout.
func (m *Matcher) request(ctx context.Context, do func(context.Context) error) error {
	select {
	case m.slots <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-m.slots }()
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	return do(ctx)
}

// passDamaged logs an event of the feed that the store cannot read, once for all reactions.
func (m *Matcher) passDamaged(e tail.FeedEvent) {
	m.mu.Lock()
	logged := e.Position <= m.damaged
	m.damaged = max(m.damaged, e.Position)
	m.mu.Unlock()
	if !logged {
		m.opts.Logger.Warn("the matcher passes over a damaged event of the feed", "position", int64(e.Position), "run", e.Run, "seq", int64(e.Seq), "error", e.Err)
	}
}
