package spanner_test

import (
	"context"
	"fmt"
	"log"
	"time"

	spanneremulator "github.com/tapestore/tapestore/emulators/spanner"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/spanner"
)

// One commit moves an amount between two runs: the holder of one run writes under its fence, and the
// other run's balance must be unchanged. Both batches are applied or neither.
func ExampleStore_CommitMulti() {
	ctx := context.Background()
	emulator, err := spanneremulator.Start(ctx, nil) // leave it out, and Options.Emulator, for the service
	if err != nil {
		log.Fatal(err)
	}
	defer emulator.Close()
	store, err := spanner.Open(ctx, &spanner.Options{
		Project: "my-project", Instance: "my-instance", Database: "runs", Emulator: emulator.Address(),
	})
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()

	payout, err := store.CreateRun(ctx, runstore.RunSpec{
		ID: "payout-17", Lease: &runstore.LeaseSpec{Owner: "agent-a", TTL: time.Minute},
	})
	if err != nil {
		log.Fatal(err)
	}
	account := runstore.RunSpec{ID: "account-4"}
	account.Writes.Put("balance", []byte("250"))
	if _, err := store.CreateRun(ctx, account); err != nil {
		log.Fatal(err)
	}

	pay := runstore.NewBatch("payout-17", payout.Lease.Fence())
	pay.ID = "pay-1" // a repeat applies nothing
	pay.Append("paid", []byte("100"))
	debit := runstore.NewBatch("account-4", runstore.AtVersion("balance", 1))
	debit.Put("balance", []byte("150"))
	for range 2 {
		done, err := store.CommitMulti(ctx, []runstore.Batch{pay, debit})
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println("seq", done[0].LastSeq, "a repeat:", done[0].Replayed)
	}
	records, err := store.ReadRecords(ctx, "account-4", runstore.RecordQuery{Keys: []runstore.RecordKey{"balance"}})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("balance %s at version %d\n", records[0].Value, records[0].Version)
	// Output:
	// seq 1 a repeat: false
	// seq 1 a repeat: true
	// balance 150 at version 2
}
