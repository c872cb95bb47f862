package report

import (
	"strings"
	"testing"

	"github.com/tapestore/tapestore/conformance"
	"github.com/tapestore/tapestore/emulators"
)

// A quick run says how many cases it reduced, on an engine of the user's own too.
func TestUnprovedCountsReducedCases(t *testing.T) {
	reduced := conformance.Report{Engine: "spanner", Tier: emulators.TierService, Guarantees: []conformance.ByGuarantee{
		{ID: "I1", Cases: []conformance.Result{{Name: "a", LeftOut: []string{"3 of 8 rounds"}}, {Name: "b"}}},
		{ID: "I2", Cases: []conformance.Result{{Name: "c", LeftOut: []string{"1 of 2 rounds", "1 of 3 runs"}}}},
	}}
	if got, want := Unproved(reduced), "This was a quick run: on this engine 2 cases repeated less than with --full."; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	reduced.Tier = emulators.TierEmulator
	if got := Unproved(reduced); !strings.HasPrefix(got, "The client is the real one") || !strings.HasSuffix(got, "2 cases repeated less than with --full.") {
		t.Errorf("on an emulator: got %q", got)
	}
	if got := Unproved(conformance.Report{Engine: "spanner", Tier: emulators.TierService}); got != "" {
		t.Errorf("of a whole run on a server: got %q, want nothing", got)
	}
}
