package bench

import (
	"runtime"
	"runtime/metrics"
)

// allocations holds what this process has allocated since it started: objects and bytes.
type allocations struct{ objects, bytes uint64 }

func allocated() allocations {
	var m runtime.MemStats
	runtime.ReadMemStats(&m) // exact, unlike runtime/metrics, which lags by what each P has cached
	return allocations{m.Mallocs, m.TotalAlloc}
}

// since returns the allocations since before, divided by n.
func (a allocations) since(before allocations, n int) (objects, bytes float64) {
	return float64(a.objects-before.objects) / float64(n), float64(a.bytes-before.bytes) / float64(n)
}

// reachable returns how many bytes of the heap are reachable. It collects the garbage first, so
// that the result depends on what the program holds and not on when the collector ran last.
func reachable() int64 {
	runtime.GC()
	sample := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	metrics.Read(sample)
	return int64(sample[0].Value.Uint64())
}

// peakHeap tracks how much the reachable heap has grown since its first measurement.
type peakHeap struct{ first, most int64 }

func newPeakHeap() *peakHeap {
	first := reachable()
	return &peakHeap{first: first, most: first}
}

func (p *peakHeap) look() { p.most = max(p.most, reachable()) }

// bytes returns the peak growth over the first measurement, in bytes.
func (p *peakHeap) bytes() float64 { return float64(p.most - p.first) }
