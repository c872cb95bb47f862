package claim_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tapestore/tapestore/internal/claimload"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
)

// Seeds of the loads in simulated time.
const seeds = 60

func simulate(t *testing.T, load func(t *testing.T, l claimload.Load)) {
	for seed := range uint64(seeds) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := memory.New(nil)
				l := claimload.Load{Seed: seed, Faults: float64(seed%4) / 10, Workers: 6, Rounds: 20, TTL: time.Second, Exact: true}
				for range 3 {
					l.Stores = append(l.Stores, runstore.RunStore(s.Open()))
				}
				load(t, l)
			})
		})
	}
}

// No message is claimed twice at once, none is lost, each is acknowledged once, while connections
// lose, delay and refuse requests and consumers die, in simulated time.
func TestMessagesUnderFaults(t *testing.T) {
	simulate(t, func(t *testing.T, l claimload.Load) { claimload.Messages(t, l, 1+int(l.Seed)%4) })
}

// Holds and commitments never exceed the capacity, and nothing leaks, under the same faults.
func TestHoldsUnderFaults(t *testing.T) {
	simulate(t, func(t *testing.T, l claimload.Load) { claimload.Holds(t, l, 20) })
}
