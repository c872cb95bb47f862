package election_test

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/tapestore/tapestore/lease"
	"github.com/tapestore/tapestore/lease/election"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
)

// A scheduler of which one replica is active. Each write presents the fence.
func ExampleCoordinator() {
	store := memory.New(nil).Open()
	c, err := election.New(store, "scheduler", &election.Options{
		Replica: "eu-1", Logger: slog.New(slog.DiscardHandler),
		OnChange: func(s election.Status) { fmt.Println(s.Replica, "is", s.State) },
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	err = c.Run(context.Background(), func(ctx context.Context, held *lease.Held) error {
		plan := runstore.NewBatch("scheduler", held.Fence())
		plan.Append("planned", []byte("the day"))
		_, err := store.Commit(ctx, plan)
		return err // nil: the scheduler is done
	})
	fmt.Println("error:", err)
	// Output:
	// eu-1 is standby
	// eu-1 is active
	// eu-1 is stopped
	// error: <nil>
}
