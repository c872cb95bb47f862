// Package engines tells the conformance suite how to make stores of this
// module's own engines, for their tests and for the command. It has the means to
// move their clocks and to hold up their writers.
package engines

import (
	"context"

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
			Open:    open, // no OpenSkewed: handles read the store's clock alone
			Advance: s.Advance,
			Stall:   func(conformance.T) func() { return s.Stall() },
		}
	}}
}
