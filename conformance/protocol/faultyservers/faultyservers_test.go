package faultyservers_test

import (
	"testing"

	"github.com/tapestore/tapestore/conformance/protocol"
	"github.com/tapestore/tapestore/conformance/protocol/faultyservers"
)

// TestEachIsCaught proves that the case named for each faulty server fails against it.
func TestEachIsCaught(t *testing.T) {
	t.Parallel()
	all := faultyservers.Servers()
	if len(all) < 20 {
		t.Errorf("%d faulty servers, want at least 20", len(all))
	}
	seen := map[string]bool{}
	for _, s := range all {
		if seen[s.Name] || s.Breaks == "" {
			t.Errorf("%q is there twice, or does not say what it breaks", s.Name)
		}
		seen[s.Name] = true
		t.Run(s.Name, func(t *testing.T) {
			t.Parallel()
			if err := faultyservers.Check(t.Context(), s); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestSoundPasses proves that the broken rules make the cases fail, and not the proxy.
func TestSoundPasses(t *testing.T) {
	t.Parallel()
	protocol.Run(t, faultyservers.Sound().Start(t))
}

// TestCheckReportsAnEscape proves that Check returns an error for a server that its case does not
// catch.
func TestCheckReportsAnEscape(t *testing.T) {
	t.Parallel()
	sound := faultyservers.Sound()
	for _, id := range []string{"runs/1-new-run", "runs/0-no-such-case"} {
		if sound.Case = id; faultyservers.Check(t.Context(), sound) == nil {
			t.Errorf("a sound server is caught by %s", id)
		}
	}
}
