package matcher

import (
	"sync"
	"time"
)

// spread decides when a replica asks for the leases of shards, so that replicas end with about as many shards each.
// There is no list of the replicas: each knows itself and those whose leases it met.
//
//   - A shard that a replica sees for the first time, as all are when replicas start and some are when a reaction is
//     registered, is asked for later by a replica that holds more: askSpacing for each shard it holds, up to maxHandicap.
//     Shards that are seen together are asked for one after the other, askSpacing apart, in a random order.
//   - A replica that holds its share or more, which is the number of shards divided by that of the replicas it knows, asks
//     for the leases of others half as often.
//
// A replica that comes when all shards are held gets none before a lease is free: no lease is taken away or given up for
// balance.
type spread struct {
	every time.Duration // between two requests for a lease that another replica holds

	mu      sync.Mutex
	next    time.Time // for the next shard that is seen first
	shards  int
	held    int
	holders map[*shard]string // the other replica that holds a shard
	others  map[string]int    // the shards of each other replica, as far as they were met
}

const (
	// askSpacing is 5 ms: alone, a replica asks for 200 shards in a second.
	askSpacing = 5 * time.Millisecond
	// maxHandicap is 500 ms, half of the second within which a match should have its task.
	maxHandicap = 500 * time.Millisecond
)

func (p *spread) init(ttl time.Duration) {
	p.every = ttl / 4
	p.holders, p.others = map[*shard]string{}, map[string]int{}
}

// enter adds a shard, and returns how long the replica waits before it asks for its lease.
func (p *spread) enter() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.shards++
	now := time.Now()
	if p.next.Before(now) {
		p.next = now
	}
	wait := p.next.Sub(now) + min(time.Duration(p.held)*askSpacing, maxHandicap)
	p.next = p.next.Add(askSpacing)
	return wait
}

// leave takes a shard out that has ended.
func (p *spread) leave(s *shard) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.shards--
	p.met(s, "")
}

// grant counts a lease that this replica got.
func (p *spread) grant(s *shard) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.held++
	p.met(s, "")
}

// end counts the end of a lease of this replica.
func (p *spread) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.held--
}

// wait returns how long the replica waits before it asks again for a lease that another one holds, with
// that much time remaining.
func (p *spread) wait(s *shard, holder string, remaining time.Duration) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.met(s, holder)
	every := p.every
	if p.held > 0 && p.held*(len(p.others)+1) >= p.shards {
		every, remaining = 2*every, remaining+p.every/2
	}
	return min(jitter(every), remaining+jitter(p.every/4))
}

// met records the other replica that holds a shard; "" for none.
func (p *spread) met(s *shard, holder string) {
	if before := p.holders[s]; before != "" {
		if p.others[before]--; p.others[before] == 0 {
			delete(p.others, before)
		}
	}
	delete(p.holders, s)
	if holder != "" {
		p.holders[s] = holder
		p.others[holder]++
	}
}
