package bigtable_test

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tapestore/tapestore/emulators"
	bigtableemulator "github.com/tapestore/tapestore/emulators/bigtable"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/bigtable"
)

// The benchmarks run on an emulator in this process. What they measure is the work of client and
// adapter, and how the emulator's filters take to the rows; they say nothing of the service.
// Commits are measured by tapestore bench, beside hand-written mutations:
//
//	go test -run '^$' -bench . ./runstore/bigtable

// rate performs n operations with so many clients, and returns how many a second.
func rate(b *testing.B, clients, n int, do func(i int) error) float64 {
	b.Helper()
	var left atomic.Int64
	left.Store(int64(n))
	var wg sync.WaitGroup
	began := time.Now()
	for i := range clients {
		wg.Go(func() {
			for left.Add(-1) >= 0 {
				if err := do(i); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	return float64(n) / time.Since(began).Seconds()
}

func median(all []float64) float64 {
	all = slices.Sorted(slices.Values(all))
	return all[len(all)/2]
}

// rig is a store on a table of its own.
type rig struct{ store *bigtable.Store }

func newRig(b *testing.B) *rig {
	b.Helper()
	server, err := bigtableemulator.Start(b.Context(), nil)
	emulators.Require(b, err)
	b.Cleanup(func() { _ = server.Close() })
	table := server.NewTable()
	r := &rig{}
	r.store, err = bigtable.Open(b.Context(), &bigtable.Options{
		Project: table.Project, Instance: table.Instance, Table: table.Table, Emulator: server.Address(),
	})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = r.store.Close() })
	return r
}

// hold creates a run and takes its lease.
func (r *rig) hold(b *testing.B, id runstore.RunID) runstore.Lease {
	b.Helper()
	created, err := r.store.CreateRun(b.Context(), runstore.RunSpec{ID: id, Lease: &runstore.LeaseSpec{Owner: "bench", TTL: runstore.MaxTTL}})
	if err != nil {
		b.Fatal(err)
	}
	return created.Lease
}

// BenchmarkAcquire is 16 contenders for one lease, each of whom lets it go as soon as
// it has it. Every grant must have a token of its own.
func BenchmarkAcquire(b *testing.B) {
	r := newRig(b)
	lease := r.hold(b, "run")
	if _, err := r.store.ReleaseLease(b.Context(), runstore.ReleaseRequest{Fence: lease.Fence()}); err != nil {
		b.Fatal(err)
	}
	var attempts atomic.Int64
	var mu sync.Mutex
	var waits []float64
	tokens := map[runstore.Token]int{}
	n := max(64, b.N)
	wins := rate(b, 16, n, func(i int) error {
		for {
			began := time.Now()
			lease, err := r.store.AcquireLease(b.Context(), runstore.AcquireRequest{
				Run: "run", LeaseSpec: runstore.LeaseSpec{Owner: runstore.Owner(fmt.Sprint(i)), TTL: time.Minute},
			})
			attempts.Add(1)
			if errors.Is(err, runstore.ErrLeaseHeld) {
				mu.Lock()
				waits = append(waits, float64(time.Since(began).Microseconds())/1000)
				mu.Unlock()
				continue
			}
			if err != nil {
				return err
			}
			mu.Lock()
			tokens[lease.Token]++
			mu.Unlock()
			_, err = r.store.ReleaseLease(b.Context(), runstore.ReleaseRequest{Fence: lease.Fence()})
			return err
		}
	})
	for token, n := range tokens {
		if n != 1 {
			b.Errorf("token %v was granted %d times", token, n)
		}
	}
	if len(tokens) != n {
		b.Errorf("%d tokens for %d wins", len(tokens), n)
	}
	b.ReportMetric(wins, "wins/s")
	b.ReportMetric(float64(attempts.Load())/float64(n), "attempts/win")
	if len(waits) > 0 {
		b.ReportMetric(median(waits), "loser-ms")
	}
	b.ReportMetric(0, "ns/op")
}
