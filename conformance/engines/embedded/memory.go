// Package embedded makes the stores of the engines that run in this process, memory and SQLite, for
// the conformance suite. It is separate from package engines so that their tests do not link the
// clients of the other engines.
package embedded

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
			Open:         open, // no OpenSkewed: handles read only the store's clock
			AdvanceClock: s.Advance,
			BlockWriters: func(conformance.T) (func(ctx context.Context, n int) error, func()) { return s.Stall() },
		}
	}}
}
