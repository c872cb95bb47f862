package telemetry

import (
	"sync"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// expiries remembers the expiry of the leases that replies of the store have named lately, because
// the grant that takes a lease over does not name the expiry of the lease before. The zero value is
// ready for use. The memory is bounded: the leases seen longest ago are forgotten.
type expiries struct {
	mu sync.Mutex
	// young and old are two generations; old is dropped when young is full.
	young, old map[runstore.RunID]expiry
}

// expiry is the expiry of a grant on the store clock.
type expiry struct {
	token runstore.Token
	owner runstore.Owner
	at    time.Time
}

// generation is 2,048: the number of leases in one generation. With the longest ids and owners that
// is about 2 MiB for both.
const generation = 2048

// swap records the expiry of a run's grant, and returns the one that it replaces. The reply with the
// higher token is the later one, and of one token that with the later expiry.
func (x *expiries) swap(id runstore.RunID, e expiry) (last expiry, known bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if last, known = x.young[id]; !known {
		last, known = x.old[id]
	}
	if known && (e.token < last.token || e.token == last.token && e.at.Before(last.at)) {
		e = last
	}
	if x.young == nil || len(x.young) >= generation {
		x.young, x.old = make(map[runstore.RunID]expiry, generation), x.young
	}
	x.young[id] = e
	return last, known
}
