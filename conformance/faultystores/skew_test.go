package faultystores_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/tapestore/tapestore/conformance"
	"github.com/tapestore/tapestore/conformance/faultystores"
	"github.com/tapestore/tapestore/runstore"
)

// TestIgnoredClockIsNoticed checks that no case of a wrong clock passes on a harness whose
// OpenSkewed ignores its clock, and that these cases do not apply to a harness without OpenSkewed.
func TestIgnoredClockIsNoticed(t *testing.T) {
	t.Parallel()
	changed := func(change func(i *conformance.Instance)) conformance.Harness {
		h := faultystores.Unbroken()
		sound := h.New
		h.New = func(t conformance.T) conformance.Instance {
			i := sound(t)
			change(&i)
			return i
		}
		return h
	}
	deaf := changed(func(i *conformance.Instance) {
		open := i.Open
		i.OpenSkewed = func(ctx context.Context, _ func() time.Time) (runstore.RunStore, error) { return open(ctx) }
	})
	none := changed(func(i *conformance.Instance) { i.OpenSkewed = nil })
	cases := 0
	for _, c := range conformance.Cases() {
		if !strings.HasPrefix(c.Name, "wrong-clock-") {
			continue
		}
		cases++
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			if got := conformance.RunCase(t.Context(), deaf, c); got.Status != conformance.Failed || !strings.Contains(got.Reason, "OpenSkewed ignores the clock") {
				t.Errorf("with a clock that is ignored: got %s, %q, want failed because of OpenSkewed", got.Status, got.Reason)
			}
			if got := conformance.RunCase(t.Context(), none, c); got.Status != conformance.NotApplicable || got.Reason == "" {
				t.Errorf("without OpenSkewed: got %s, %q, want not applicable with a reason", got.Status, got.Reason)
			}
		})
	}
	if cases != 6 {
		t.Errorf("got %d cases of wrong clocks, want 6", cases)
	}
}
