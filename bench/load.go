package bench

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"
)

// Load describes the work of concurrent workers.
type Load struct {
	Done      int
	Took      time.Duration
	PerWorker []int           // operations of each worker
	Latencies []time.Duration // of each operation, in no particular order
}

// PerSecond returns the number of operations per second.
func (l Load) PerSecond() float64 { return float64(l.Done) / l.Took.Seconds() }

// Jain returns Jain's fairness index of the workers' shares: 1 when all did the same, 1/n when one
// worker did everything.
func (l Load) Jain() float64 {
	var sum, squares float64
	for _, n := range l.PerWorker {
		sum += float64(n)
		squares += float64(n) * float64(n)
	}
	if squares == 0 {
		return 0
	}
	return sum * sum / (float64(len(l.PerWorker)) * squares)
}

// Drive calls do from concurrent workers until d has passed. Each worker calls do at least once and
// finishes the call that it has begun, so Took is slightly more than d. The first error ends the
// load and is returned; it cancels the context of the other workers.
func Drive(ctx context.Context, workers int, d time.Duration, do func(ctx context.Context, worker int) error) (Load, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	latencies := make([][]time.Duration, workers)
	start := make(chan struct{})
	var began time.Time
	var all sync.WaitGroup
	for w := range workers {
		all.Go(func() {
			<-start
			for ctx.Err() == nil && (len(latencies[w]) == 0 || time.Since(began) < d) {
				at := time.Now()
				if err := do(ctx, w); err != nil {
					cancel(err)
					return
				}
				latencies[w] = append(latencies[w], time.Since(at))
			}
		})
	}
	began = time.Now()
	close(start)
	all.Wait()
	l := Load{Took: time.Since(began), PerWorker: make([]int, workers), Latencies: slices.Concat(latencies...)}
	for w, of := range latencies {
		l.PerWorker[w] = len(of)
	}
	l.Done = len(l.Latencies)
	if err := context.Cause(ctx); err != nil {
		return l, err
	}
	if l.Done == 0 {
		return l, errors.New("no operation in time")
	}
	return l, nil
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
