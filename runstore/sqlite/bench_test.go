package sqlite_test

import (
	"context"
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/sqlite"
)

// The benchmarks print both sides of each comparison from one run, in turn, so
// that a machine whose speed drifts does not favour one of them:
//
//	go test -run '^$' -bench . ./runstore/sqlite

// rounds is how often the two sides of a comparison take turns.
const rounds = 8

// side is one side of a comparison: do performs n operations.
type side struct {
	name string
	do   func(n int)
}

// compare runs the sides in turn, b.N operations each in total, and reports every
// side's operations per second and its ratio to the last one, the yardstick.
func compare(b *testing.B, sides ...side) {
	b.Helper()
	spent := make([]time.Duration, len(sides))
	n := max(1, b.N/rounds)
	for range rounds {
		for i, s := range sides {
			began := time.Now()
			s.do(n)
			spent[i] += time.Since(began)
		}
	}
	base := spent[len(spent)-1].Seconds()
	for i, s := range sides {
		b.ReportMetric(float64(n*rounds)/spent[i].Seconds(), s.name+"/s")
		if i < len(sides)-1 {
			b.ReportMetric(base/spent[i].Seconds(), s.name+"-ratio")
		}
	}
	b.ReportMetric(0, "ns/op") // of no meaning: an operation of each side
}

var payload = make([]byte, 100)

func openBench(b *testing.B, opts *sqlite.Options) *sqlite.Store {
	b.Helper()
	s, err := sqlite.Open(b.Context(), filepath.Join(b.TempDir(), "tape.db"), opts)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = s.Close() })
	return s
}

// leases creates n runs and takes their leases.
func leases(b *testing.B, s runstore.RunStore, n int) []runstore.Lease {
	b.Helper()
	all := make([]runstore.Lease, n)
	for i := range all {
		spec := runstore.RunSpec{
			ID:    runstore.RunID(fmt.Sprintf("f47ac10b-58cc-4372-a567-0e02b2c3%04d", i)),
			Lease: &runstore.LeaseSpec{Owner: "bench", TTL: runstore.MaxTTL},
		}
		created, err := s.CreateRun(b.Context(), spec)
		if err != nil {
			b.Fatal(err)
		}
		all[i] = created.Lease
	}
	return all
}

// appendUnder commits one event under a lease.
func appendUnder(b *testing.B, s runstore.RunStore, lease runstore.Lease) {
	batch := runstore.NewBatch(lease.Run, lease.Fence())
	batch.Append("event", payload)
	if _, err := s.Commit(context.Background(), batch); err != nil {
		b.Error(err)
	}
}

// BenchmarkLoneWriter commits one event after the other on one run: the cost of a commit that shares
// its sync with no other.
func BenchmarkLoneWriter(b *testing.B) {
	s := openBench(b, nil)
	held := leases(b, s, 1)
	for b.Loop() {
		appendUnder(b, s, held[0])
	}
}

// BenchmarkBesideABusyProcess commits every 5 ms while another handle with other connections, like another
// process, commits without pause from one or 64 goroutines. It reports how long a commit takes, and so how
// long a heartbeat would.
func BenchmarkBesideABusyProcess(b *testing.B) {
	for _, busy := range []int{1, 64} {
		b.Run(fmt.Sprintf("committers=%d", busy), func(b *testing.B) {
			path := filepath.Join(b.TempDir(), "tape.db")
			var open [2]*sqlite.Store
			for i := range open {
				s, err := sqlite.Open(b.Context(), path, nil)
				if err != nil {
					b.Fatal(err)
				}
				defer func() { _ = s.Close() }()
				open[i] = s
			}
			held := leases(b, open[0], busy+1)
			var stop atomic.Bool
			var wg sync.WaitGroup
			for i := range busy {
				wg.Go(func() {
					for !stop.Load() {
						appendUnder(b, open[0], held[i])
					}
				})
			}
			var times []time.Duration
			for b.Loop() {
				began := time.Now()
				appendUnder(b, open[1], held[busy])
				times = append(times, time.Since(began))
				time.Sleep(5 * time.Millisecond)
			}
			stop.Store(true)
			wg.Wait()
			slices.Sort(times)
			for name, q := range map[string]float64{"p50-ms": 0.5, "p95-ms": 0.95, "max-ms": 1} {
				b.ReportMetric(float64(times[int(q*float64(len(times)-1))].Microseconds())/1000, name)
			}
		})
	}
}

// BenchmarkGroupCommit compares 64 concurrent committers with group commit on and
// off, synchronous=FULL: each on a run of its own, and all on one run.
func BenchmarkGroupCommit(b *testing.B) {
	for _, runs := range []int{64, 1} {
		b.Run(fmt.Sprintf("committers=64/runs=%d", runs), func(b *testing.B) {
			// Each committer makes whole rounds of its own.
			committers := func(group int) func(n int) {
				s := openBench(b, &sqlite.Options{MaxGroup: group})
				held := leases(b, s, runs)
				return func(n int) {
					var wg sync.WaitGroup
					for i := range 64 {
						wg.Go(func() {
							for range max(1, n/64) {
								appendUnder(b, s, held[i%runs])
							}
						})
					}
					wg.Wait()
				}
			}
			compare(b, side{"grouped", committers(0)}, side{"single", committers(1)})
		})
	}
}

// BenchmarkLongJournal reads a journal of 1,000,000 events page by page: once, whatever b.N,
// because a pass is long enough.
func BenchmarkLongJournal(b *testing.B) {
	s := openBench(b, nil)
	lease := leases(b, s, 1)[0]
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			for range 20_000 {
				appendUnder(b, s, lease)
			}
		})
	}
	wg.Wait()
	var peak, n uint64
	began := time.Now()
	for e, err := range runstore.Journal(b.Context(), s, lease.Run, 1) {
		if err != nil {
			b.Fatal(err)
		}
		if n++; uint64(e.Seq) != n {
			b.Fatalf("seq %d follows %d", e.Seq, n-1)
		}
		if n%100_000 == 0 {
			var m runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&m)
			peak = max(peak, m.HeapAlloc)
		}
	}
	b.ReportMetric(float64(peak)/(1<<20), "peak-heap-MB")
	b.ReportMetric(float64(n)/time.Since(began).Seconds(), "events/s")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkBatchIDs compares commits that carry an id: at batch 1,000,000 of a run, at batch
// 1,000 of another, each in a database of its own, and without an id.
func BenchmarkBatchIDs(b *testing.B) {
	commits := func(before int, named bool) func(n int) {
		s := openBench(b, nil)
		lease := leases(b, s, 1)[0]
		var last atomic.Int64
		commit := func() {
			batch := runstore.NewBatch(lease.Run, lease.Fence())
			batch.Append("event", payload)
			if named {
				batch.ID = runstore.BatchID(fmt.Sprintf("batch-%d", last.Add(1)))
			}
			if _, err := s.Commit(context.Background(), batch); err != nil {
				b.Error(err)
			}
		}
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() {
				for range before / 50 {
					commit()
				}
			})
		}
		wg.Wait()
		return func(n int) {
			for range n {
				commit()
			}
		}
	}
	compare(b, side{"at-1000000", commits(1_000_000, true)}, side{"at-1000", commits(1_000, true)}, side{"without-id", commits(1_000, false)})
}
