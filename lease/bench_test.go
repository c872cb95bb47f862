package lease_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tapestore/tapestore/emulators"
	"github.com/tapestore/tapestore/lease"
	"github.com/tapestore/tapestore/runstore"
	_ "github.com/tapestore/tapestore/runstore/postgres"
	_ "github.com/tapestore/tapestore/runstore/sqlite"
)

// BenchmarkHandover measures the time from a release to the next holder, of 64 contenders that wait
// for the lease, while another run is written to every 5 ms. The contenders share one handle; the
// holder and the writer have one each, as if they were in other parts of a program.
//
//	go test ./lease -run '^$' -bench Handover -benchtime 200x
func BenchmarkHandover(b *testing.B) {
	b.Run("sqlite", func(b *testing.B) {
		benchmarkHandover(b, "sqlite:"+filepath.Join(b.TempDir(), "tape.db"))
	})
	b.Run("postgres", func(b *testing.B) {
		server, err := emulators.Postgres(b.Context(), &emulators.PostgresOptions{Durable: true})
		emulators.Require(b, err)
		b.Cleanup(func() { _ = server.Close() })
		db, err := server.NewDatabase(b.Context(), "")
		if err != nil {
			b.Fatal(err)
		}
		benchmarkHandover(b, db.URL)
	})
}

// asking counts the requests for leases of a store that gives hints.
type asking struct {
	runstore.RunStore
	runstore.RunNotifier
	asked atomic.Int64
}

func (a *asking) AcquireLease(ctx context.Context, req runstore.AcquireRequest) (runstore.Granted, error) {
	a.asked.Add(1)
	return a.RunStore.AcquireLease(ctx, req)
}

func benchmarkHandover(b *testing.B, url string) {
	const waiters, every = 64, 5 * time.Millisecond
	open := func() runstore.RunStore {
		s, err := runstore.Open(b.Context(), url)
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = s.Close() })
		return s
	}
	holder, writer, contended := open(), open(), open()
	for _, id := range []runstore.RunID{"run", "other"} {
		if _, err := holder.CreateRun(b.Context(), runstore.RunSpec{ID: id}); err != nil {
			b.Fatal(err)
		}
	}
	counted := &asking{RunStore: contended, RunNotifier: contended.(runstore.RunNotifier)}
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	granted := make(chan runstore.Lease)
	for i := range waiters {
		keeper, err := lease.New(counted, &lease.Options{TTL: 10 * time.Minute})
		if err != nil {
			b.Fatal(err)
		}
		all.Go(func() {
			for ctx.Err() == nil {
				got, err := keeper.Acquire(ctx, runstore.AcquireRequest{Run: "run", LeaseSpec: runstore.LeaseSpec{Owner: runstore.Owner(fmt.Sprint(i))}})
				if err != nil && !errors.Is(err, context.Canceled) {
					b.Error(err)
				}
				if err != nil {
					return
				}
				select {
				case granted <- got.Lease:
				case <-ctx.Done():
				}
			}
		})
	}
	all.Go(func() {
		batch := runstore.NewBatch("other", runstore.Unguarded("benchmark"))
		batch.Append("work", nil)
		for tick := time.NewTicker(every); ctx.Err() == nil; <-tick.C {
			if _, err := writer.Commit(ctx, batch); err != nil && ctx.Err() == nil {
				b.Error(err)
			}
		}
	})
	var took []time.Duration
	current := <-granted
	time.Sleep(2 * time.Second) // all others wait
	before := counted.asked.Load()
	for b.Loop() {
		began := time.Now()
		if _, err := holder.ReleaseLease(ctx, runstore.ReleaseRequest{Fence: current.Fence()}); err != nil {
			b.Fatal(err)
		}
		current = <-granted
		took = append(took, time.Since(began))
		time.Sleep(50 * time.Millisecond) // it works
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "ms/handover(median)")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "ms/handover(p99)")
	b.ReportMetric(float64(counted.asked.Load()-before)/float64(len(took))/waiters, "requests/waiter")
	b.ReportMetric(0, "ns/op")
}
