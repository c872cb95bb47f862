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

// An agent drives a run: every write carries the fence, and the last ones are
// applied with the release.
func ExampleKeeper_Do() {
	ctx := context.Background()
	store := memory.New(nil).Open()
	_, err := store.CreateRun(ctx, runstore.RunSpec{ID: "payout-17"})
	if err != nil {
		fmt.Println(err)
		return
	}
	keeper, err := lease.New(store, nil)
	if err != nil {
		fmt.Println(err)
		return
	}

	err = keeper.Do(ctx, runstore.AcquireRequest{
		Run: "payout-17", LeaseSpec: runstore.LeaseSpec{Owner: "agent-a", Reactor: "agent"},
	}, func(ctx context.Context, held *lease.Held) error {
		step := runstore.NewBatch("payout-17", held.Fence())
		step.Append("decided", []byte("pay"))
		if _, err := store.Commit(ctx, step); err != nil {
			return err
		}
		var last runstore.Writes
		last.Append("ended", nil)
		held.ReleaseWith(last)
		return nil
	})
	fmt.Println("error:", err)

	for e, err := range runstore.Journal(ctx, store, "payout-17", 1) {
		fmt.Println(e.Seq, e.Kind, "by", e.Owner, "under token", e.Token, err)
	}
	head, err := store.GetRun(ctx, "payout-17")
	fmt.Println("held:", head.Holder.Token != 0, err)
	// Output:
	// error: <nil>
	// 1 decided by agent-a under token 1 <nil>
	// 2 ended by agent-a under token 1 <nil>
	// held: false <nil>
}

// A holder whose lease was taken away is cancelled with the cause, and its late
// write is refused by the store.
func ExampleKeeper_Hold() {
	ctx := context.Background()
	store := memory.New(nil).Open()
	sent := time.Now() // before the request leaves
	created, err := store.CreateRun(ctx, runstore.RunSpec{
		ID: "payout-17", Lease: &runstore.LeaseSpec{Owner: "agent-a", TTL: time.Minute},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	keeper, err := lease.New(store, &lease.Options{TTL: time.Minute, Heartbeat: 10 * time.Millisecond})
	if err != nil {
		fmt.Println(err)
		return
	}

	err = keeper.Hold(ctx, lease.Granted{Lease: created.Lease, Sent: sent}, func(ctx context.Context, held *lease.Held) error {
		_, err := store.AcquireLease(ctx, runstore.AcquireRequest{
			Run: "payout-17", LeaseSpec: runstore.LeaseSpec{Owner: "agent-b", TTL: time.Minute}, Preempt: "an operator said so",
		})
		if err != nil {
			return err
		}
		<-ctx.Done() // by the next heartbeat
		fmt.Println("cause:", context.Cause(ctx))
		late := runstore.NewBatch("payout-17", held.Fence())
		late.Append("decided", []byte("pay twice"))
		_, err = store.Commit(context.WithoutCancel(ctx), late)
		fmt.Println("late write fenced:", errors.Is(err, runstore.ErrFenced))
		return ctx.Err()
	})
	fmt.Println("lost:", errors.Is(err, lease.ErrLost))
	// Output:
	// cause: lease lost: run "payout-17", token 1: renew lease "payout-17": fenced: token 1 was presented, the current grant is 2 of "agent-b"
	// late write fenced: true
	// lost: true
}

// A contender takes the run over when its holder's lease has expired.
func ExampleKeeper_Acquire() {
	ctx := context.Background()
	store := memory.New(nil).Open()
	_, err := store.CreateRun(ctx, runstore.RunSpec{
		ID: "payout-17", Lease: &runstore.LeaseSpec{Owner: "agent-dead", TTL: 5 * time.Millisecond},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	keeper, err := lease.New(store, &lease.Options{MinBackoff: time.Millisecond})
	if err != nil {
		fmt.Println(err)
		return
	}
	granted, err := keeper.Acquire(ctx, runstore.AcquireRequest{
		Run: "payout-17", LeaseSpec: runstore.LeaseSpec{Owner: "agent-b", Reactor: "recovery"},
	})
	fmt.Println(granted.Lease.Owner, "holds token", granted.Lease.Token, err)
	// Output:
	// agent-b holds token 2 <nil>
}

// A new version asks the old one for the lease of a run. The old one finishes what it is at first.
func ExampleKeeper_RequestHandoff() {
	ctx := context.Background()
	store := memory.New(nil).Open()
	if _, err := store.CreateRun(ctx, runstore.RunSpec{ID: "payout-17"}); err != nil {
		fmt.Println(err)
		return
	}
	keeper, err := lease.New(store, &lease.Options{Handoff: lease.Gap, MinBackoff: 10 * time.Millisecond})
	if err != nil {
		fmt.Println(err)
		return
	}
	request := func(owner runstore.Owner) runstore.AcquireRequest {
		return runstore.AcquireRequest{Run: "payout-17", LeaseSpec: runstore.LeaseSpec{Owner: owner}}
	}
	working, old := make(chan struct{}), make(chan error)
	go func() {
		old <- keeper.Do(ctx, request("version-1"), func(ctx context.Context, held *lease.Held) error {
			close(working)
			<-ctx.Done()
			fmt.Println("version-1 drains:", context.Cause(ctx))
			return nil
		})
	}()
	<-working
	granted, err := keeper.RequestHandoff(ctx, request("version-2"))
	fmt.Println(<-old)
	fmt.Println(granted.Lease.Owner, "holds token", granted.Lease.Token, err)
	// Output:
	// version-1 drains: a successor has requested the lease
	// lease handed off: run "payout-17", token 1, to "version-2" under token 2
	// version-2 holds token 2 <nil>
}
