package bigtable_test

import (
	"testing"

	"github.com/tapestore/tapestore/conformance"
	"github.com/tapestore/tapestore/conformance/engines"
	"github.com/tapestore/tapestore/emulators"
)

func TestConformance(t *testing.T) {
	conformance.Run(t, engines.Bigtable(server(t), nil))
}

// TestConformanceOverTCP runs the suite against the emulator's program, in a process of
// its own.
func TestConformanceOverTCP(t *testing.T) {
	own, err := emulators.Bigtable(t.Context(), &emulators.BigtableOptions{Tier: emulators.TierLocal})
	emulators.Require(t, err)
	t.Cleanup(func() {
		if err := own.Close(); err != nil {
			t.Error(err)
		}
	})
	conformance.Run(t, engines.Bigtable(own, nil))
}
