package crossrun_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/tapestore/tapestore/crossrun"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
)

// The driver of an order reserves stock, which another run holds, and records that it did. Both are
// stored or neither, on every engine.
func ExampleCommit() {
	ctx := context.Background()
	store := memory.New(nil).Open()
	defer store.Close()
	parent, err := store.CreateRun(ctx, runstore.RunSpec{
		ID: "order-5", Lease: &runstore.LeaseSpec{Owner: "agent-a", TTL: time.Minute},
	})
	if err != nil {
		log.Fatal(err)
	}
	if _, err := store.CreateRun(ctx, runstore.RunSpec{ID: "stock"}); err != nil {
		log.Fatal(err)
	}

	order := runstore.NewBatch("order-5", parent.Lease.Fence())
	order.ID = "reserve-1" // names the step: a repeat applies nothing
	order.Append("reserved", []byte("3 of chair"))
	stock := runstore.NewBatch("stock", runstore.AtVersion("chair", 0))
	stock.Put("chair", []byte("3 reserved"))
	for range 2 {
		done, err := crossrun.Commit(ctx, store, order, stock)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println("seq", done.Lead.LastSeq, "a repeat:", done.Lead.Replayed)
	}
	// Output:
	// seq 1 a repeat: false
	// seq 1 a repeat: true
}
