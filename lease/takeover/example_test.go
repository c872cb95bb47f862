package takeover_test

import (
	"context"
	"fmt"
	"time"

	"github.com/tapestore/tapestore/lease"
	"github.com/tapestore/tapestore/lease/takeover"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
)

// A worker drives every run that wants a driver, and ends it.
func ExampleWorker() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	store := memory.New(nil).Open()
	for _, id := range []runstore.RunID{"payout-17", "payout-18"} {
		if _, err := store.CreateRun(ctx, runstore.RunSpec{ID: id, Runnable: runstore.After(0)}); err != nil {
			fmt.Println(err)
			return
		}
	}
	w, err := takeover.New(store, "worker-1", &takeover.Options{MinBackoff: 10 * time.Millisecond})
	if err != nil {
		fmt.Println(err)
		return
	}
	left := make(chan struct{}, 2)
	err = w.Run(ctx, func(ctx context.Context, held *lease.Held, run runstore.Run) error {
		step := runstore.NewBatch(run.ID, held.Fence())
		step.Append("paid", nil)
		if _, err := store.Commit(ctx, step); err != nil {
			return err
		}
		held.ReleaseWith(runstore.Writes{Runnable: runstore.Never()}) // the run wants no driver any more
		if left <- struct{}{}; len(left) == cap(left) {
			stop()
		}
		return nil
	})
	fmt.Println(err)
	for _, id := range []runstore.RunID{"payout-17", "payout-18"} {
		for e, err := range runstore.Journal(context.Background(), store, id, 1) {
			fmt.Println(id, e.Seq, e.Kind, "under token", e.Token, err)
		}
	}
	// Output:
	// context canceled
	// payout-17 1 paid under token 1 <nil>
	// payout-18 1 paid under token 1 <nil>
}
