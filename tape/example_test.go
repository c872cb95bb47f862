package tape_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
	"github.com/tapestore/tapestore/tape"
)

// A driver pauses in mid-effect, another one takes its run over, and the first one
// wakes up: what it still writes is refused, and the effect has one outcome.
func Example_takeover() {
	ctx := context.Background()
	t := tape.New(memory.New(nil).Open(), nil)
	key := tape.RunKey{App: "treasury", Invocation: "2024-06-30"}

	first, err := t.BeginRun(ctx, tape.BeginRunRequest{Key: key, Owner: "pod-1"})
	if err != nil {
		log.Fatal(err)
	}
	pay := tape.BeginEffectRequest{Run: first.ID, Tool: "pay", Fence: first.Lease.Fence()}
	effect, err := t.BeginEffect(ctx, pay)
	if err != nil {
		log.Fatal(err)
	}

	second, err := t.BeginRun(ctx, tape.BeginRunRequest{Key: key, Owner: "pod-2"})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("resumed:", second.Resumed, "under token", second.Lease.Token)

	outcome := tape.OutcomeRequest{Run: first.ID, Key: effect.Key, Status: tape.EffectFailed, Fence: first.Lease.Fence()}
	_, err = t.CompleteEffect(ctx, outcome)
	fmt.Println("pod-1 is fenced:", errors.Is(err, runstore.ErrFenced))

	outcome.Status, outcome.Fence = tape.EffectConfirmed, second.Lease.Fence()
	effect, err = t.CompleteEffect(ctx, outcome)
	fmt.Println("pod-2 confirms:", effect.Status == tape.EffectConfirmed, err)

	entries, err := t.ReadJournal(ctx, first.ID, 0, 10)
	if err != nil {
		log.Fatal(err)
	}
	for _, e := range entries {
		fmt.Println(e.Seq, e.Kind, "by", e.Owner, "under token", e.Token)
	}
	// Output:
	// resumed: true under token 2
	// pod-1 is fenced: true
	// pod-2 confirms: true <nil>
	// 1 run by pod-1 under token 1
	// 2 effect by pod-1 under token 1
	// 3 effect by pod-2 under token 2
}
