package tape_test

import (
	"testing"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
	"github.com/tapestore/tapestore/tape"
)

// TestALateHeartbeatLosesToALaterGrant checks that a late heartbeat takes no lease after a later grant of the run,
// also if that grant is made after the heartbeat has read the run: another driver takes the run, works, and parks it
// at the next gate, whose signal makes it RUNNABLE again.
func TestALateHeartbeatLosesToALaterGrant(t *testing.T) {
	t.Parallel()
	store := memory.New(nil).Open()
	opts := &tape.Options{Fence: tape.FenceConnection}
	tp := tape.New(store, opts)
	a := begin(t, tp, "i")
	park := func(f runstore.Fence, gate string) {
		t.Helper()
		if _, delivered, err := tp.AwaitSignal(t.Context(), tape.AwaitRequest{Run: a.ID, Gate: gate, Fence: f}); err != nil || delivered {
			t.Fatal(delivered, err)
		}
		if s, err := tp.SendSignal(t.Context(), tape.Signal{Run: a.ID, Gate: gate, Resolution: "1"}); err != nil || !s.Released {
			t.Fatal(s, err)
		}
	}
	park(a.Lease.Fence(), "first")
	var later runstore.Token
	slow := tape.New(ahead(store, "acquire", 1, func() {
		b := begin(t, tp, "i")
		later = b.Lease.Token
		park(b.Lease.Fence(), "second")
	}), opts)
	run, lease, err := slow.ResumeRun(t.Context(), tape.ResumeRunRequest{
		Run: a.ID, Owner: "worker-a", TTL: time.Minute, Takeover: tape.TakeNone, Former: a.Lease.Fence(), RenewExpired: true,
	})
	if err == nil {
		t.Errorf("the late heartbeat took the run (%v) under token %d, after the later grant %d", run.Status, lease.Token, later)
	}
}
