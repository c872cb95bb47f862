package protocol_test

import (
	"strings"
	"testing"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tape"
)

// TestObservationsOfFullRuns checks that observations of the effects of a full run can be recorded:
// that an effect of open outcome happened twice, and that an effect reported as FAILED has
// happened.
func TestObservationsOfFullRuns(t *testing.T) {
	onEachEngine(t, func(t *testing.T, store runstore.RunStore) {
		f := &fullRun{t: t, s: store, tp: tape.New(store, nil)}
		f.take("first")
		f.fill()
		for i, key := range f.inline[:3] { // the freed room is taken by other records
			if i > 0 {
				f.complete(key, 0)
				continue
			}
			_, err := f.tp.CompleteEffect(t.Context(), tape.OutcomeRequest{
				Run: f.run.ID, Key: key, Status: tape.EffectFailed, Error: "timeout", Fence: f.fence(),
			})
			f.check("CompleteEffect", err)
		}
		f.top()
		for _, o := range []tape.Observation{
			{Key: f.outbox[0], Resolution: tape.ResolvedDuplicate, CompensateKind: "refund"},
			// The record of this observation is smaller than that of the obligation.
			{Key: f.inline[3], Resolution: tape.ResolvedDuplicate, CompensateKind: "refund"},
			{Key: f.inline[0], Resolution: tape.ResolvedConfirmed, ExternalRef: strings.Repeat("r", 100)},
		} {
			o.Run = f.run.ID
			f.top()
			e, err := f.tp.RecordExternalObservation(t.Context(), o)
			if err != nil || e.Status != tape.EffectConfirmed {
				t.Errorf("resolution %d of %s: status %d, %v", o.Resolution, o.Key, e.Status, err)
			}
		}
	})
}
