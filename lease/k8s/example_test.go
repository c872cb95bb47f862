package k8s_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/client-go/tools/leaderelection"

	"github.com/tapestore/tapestore/lease/k8s"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
)

// A controller whose leader writes under its fence. A write of a former leader, which has not noticed
// that it was replaced, is refused.
func Example() {
	ctx := context.Background()
	store := memory.New(nil).Open()
	record := func(step string, fence runstore.Fence) error {
		batch := runstore.NewBatch("controller", fence)
		batch.Append("step", []byte(step))
		_, err := store.Commit(ctx, batch)
		return err
	}
	// lead runs an election until the work of its leader has returned.
	lead := func(identity string, work func(lock *k8s.Lock)) error {
		lock, err := k8s.New(store, "controller", identity)
		if err != nil {
			return err
		}
		ctx, stop := context.WithCancel(ctx)
		defer stop()
		elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
			Lock: lock, LeaseDuration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 2 * time.Second,
			ReleaseOnCancel: true,
			Callbacks: leaderelection.LeaderCallbacks{
				OnStartedLeading: func(context.Context) {
					defer stop()
					work(lock)
				},
				OnStoppedLeading: func() { fmt.Println(identity, "has stopped") },
			},
		})
		if err != nil {
			return err
		}
		elector.Run(ctx)
		return nil
	}

	var former runstore.Fence
	first := lead("pod-1", func(lock *k8s.Lock) {
		token, _ := lock.FencingToken()
		former, _ = lock.Fence()
		fmt.Println("pod-1 leads under token", token, "and writes:", record("scaled up", former))
	})
	second := lead("pod-2", func(lock *k8s.Lock) {
		token, _ := lock.FencingToken()
		fence, _ := lock.Fence()
		fmt.Println("pod-2 leads under token", token, "and writes:", record("scaled down", fence))
		fmt.Println("pod-1 is refused:", errors.Is(record("scaled up again", former), runstore.ErrFenced))
	})
	fmt.Println("errors:", first, second)
	// Output:
	// pod-1 leads under token 1 and writes: <nil>
	// pod-1 has stopped
	// pod-2 leads under token 2 and writes: <nil>
	// pod-1 is refused: true
	// pod-2 has stopped
	// errors: <nil> <nil>
}
