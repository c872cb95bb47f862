package runstore_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
)

// A run changes hands while its first driver is paused. Whoever holds the
// current grant writes; the paused driver's late write is refused by the store.
// README.md shows this example; package internal/docs checks that the two are alike.
func Example() {
	ctx := context.Background()
	engine := memory.New(nil) // the reference store; its clock can be moved
	store := engine.Open()
	defer store.Close()

	// Create a run, its lease and its first event in one atomic step.
	spec := runstore.RunSpec{
		ID:    "payout-17",
		Lease: &runstore.LeaseSpec{Owner: "agent-a", Reactor: "agent", TTL: 30 * time.Second},
	}
	spec.Writes.Append("began", nil)
	created, err := store.CreateRun(ctx, spec)
	if err != nil {
		log.Fatal(err)
	}
	old := created.Lease

	// agent-a is paused, its lease expires on the store clock, agent-b takes over.
	engine.Advance(31 * time.Second)
	current, err := store.AcquireLease(ctx, runstore.AcquireRequest{
		Run:       "payout-17",
		LeaseSpec: runstore.LeaseSpec{Owner: "agent-b", Reactor: "recovery", TTL: 30 * time.Second},
	})
	if err != nil {
		log.Fatal(err)
	}

	// A batch names its guards: here the fence, and that no such effect exists.
	pay := func(l runstore.Lease) error {
		batch := runstore.NewBatch("payout-17", l.Fence(), runstore.AtVersion("effect/1", 0))
		batch.Append("effect begun", []byte(`{"pay": 100}`))
		batch.Put("effect/1", []byte("pending"))
		_, err := store.Commit(ctx, batch)
		return err
	}
	fmt.Println("agent-a wakes, fenced:", errors.Is(pay(old), runstore.ErrFenced))
	fmt.Println("agent-b commits:", pay(current.Lease))

	for event, err := range runstore.Journal(ctx, store, "payout-17", 1) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(event.Seq, event.Kind, "by", event.Owner, "under token", event.Token)
	}
	// Output:
	// agent-a wakes, fenced: true
	// agent-b commits: <nil>
	// 1 began by agent-a under token 1
	// 2 effect begun by agent-b under token 2
}
