package protocol_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tape"
)

// TestFullRunsAreCompactedAndTakenOver begins effects until the store refuses one more, completes
// them, and fails the run. The run can then be compacted, and it can be taken over and ended
// whether or not it was compacted.
func TestFullRunsAreCompactedAndTakenOver(t *testing.T) {
	onEachEngine(t, func(t *testing.T, store runstore.RunStore) {
		if !strings.HasSuffix(t.Name(), "/bigtable") {
			t.Skip("not applicable: the engine does not limit the records of a run")
		}
		f := &fullRun{t: t, s: store, tp: tape.New(store, nil), limited: true}
		f.take("first")
		for f.spares = range 4 {
			f.put(runstore.RecordWrite{Key: numbered("spare", f.spares)})
		}
		for n := range 8 { // in place of some thousand effects
			if !f.put(ballast(n, 100)) {
				break
			}
		}
		begun := 0
		for ; begun < 3000; begun++ {
			key := fmt.Sprintf("effect-%d", begun)
			_, err := f.tp.BeginEffect(t.Context(), tape.BeginEffectRequest{
				Run: f.run.ID, CustomKey: key, Tool: "transfer_funds_between_accounts", Connector: "bank-of-examples/eu-west-1",
				Request: strings.Repeat("q", 300), Fence: f.fence(),
			})
			if errors.Is(err, runstore.ErrTooLarge) {
				break
			}
			f.check("BeginEffect", err)
		}
		if begun == 3000 {
			t.Fatal("no effect was refused")
		}
		f.top()
		for n := range begun {
			f.complete(fmt.Sprintf("effect-%d", n), 100)
		}
		_, err := f.tp.EndRun(t.Context(), tape.EndRunRequest{Run: f.run.ID, Status: tape.RunFailed, Fence: f.fence()})
		f.check("EndRun", err)
		if _, err := f.tp.CompactRun(t.Context(), f.run.ID, runstore.Fence{}); err != nil {
			t.Errorf("CompactRun: %v", err)
		}
		if _, err := f.tp.BeginRun(t.Context(), tape.BeginRunRequest{Key: tape.RunKey{App: "app"}, Owner: "second"}); err != nil {
			t.Errorf("BeginRun after CompactRun: %v", err)
		}
		if _, err := f.tp.EndRun(t.Context(), tape.EndRunRequest{Run: f.run.ID, Status: tape.RunStuck}); err != nil {
			t.Errorf("EndRun after CompactRun: %v", err)
		}
	})
}
