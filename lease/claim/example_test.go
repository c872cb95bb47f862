package claim_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tapestore/tapestore/lease/claim"
	"github.com/tapestore/tapestore/runstore/memory"
)

// A producer puts a message, and a consumer whose first attempt fails handles it on the second.
func ExampleQueue() {
	ctx := context.Background()
	queue, err := claim.OpenQueue(ctx, memory.New(nil).Open(), "mail", nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	for range 2 { // the second put is a repeat
		added, err := queue.Put(ctx, "invoice-17", []byte("to: a@example.org"), nil)
		fmt.Println("added:", added, err)
	}
	for range 2 {
		receipts, err := queue.Claim(ctx, "consumer-1", 10, time.Minute)
		if err != nil {
			fmt.Println(err)
			return
		}
		for _, r := range receipts {
			fmt.Printf("%s, attempt %d: %s\n", r.ID, r.Attempts, r.Payload)
			if r.Attempts == 1 {
				err = queue.Nack(ctx, r, 0, "connection refused")
			} else {
				err = queue.Ack(ctx, r)
			}
			fmt.Println(err)
		}
	}
	// Output:
	// added: true <nil>
	// added: false <nil>
	// invoice-17, attempt 1: to: a@example.org
	// <nil>
	// invoice-17, attempt 2: to: a@example.org
	// <nil>
}

// A booking holds seats while the customer pays, and commits them afterwards.
func ExampleCapacity() {
	ctx := context.Background()
	seats, err := claim.NewCapacity(memory.New(nil).Open(), "flight-4711")
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := seats.Set(ctx, 10); err != nil {
		fmt.Println(err)
		return
	}
	booking, err := seats.Hold(ctx, claim.HoldRequest{ID: "booking-1", Owner: "web-1", Amount: 8, TTL: 10 * time.Minute})
	fmt.Println(booking.Amount, err)
	_, err = seats.Hold(ctx, claim.HoldRequest{ID: "booking-2", Owner: "web-2", Amount: 3, TTL: 10 * time.Minute})
	fmt.Println(errors.Is(err, claim.ErrNoCapacity))
	fmt.Println(seats.Commit(ctx, booking))
	usage, err := seats.Usage(ctx)
	fmt.Println(usage.Committed, usage.Free(), err)
	// Output:
	// 8 <nil>
	// true
	// <nil>
	// 8 2 <nil>
}
