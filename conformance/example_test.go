package conformance_test

import (
	"context"
	"fmt"
	"regexp"

	"github.com/tapestore/tapestore/conformance"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
)

// The author of an adapter runs the cases of one guarantee outside go test. A test calls Run
// instead.
func ExampleExecute() {
	harness := conformance.Harness{New: func(conformance.T) conformance.Instance {
		store := memory.New(nil) // an empty store for each case: here, of the adapter
		return conformance.Instance{
			Open:         func(context.Context) (runstore.RunStore, error) { return store.Open(), nil },
			AdvanceClock: store.Advance, // optional: without it cases wait for leases to expire
		}
	}}
	report := conformance.Execute(context.Background(), harness, regexp.MustCompile("^I1/.*expired"))
	for _, guarantee := range report.Guarantees {
		for _, c := range guarantee.Cases {
			fmt.Println(c.Status, c.Name)
		}
	}
	// Output:
	// passed one-winner-in-a-race-for-an-expired-lease
	// passed expired-lease-is-taken-over
}
