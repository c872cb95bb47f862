// Package engines tells the conformance suite how to make stores of this
// module's own engines, for their tests and for the command. It has the means to
// move their clocks and to hold up their writers.
package engines

import (
	"context"
	"time"

	"github.com/tapestore/tapestore/conformance"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
)

// Memory makes a reference store for each case.
func Memory() conformance.Harness {
	return conformance.Harness{New: func(conformance.T) conformance.Instance {
		s := memory.New(nil)
		open := func(context.Context) (runstore.RunStore, error) { return s.Open(), nil }
		return conformance.Instance{
			Open: open,
			// No handle has a clock of its own: the store's is the only one.
			OpenSkewed: func(ctx context.Context, _ time.Duration) (runstore.RunStore, error) { return open(ctx) },
			Advance:    s.Advance,
			Stall:      func(conformance.T) func() { return s.Stall() },
		}
	}}
}
