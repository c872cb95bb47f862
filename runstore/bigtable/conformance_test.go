package bigtable_test

import (
	"testing"

	"github.com/tapestore/tapestore/conformance"
	"github.com/tapestore/tapestore/conformance/effort"
	"github.com/tapestore/tapestore/conformance/engines"
	"github.com/tapestore/tapestore/emulators"
	bigtableemulator "github.com/tapestore/tapestore/emulators/bigtable"
)

func TestConformance(t *testing.T) {
	conformance.Run(t, engines.Bigtable(server(t), nil))
}

// overTCP are the cases that a quick run has of TestConformanceOverTCP: large messages, any
// bytes, a writer that is held up, a lost reply.
var overTCP = []string{
	"I3/write-in-flight-at-a-preempt-loses-or-comes-first",
	"I6/record-pages-of-large-and-tiny-values-lose-nothing",
	"I8/a-lost-reply-is-resolved-by-the-store",
	"I12/run-ids-of-any-byte-stay-apart",
}

// TestConformanceOverTCP runs the suite against the emulator's program, in a process of
// its own.
func TestConformanceOverTCP(t *testing.T) {
	own, err := bigtableemulator.Start(t.Context(), &bigtableemulator.Options{Tier: emulators.TierLocal})
	emulators.Require(t, err)
	t.Cleanup(func() {
		if err := own.Close(); err != nil {
			t.Error(err)
		}
	})
	harness := engines.Bigtable(own, nil)
	if effort.Full() {
		const slow = "I12/a-run-holds-many-records" // takes minutes
		var names []string
		for _, c := range conformance.Cases() {
			if name := c.Guarantee + "/" + c.Name; name != slow {
				names = append(names, name)
			}
		}
		conformance.RunCases(t, harness, names...)
		t.Run(slow, func(t *testing.T) {
			t.Skip("left to TestConformance, which runs it on the same emulator in this process")
		})
		return
	}
	conformance.RunCases(t, harness, overTCP...)
	t.Run("all others", func(t *testing.T) {
		t.Skip("left to make test-full: all other cases on Bigtable's emulator over TCP")
	})
}
