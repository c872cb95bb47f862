package sqlite_test

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// BenchmarkPurge purges runs of 10,000, 100,000 and 1,000,000 events, once each, and reports the
// time for an event and the longest heartbeats of another run meanwhile, beside those of a time
// without a purge.
func BenchmarkPurge(b *testing.B) {
	const batch = 10
	for _, events := range []int{10_000, 100_000, 1_000_000} {
		b.Run(fmt.Sprint("events=", events), func(b *testing.B) {
			s := openBench(b, nil)
			held := leases(b, s, 2)
			var wg sync.WaitGroup
			for range 50 {
				wg.Go(func() {
					for range events / batch / 50 {
						w := runstore.NewBatch(held[0].Run, held[0].Fence())
						for range batch {
							w.Append("event", payload)
						}
						if _, err := s.Commit(b.Context(), w); err != nil {
							b.Error(err)
						}
					}
				})
			}
			wg.Wait()
			beats := func(during func()) (longest, p99 time.Duration) {
				done := make(chan struct{})
				go func() {
					defer close(done)
					during()
				}()
				var all []time.Duration
				for {
					select {
					case <-done:
						slices.Sort(all)
						return all[len(all)-1], all[len(all)*99/100]
					default:
					}
					began := time.Now()
					if _, err := s.RenewLease(b.Context(), runstore.RenewRequest{Fence: held[1].Fence(), TTL: time.Minute}); err != nil {
						b.Error(err)
					}
					all = append(all, time.Since(began))
				}
			}
			var spent time.Duration
			longest, p99 := beats(func() {
				w := runstore.NewBatch(held[0].Run, held[0].Fence())
				w.Purge = true
				began := time.Now()
				if _, err := s.Commit(b.Context(), w); err != nil {
					b.Error(err)
				}
				spent = time.Since(began)
			})
			idle, idle99 := beats(func() { time.Sleep(spent) })
			b.ReportMetric(float64(spent.Microseconds())/float64(events), "µs/event")
			b.ReportMetric(float64(longest.Microseconds())/1000, "longest-beat-ms")
			b.ReportMetric(float64(p99.Microseconds())/1000, "p99-beat-ms")
			b.ReportMetric(float64(idle.Microseconds())/1000, "longest-idle-ms")
			b.ReportMetric(float64(idle99.Microseconds())/1000, "p99-idle-ms")
			b.ReportMetric(0, "ns/op")
		})
	}
}
