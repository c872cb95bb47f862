package optimistic

import "sync"

// inFlight is the number of items of one call that are worked on at a time. 16: a call with many
// items takes few round trips, and leaves connections in a pool for others.
const inFlight = 16

// Each calls f for each item, for up to 16 at a time, and returns when all calls have. f is called
// with a lock to hold while it writes what the calls share.
func Each[T any](items []T, f func(T, sync.Locker)) {
	var (
		mu    sync.Mutex
		wg    sync.WaitGroup
		slots = make(chan struct{}, inFlight)
	)
	for _, item := range items {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			f(item, &mu)
		})
	}
	wg.Wait()
}
