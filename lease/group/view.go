package group

import (
	"cmp"
	"context"
	"encoding/json"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/tapestore/tapestore/internal/pace"
	"github.com/tapestore/tapestore/runstore"
)

// memberKey is the key of a member's record: the summary, so that one read returns the record with
// the lease.
const memberKey = runstore.SummaryKey

// memberRecord is the value of a member's record.
type memberRecord struct {
	Name       string `json:"name"`
	Attributes []byte `json:"attributes,omitempty"`
	Shards     int    `json:"shards,omitempty"`
}

// view is what one read of the group found.
type view struct {
	at      time.Time // the store clock
	members []Member  // the live ones, by name
	dead    []dead
	expiry  time.Time // the earliest expiry of a live member on the store clock; zero if there is none
}

// dead is a member whose record has outlived its lease.
type dead struct {
	name   string
	head   runstore.Run
	record runstore.Record
}

func (v view) snapshot() Snapshot { return Snapshot{At: v.at, Members: v.members} }

// read reads the group. The clock is read first: a member that is dead in the view had expired before
// its lease was read. A member that is live may have expired since.
func (g *Group) read(ctx context.Context) (view, error) {
	now, err := g.store.Now(ctx)
	if err != nil {
		return view{}, err
	}
	v := view{at: now}
	newest := map[runstore.RunID]runstore.IndexEntry{} // a member that rejoins during the scan has two entries
	query := runstore.IndexQuery{Index: g.index(), Until: runstore.EndOfTime, Heads: true}
	for e, err := range runstore.Entries(ctx, g.store, query) {
		if err != nil {
			return view{}, err
		}
		if e.Record.Version > newest[e.Run].Record.Version {
			newest[e.Run] = e
		}
	}
	for _, e := range newest {
		var r memberRecord
		if err := json.Unmarshal(e.Record.Value, &r); err != nil {
			g.opts.Logger.Warn("group: the record of a member cannot be read", "run", e.Run, "error", err)
			continue
		}
		if !e.Head.Live(now) || e.Head.Holder.Token != e.Record.Updated.Token {
			v.dead = append(v.dead, dead{name: r.Name, head: e.Head, record: e.Record})
			continue
		}
		v.members = append(v.members, Member{
			Name: r.Name, Attributes: r.Attributes, Token: e.Head.Token, JoinedAt: e.Head.Holder.GrantedAt, Shards: r.Shards,
		})
		if v.expiry.IsZero() || e.Head.ExpiresAt.Before(v.expiry) {
			v.expiry = e.Head.ExpiresAt
		}
	}
	slices.SortFunc(v.members, func(a, b Member) int { return cmp.Compare(a.Name, b.Name) })
	slices.SortFunc(v.dead, func(a, b dead) int { return cmp.Compare(a.name, b.name) })
	return v, nil
}

const (
	// noBound is the bound of a poller.next that has none.
	noBound = time.Duration(1<<63 - 1)
	// expirySpread is how long after an expiry the members are read at the latest: readers that wait
	// for the same expiry do not all read at once.
	expirySpread = 100 * time.Millisecond
)

// poller reads the group again and again: after the interval, after an expiry, after an announcement
// of the store.
type poller struct {
	group *Group
	wake  <-chan struct{} // announces writes to the group's run; nil if the store does not
	kick  chan struct{}   // requests a read
	begun bool
	read  time.Time     // when the last read ended, on the monotonic clock
	left  time.Duration // from then to the earliest expiry
}

// newPoller returns a poller whose subscription lasts until ctx ends.
func (g *Group) newPoller(ctx context.Context) *poller {
	p := &poller{group: g, kick: make(chan struct{}, 1)}
	if notifier, ok := runstore.As[runstore.RunNotifier](g.store); ok {
		if ch, err := notifier.RunWakeups(ctx, g.Run(), runstore.OnWrite); err == nil { // otherwise it polls
			p.wake = ch
		}
	}
	return p
}

// next waits until it is time to read, for at most bound, and reads the group. Its first call does
// not wait. It repeats reads that fail until ctx ends; its error is ctx's cause or definite.
func (p *poller) next(ctx context.Context, bound time.Duration) (v view, err error) {
	interval := p.group.opts.Interval
	if p.begun {
		wait := min(interval*4/5+rand.N(interval/5+1), bound)
		if p.left < noBound {
			wait = min(wait, time.Until(p.read.Add(p.left))+rand.N(expirySpread))
		}
		timer := time.NewTimer(max(wait, 0))
		defer timer.Stop()
		select {
		case <-ctx.Done():
		case <-timer.C:
		case <-p.kick:
		case <-p.wake:
			// A store may wake without a change, so wake-ups cause a bounded rate of reads.
			pace.Pause(ctx, time.Until(p.read.Add(interval/20)))
		}
	}
	p.begun = true
	err = p.group.retry(ctx, func(attempt context.Context) error {
		v, err = p.group.read(attempt)
		if err != nil && ctx.Err() == nil {
			p.group.opts.Logger.Warn("group: the members could not be read", "group", p.group.name, "error", err)
		}
		return err
	})
	if ctx.Err() != nil {
		return view{}, context.Cause(ctx)
	}
	p.read, p.left = time.Now(), noBound
	if !v.expiry.IsZero() {
		p.left = v.expiry.Sub(v.at)
	}
	return v, err
}

// request has the next call of next return soon.
func (p *poller) request() {
	select {
	case p.kick <- struct{}{}:
	default: // requested already
	}
}
