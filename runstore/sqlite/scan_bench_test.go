package sqlite_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/sqlite"
)

// BenchmarkScanOverLiveLeases scans ten runnable runs beside 100,000 runs with live leases, and
// beside 100. Each lease was renewed, so the first scan skips its entry and moves it. That scan and
// the moves are timed separately.
func BenchmarkScanOverLiveLeases(b *testing.B) {
	const due = 10
	scans := func(live int) func(n int) {
		s := openBench(b, nil)
		create := func(id runstore.RunID, spec *runstore.LeaseSpec) {
			created, err := s.CreateRun(b.Context(), runstore.RunSpec{ID: id, Runnable: runstore.After(0), Lease: spec})
			if err == nil && spec != nil {
				_, err = s.RenewLease(b.Context(), runstore.RenewRequest{Fence: created.Lease.Fence(), TTL: runstore.MaxTTL})
			}
			if err != nil {
				b.Error(err)
			}
		}
		var wg sync.WaitGroup
		for i := range 50 {
			wg.Go(func() {
				for n := i; n < live; n += 50 {
					create(runstore.RunID(fmt.Sprint("live-", n)), &runstore.LeaseSpec{Owner: "bench", TTL: runstore.MinTTL})
				}
			})
		}
		wg.Wait()
		for i := range due {
			create(runstore.RunID(fmt.Sprint("due-", i)), nil)
		}
		scan := func(n int) {
			for range n {
				found, err := s.ScanIndex(b.Context(), runstore.IndexQuery{Index: runstore.IndexRunnable, Limit: 100})
				if err != nil || len(found) != due {
					b.Errorf("got %d runs, error %v; want %d", len(found), err, due)
				}
			}
		}
		began := time.Now()
		scan(1)
		b.Logf("first scan beside %d leases: %v", live, time.Since(began))
		sqlite.AwaitBackground(s)
		b.Logf("all entries moved after %v", time.Since(began))
		return scan
	}
	compare(b, side{"leases-100000", scans(100_000)}, side{"leases-100", scans(100)})
}

// BenchmarkAcquireRelease acquires and releases the lease of a runnable run.
func BenchmarkAcquireRelease(b *testing.B) {
	s := openBench(b, nil)
	if _, err := s.CreateRun(b.Context(), runstore.RunSpec{ID: "run", Runnable: runstore.After(0)}); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		granted, err := s.AcquireLease(b.Context(), runstore.AcquireRequest{Run: "run", LeaseSpec: runstore.LeaseSpec{Owner: "bench", TTL: time.Minute}})
		if err == nil {
			_, err = s.ReleaseLease(b.Context(), runstore.ReleaseRequest{Fence: granted.Fence()})
		}
		if err != nil {
			b.Fatal(err)
		}
	}
}
