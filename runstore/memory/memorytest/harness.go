// Package memorytest tells the conformance suite how to make reference stores.
package memorytest

import (
	"context"
	"time"

	"github.com/tapestore/tapestore/conformance"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
)

// Harness makes a reference store for each case.
func Harness() conformance.Harness {
	return conformance.Harness{New: func(conformance.T) conformance.Instance { return Instance(memory.New(nil)) }}
}

// Instance is one reference store under test.
func Instance(s *memory.Store) conformance.Instance {
	open := func(context.Context) (runstore.RunStore, error) { return s.Open(), nil }
	return conformance.Instance{
		Open: open,
		// No handle has a clock of its own: the store's is the only one.
		OpenSkewed: func(ctx context.Context, _ time.Duration) (runstore.RunStore, error) { return open(ctx) },
		Advance:    s.Advance,
		Stall:      func(conformance.T) func() { return s.Stall() },
	}
}
