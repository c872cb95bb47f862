package tapeserver_test

import (
	"testing"
	"time"

	"github.com/tapestore/tapestore/runstore/memory"
	"github.com/tapestore/tapestore/tapeserver"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

// A process is paused for longer than its lease, and nobody takes its run over. When it wakes up, its
// helper's heartbeat comes first, over the helper's connection. A heartbeat moves no grant: the driver
// goes on, or may begin its run again.
func TestLateHeartbeatFromAnotherConnection(t *testing.T) {
	t.Parallel()
	store := memory.New(nil)
	connect := connections(t, store.Open(), tapeserver.Options{})
	driver, helper := connect(), connect()
	id := beginAs(t, driver, "host:1")
	store.Advance(61 * time.Second)
	for range 3 { // heartbeats go on
		r, err := helper.ResumeRun(t.Context(), &tapepb.ResumeRunRequest{RunId: id, LeaseOwner: "host:1", LeaseTtlMs: 60_000})
		if err != nil {
			t.Fatal(err)
		}
		if r.GetGrant() != nil {
			t.Errorf("the heartbeat is answered the grant with token %d", r.GetGrant().GetToken())
		}
		if acts(t.Context(), driver, id, "k") {
			return
		}
		req := beginRequest("i")
		req.LeaseOwner, req.LeaseTtlMs = "host:1", 60_000
		if _, err := driver.BeginRun(t.Context(), req); err != nil {
			t.Errorf("the driver begins its run again: %v", err)
		}
		store.Advance(45 * time.Second)
	}
}
