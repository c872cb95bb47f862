package tapeserver_test

import (
	"testing"

	"github.com/tapestore/tapestore/runstore/memory"
	"github.com/tapestore/tapestore/tapeserver"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

// TestAParkedRunHasNoGrant checks that a connection has no grant of a run that waits at a gate: the event
// and the value that its process then writes are applied without a fence, as on any other connection.
func TestAParkedRunHasNoGrant(t *testing.T) {
	t.Parallel()
	c := connections(t, memory.New(nil).Open(), tapeserver.Options{})()
	id := beginAs(t, c, "a")
	if r, err := c.AwaitSignal(t.Context(), &tapepb.AwaitSignalRequest{RunId: id, GateName: "approval"}); err != nil || r.GetDelivered() {
		t.Fatalf("AwaitSignal = %v, %v; want the run parked", r, err)
	}
	begun := beginRequest("i")
	if _, err := c.AppendEvent(t.Context(), &tapepb.AppendEventRequest{
		AppName: begun.GetAppName(), UserId: begun.GetUserId(), SessionId: begun.GetSessionId(),
		Event: &tapepb.EventRecord{Id: "waits", InvocationId: begun.GetInvocationId()},
	}); err != nil {
		t.Errorf("AppendEvent: %v", err)
	}
	if _, err := c.WriteValue(t.Context(), &tapepb.WriteValueRequest{Key: "k", ValueJson: "1", IfVersion: -1}); err != nil {
		t.Errorf("WriteValue: %v", err)
	}
}
