package claim_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tapestore/tapestore/lease/claim"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
)

// slow is a store whose requests take 5 ms each way, and that counts commits.
type slow struct {
	runstore.RunStore
	commits *atomic.Int64
}

const oneWay = 5 * time.Millisecond

func (s slow) Commit(ctx context.Context, b runstore.Batch) (runstore.Committed, error) {
	s.commits.Add(1)
	time.Sleep(oneWay)
	defer time.Sleep(oneWay)
	return s.RunStore.Commit(ctx, b)
}

func (s slow) ScanIndex(ctx context.Context, q runstore.IndexQuery) ([]runstore.IndexEntry, error) {
	time.Sleep(oneWay)
	defer time.Sleep(oneWay)
	return s.RunStore.ScanIndex(ctx, q)
}

// 20 consumers with handles of their own share 2,000 messages, and each is claimed once.
func TestTwentyConsumers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.New(nil)
		q := open(t, s.Open(), claim.QueueOptions{})
		for i := range 2000 {
			put(t, q, fmt.Sprint("m", i), true)
		}
		const consumers = 20
		var commits atomic.Int64
		var done sync.WaitGroup
		var mu sync.Mutex
		claimed, each, calls := map[string]int{}, [consumers]int{}, 0
		began := time.Now()
		for n := range consumers {
			done.Go(func() {
				q := open(t, slow{s.Open(), &commits}, claim.QueueOptions{})
				for empty := 0; empty < 3; {
					all, err := q.Claim(t.Context(), "consumer", 10, time.Hour)
					if err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					calls++
					for _, r := range all {
						claimed[r.ID]++
						each[n]++
					}
					mu.Unlock()
					if len(all) == 0 {
						empty++
					}
					time.Sleep(20 * time.Millisecond) // the work
				}
			})
		}
		done.Wait()
		least := each[0]
		for _, n := range each {
			least = min(least, n)
		}
		for id, n := range claimed {
			if n != 1 {
				t.Errorf("%s was claimed %d times", id, n)
			}
		}
		t.Logf("%d messages in %v by %d calls with %d commits, the least by one consumer %d", len(claimed), time.Since(began), calls, commits.Load(), least)
		if len(claimed) != 2000 {
			t.Errorf("%d messages were claimed, want 2000", len(claimed))
		}
	})
}
