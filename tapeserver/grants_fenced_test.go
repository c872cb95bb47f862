package tapeserver_test

import (
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/tapestore/tapestore/runstore/memory"
	"github.com/tapestore/tapestore/tapeserver"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

// TestAPausedDriverCancelsNothing checks that a driver whose run was taken over does not cancel the run of
// its successor when it wakes up and cleans up. A connection without a grant of the run may cancel it.
func TestAPausedDriverCancelsNothing(t *testing.T) {
	t.Parallel()
	connect := connections(t, memory.New(nil).Open(), tapeserver.Options{})
	paused, next, user := connect(), connect(), connect()
	id := beginAs(t, paused, "A")
	beginAs(t, next, "B")
	before := getRun(t, next, id)
	cancel := &tapepb.EndRunRequest{RunId: id, Status: tapepb.RunStatus_RUN_STATUS_CANCELLED}
	for range 2 {
		_, err := paused.EndRun(t.Context(), cancel)
		wantStatus(t, "EndRun(CANCELLED)", err, codes.FailedPrecondition, "fenced")
	}
	if after := getRun(t, next, id); after.GetStatus() != before.GetStatus() || after.GetLeaseOwner() != "B" || after.GetSeqCursor() != before.GetSeqCursor() {
		t.Errorf("the paused driver changed %v to %v", before, after)
	}
	if !acts(t.Context(), next, id, "k") {
		t.Error("the next driver may not act")
	}
	if r, err := user.EndRun(t.Context(), cancel); err != nil || r.GetRun().GetStatus() != cancel.Status {
		t.Errorf("EndRun(CANCELLED) on another connection = %v, %v", r, err)
	}
}

// TestValuesOfAProcessThatLostOneOfItsRuns checks that a process which drives two runs and has lost the one
// that it began last writes values under the other one's grant, once a write under the lost grant was
// refused.
func TestValuesOfAProcessThatLostOneOfItsRuns(t *testing.T) {
	t.Parallel()
	connect := connections(t, memory.New(nil).Open(), tapeserver.Options{})
	driver, next := connect(), connect()
	write := func() error {
		_, err := driver.WriteValue(t.Context(), &tapepb.WriteValueRequest{Key: "k", ValueJson: "1", IfVersion: -1})
		return err
	}
	begin := func(c tapepb.TapeClient, invocation string) string {
		r, err := c.BeginRun(t.Context(), beginRequest(invocation))
		if err != nil {
			t.Fatal(err)
		}
		return r.GetRunId()
	}
	invocations := []string{"kept", "by an effect", "by a value"}
	var ids []string
	for _, invocation := range invocations {
		ids = append(ids, begin(driver, invocation))
	}
	lose := func(i int) {
		begin(next, invocations[i])
	}
	lose(2)
	wantStatus(t, "WriteValue", write(), codes.FailedPrecondition, "fenced")
	if err := write(); err != nil {
		t.Errorf("WriteValue after the refusal: %v", err)
	}
	lose(1)
	if acts(t.Context(), driver, ids[1], "k") {
		t.Error("the driver acts after another took over")
	}
	if err := write(); err != nil {
		t.Errorf("WriteValue after the refusal of an effect: %v", err)
	}
	lose(0)
	for range 2 {
		wantStatus(t, "WriteValue without a run", write(), codes.FailedPrecondition, "fenced")
	}
	_, err := driver.BeginRun(t.Context(), beginRequest(invocations[2]))
	wantStatus(t, "BeginRun of a lost run", err, codes.Aborted, "held")
	if begin(driver, "new"); write() != nil {
		t.Error("the driver of a new run may not write")
	}
}
