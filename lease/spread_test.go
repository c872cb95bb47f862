package lease_test

import (
	"context"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tapestore/tapestore/lease"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
)

// renewals records when each run was renewed.
type renewals struct {
	*memory.Handle
	mu sync.Mutex
	at map[runstore.RunID][]time.Duration // since began
	// began is when all leases were granted.
	began time.Time
}

func (r *renewals) RenewLease(ctx context.Context, req runstore.RenewRequest) (runstore.Renewed, error) {
	r.mu.Lock()
	id := req.Fence.Run()
	r.at[id] = append(r.at[id], time.Since(r.began))
	r.mu.Unlock()
	return r.Handle.RenewLease(ctx, req)
}

// Leases that were granted at one moment do not renew together, from the first renewal on, and no
// interval exceeds the heartbeat.
func TestLeasesGrantedTogetherRenewApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const leases, heartbeat, window = 1000, 10 * time.Second, time.Second
		store := &renewals{Handle: memory.New(nil).Open(), at: make(map[runstore.RunID][]time.Duration), began: time.Now()}
		keeper, err := lease.New(store, nil)
		if err != nil {
			t.Fatal(err)
		}
		var all sync.WaitGroup
		for i := range leases {
			id := runstore.RunID(strconv.Itoa(i))
			created, err := store.CreateRun(t.Context(), runstore.RunSpec{ID: id, Lease: &runstore.LeaseSpec{Owner: "agent", TTL: lease.DefaultTTL}})
			if err != nil {
				t.Fatal(err)
			}
			all.Go(func() {
				if err := keeper.Hold(t.Context(), lease.Granted{Lease: created.Lease, Sent: store.began}, wait(65*time.Second)); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		var first, sixth, every []time.Duration
		for _, at := range store.at {
			wantIntervals(t, at, heartbeat)
			if len(at) < 6 {
				t.Fatalf("%d renewals in 65 s, want at least 6", len(at))
			}
			first, sixth, every = append(first, at[0]), append(sixth, at[5]), append(every, at...)
		}
		// Uniformly drawn first renewals have a fifth in each second of the second half of the
		// heartbeat. A window in which 30% of 1000 lie is 8 standard deviations off.
		if n := fullest(first, window); n > leases*30/100 {
			t.Errorf("%d of %d leases have their first renewal within %v", n, leases, window)
		}
		if n, before := fullest(sixth, window), fullest(first, window); n > before*3/2 {
			t.Errorf("%d leases have their sixth renewal within %v, and %d their first: they gather", n, window, before)
		}
		if n := fullest(every, window); n > leases*30/100 {
			t.Errorf("%d renewals of %d leases within %v", n, leases, window)
		}
	})
}

// fullest returns how many of the times lie within the fullest window.
func fullest(at []time.Duration, window time.Duration) (most int) {
	slices.Sort(at)
	first := 0
	for i, d := range at {
		for d-at[first] >= window {
			first++
		}
		most = max(most, i-first+1)
	}
	return most
}
