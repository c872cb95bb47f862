package faultystores_test

import (
	"testing"

	"github.com/tapestore/tapestore/conformance"
	"github.com/tapestore/tapestore/conformance/faultystores"
)

// TestEachIsCaught checks that each faulty store fails the case that it names.
func TestEachIsCaught(t *testing.T) {
	stores := faultystores.All()
	if len(stores) < 18 {
		t.Errorf("%d broken stores, want at least 18", len(stores))
	}
	seen := map[string]bool{}
	for _, b := range stores {
		if seen[b.Name] || b.Breaks == "" {
			t.Errorf("%q is there twice, or does not say what it breaks", b.Name)
		}
		seen[b.Name] = true
		t.Run(b.Name, func(t *testing.T) {
			t.Parallel()
			caughtBy, err := faultystores.Check(t.Context(), b)
			if err != nil {
				t.Fatal(err)
			}
			if caughtBy != b.Case {
				t.Errorf("caught by %q, want %q", caughtBy, b.Case)
			}
		})
	}
}

// TestUnbrokenPasses checks that the wrapper without a fault passes, so that each failure is due to
// the broken rule.
func TestUnbrokenPasses(t *testing.T) {
	conformance.Run(t, faultystores.Unbroken())
}

// TestCheckReportsAnEscape checks that Check returns an error for a store that passes its case.
func TestCheckReportsAnEscape(t *testing.T) {
	sound := faultystores.Broken{Name: "sound", Case: "I1/released-lease-is-free-at-once", Open: faultystores.Unbroken}
	if caughtBy, err := faultystores.Check(t.Context(), sound); err == nil {
		t.Errorf("a sound store was caught by %q, want an error", caughtBy)
	}
	sound.Case = "I1/no-such-case"
	if _, err := faultystores.Check(t.Context(), sound); err == nil {
		t.Error("a case that does not exist: no error")
	}
}
