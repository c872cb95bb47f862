package memory_test

import (
	"context"
	"testing"
	"time"

	"github.com/tapestore/tapestore/conformance"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
)

func TestConformance(t *testing.T) {
	conformance.Run(t, conformance.Harness{New: func(conformance.T) conformance.Instance {
		s := memory.New(nil)
		open := func(context.Context) (runstore.RunStore, error) { return s.Open(), nil }
		return conformance.Instance{
			Open: open,
			// No handle has a clock of its own: the store's is the only one.
			OpenSkewed: func(ctx context.Context, _ time.Duration) (runstore.RunStore, error) { return open(ctx) },
			Advance:    s.Advance,
			Stall:      func(conformance.T) func() { return s.Stall() },
		}
	}})
}
