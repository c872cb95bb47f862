package bigtable_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	bigtableemulator "github.com/tapestore/tapestore/emulators/bigtable"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/bigtable"
)

// After a failover to another cluster, which may have lost the latest writes, an operator raises the
// epoch. Every grant from before it is over.
func ExampleStore_RaiseEpoch() {
	ctx := context.Background()
	emulator, err := bigtableemulator.Start(ctx, nil) // leave it out, and Options.Emulator, for the service
	if err != nil {
		log.Fatal(err)
	}
	defer emulator.Close()
	store, err := bigtable.Open(ctx, &bigtable.Options{
		Project: "my-project", Instance: "my-instance", Table: "runs", Emulator: emulator.Address(),
	})
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	created, err := store.CreateRun(ctx, runstore.RunSpec{
		ID: "payout-17", Lease: &runstore.LeaseSpec{Owner: "agent-a", TTL: time.Hour / 2},
	})
	if err != nil {
		log.Fatal(err)
	}

	epoch, err := store.RaiseEpoch(ctx, "failed over to europe-west1 on 3 March")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("epoch", epoch)

	step := runstore.NewBatch("payout-17", created.Lease.Fence())
	step.Append("decided", nil)
	_, err = store.Commit(ctx, step)
	fmt.Println("fenced:", errors.Is(err, runstore.ErrFenced))
	// Output:
	// epoch 1
	// fenced: true
}
