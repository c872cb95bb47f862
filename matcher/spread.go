package matcher

import (
	"sync"
	"time"

	"github.com/tapestore/tapestore/internal/pace"
)

// spread balances shards between replicas: it decides when a replica requests the leases of shards,
// so that all replicas end up with about the same number. There is no list of replicas: each counts
// itself and the holders of leases that it was refused.
//
//   - When a replica first sees a shard (at its start, or when a reaction is registered), it delays
//     the request by askSpacing for each shard that it holds, up to maxHandicap. It requests shards
//     that it sees together one after the other, askSpacing apart, in a random order.
//   - A replica that holds its share or more, which is the number of shards divided by the number
//     of replicas that it has counted, requests the leases of others half as often.
//
// A replica that starts when all shards are held gets none before a lease is free: no lease is
// taken away or released for balance.
type spread struct {
	every time.Duration // time between two requests for a lease that another replica holds

	mu      sync.Mutex
	next    time.Time // earliest request for the next new shard
	shards  int
	held    int
	holders map[*shard]string // the other replica that holds a shard
	others  map[string]int    // number of shards of each other replica, as far as this one has seen
}

const (
	// askSpacing is 5 ms: a single replica requests 200 shards per second.
	askSpacing = 5 * time.Millisecond
	// maxHandicap is 500 ms, half of the second within which a match should have its task.
	maxHandicap = 500 * time.Millisecond
)

func (p *spread) init(ttl time.Duration) {
	p.every = ttl / 4
	p.holders, p.others = map[*shard]string{}, map[string]int{}
}

// enter adds a shard and returns the time until the replica requests its lease.
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

// leave removes a shard that has ended.
func (p *spread) leave(s *shard) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.shards--
	p.met(s, "")
}

// grant counts a lease that was granted to this replica.
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

// wait returns the time until the replica requests again a lease that another replica holds with
// that much time remaining.
func (p *spread) wait(s *shard, holder string, remaining time.Duration) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.met(s, holder)
	every := p.every
	if p.held > 0 && p.held*(len(p.others)+1) >= p.shards {
		every, remaining = 2*every, remaining+p.every/2
	}
	return min(pace.Jitter(every), remaining+pace.Jitter(p.every/4))
}

// met records which other replica holds a shard; "" for none.
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
