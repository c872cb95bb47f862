package fence_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tapestore/tapestore/fence"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
)

// A service checks the token of each request. The new holder of the run announces itself before it
// acts; from then on the service refuses the former holder.
func ExampleMemory() {
	ctx := context.Background()
	engine := memory.New(nil)
	store := engine.Open()
	created, err := store.CreateRun(ctx, runstore.RunSpec{
		ID: "payout-17", Lease: &runstore.LeaseSpec{Owner: "agent-a", TTL: 30 * time.Second},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	service, err := fence.NewMemory(nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	old := created.Lease
	fmt.Println("agent-a:", service.Check(ctx, "account/7", old.Token))

	// agent-a is paused, its lease expires on the store clock, agent-b takes over.
	engine.Advance(31 * time.Second)
	current, err := store.AcquireLease(ctx, runstore.AcquireRequest{
		Run: "payout-17", LeaseSpec: runstore.LeaseSpec{Owner: "agent-b", TTL: 30 * time.Second},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("agent-a, before the service knows:", service.Check(ctx, "account/7", old.Token))
	fmt.Println("agent-b announces:", fence.Announce(ctx, fence.Presented{Resource: "account/7", Token: current.Lease.Token}, service))
	late := service.Check(ctx, "account/7", old.Token)
	fmt.Println("agent-a wakes:", late)
	fmt.Println("fenced:", errors.Is(late, runstore.ErrFenced))
	// Output:
	// agent-a: <nil>
	// agent-a, before the service knows: <nil>
	// agent-b announces: <nil>
	// agent-a wakes: fenced: token 1 was presented for "account/7", which has seen token 2
	// fenced: true
}
