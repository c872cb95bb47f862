package lease_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tapestore/tapestore/lease"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
)

// An operator takes the lease from an agent that renews it but must not go on.
func ExampleBreak() {
	ctx := context.Background()
	store := memory.New(nil).Open()
	created, err := store.CreateRun(ctx, runstore.RunSpec{
		ID: "payout-17", Lease: &runstore.LeaseSpec{Owner: "agent-a", TTL: 30 * time.Second},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	broken, err := lease.Break(ctx, store, lease.BreakRequest{
		Run: "payout-17", Token: created.Lease.Token, Operator: "ada", Reason: "agent-a pays twice",
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("the lease of %s has ended, the token is now %v\n", broken.Former.Owner, broken.Token)

	late := runstore.NewBatch("payout-17", created.Lease.Fence())
	late.Append("paid", nil)
	_, err = store.Commit(ctx, late)
	fmt.Println("agent-a is fenced:", errors.Is(err, runstore.ErrFenced))
	// Output:
	// the lease of agent-a has ended, the token is now 2
	// agent-a is fenced: true
}
