package audit_test

import (
	"context"
	"fmt"
	"time"

	"github.com/tapestore/tapestore/lease/audit"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
)

// The second store shows a write under token 1 after one under token 2, as if a paused holder had
// written late.
func ExampleCheck() {
	ctx := context.Background()
	store := memory.New(nil).Open()
	if _, err := store.CreateRun(ctx, runstore.RunSpec{ID: "run"}); err != nil {
		fmt.Println(err)
		return
	}
	for _, owner := range []runstore.Owner{"a", "b", "b"} {
		req := runstore.AcquireRequest{Run: "run", LeaseSpec: runstore.LeaseSpec{Owner: owner, TTL: time.Minute}, Preempt: "example"}
		req.Writes.Append("event", nil)
		if _, err := store.AcquireLease(ctx, req); err != nil {
			fmt.Println(err)
			return
		}
	}
	broken := &falsified{RunStore: store, event: func(_ runstore.RunID, e *runstore.Event) {
		if e.Seq == 3 {
			e.Token, e.Owner = 1, "a"
		}
	}}
	for _, s := range []runstore.RunStore{store, broken} {
		report, err := audit.Check(ctx, s, &audit.Options{Found: func(f audit.Finding) {
			if !f.Warning() {
				fmt.Println(f)
			}
		}})
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Printf("%d events, %d corruptions\n", report.Events, report.Findings)
	}
	// Output:
	// 3 events, 0 corruptions
	// token run "run" seq 3: token 1 of "a" follows token 2 of "b" at seq 2
	// 3 events, 1 corruptions
}
