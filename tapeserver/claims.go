package tapeserver

import (
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"sync"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tape"
)

// maxClaims is the number of claims that a connection stores: 256, above the 200 effects that a list
// returns by default. At 150 bytes each, 1,024 connections store 40 MB.
const maxClaims = 256

// claims are the claims of one connection that were not reported yet. With tape.FenceConnection the server
// presents their generations in reports that have none. So a dispatcher that does not support
// generations does not end, by a late report of a failure, the claim of another one, after which a
// third one would dispatch the effect at the same time.
type claims struct {
	mu          sync.Mutex
	generations map[workID]int64
	order       []workID // oldest first
}

// workID is the hash of what a claim is for; a hash, because keys of effects are long.
type workID [sha256.Size]byte

func effectWork(run runstore.RunID, key string) workID {
	return sha256.Sum256(fmt.Appendf(nil, "effect %q %q", run, key))
}

func obligationWork(run runstore.RunID, seq int64) workID {
	return sha256.Sum256(fmt.Appendf(nil, "obligation %q %d", run, seq))
}

// put stores the generation of a claim; 0 deletes it. Above maxClaims the oldest claim is evicted.
func (c *claims) put(work workID, generation int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if i := slices.Index(c.order, work); i >= 0 {
		c.order = slices.Delete(c.order, i, i+1)
		delete(c.generations, work)
	}
	if generation == 0 {
		return
	}
	if len(c.order) == maxClaims {
		delete(c.generations, c.order[0])
		c.order = slices.Delete(c.order, 0, 1)
	}
	if c.generations == nil {
		c.generations = map[workID]int64{}
	}
	c.generations[work] = generation
	c.order = append(c.order, work)
}

func (c *claims) get(work workID) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.generations[work]
}

// claimed stores a claim that is returned on the connection of a call.
func (s *service) claimed(ctx context.Context, work workID, generation int64) {
	if s.opts.Fence == tape.FenceConnection {
		connOf(ctx).claims.put(work, generation)
	}
}

// generation returns the generation of a failed attempt's claim: the presented one, or else that of the
// connection's claim; 0 if there is none.
func (s *service) generation(ctx context.Context, work workID, presented int64) int64 {
	if presented > 0 || s.opts.Fence != tape.FenceConnection {
		return presented
	}
	return connOf(ctx).claims.get(work)
}

// reported deletes a claim of which a failed attempt was reported, if it is still the last one.
func (s *service) reported(ctx context.Context, work workID, generation, last int64) {
	if s.opts.Fence == tape.FenceConnection && generation == last {
		connOf(ctx).claims.put(work, 0)
	}
}
