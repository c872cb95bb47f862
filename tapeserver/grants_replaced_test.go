package tapeserver_test

import (
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/tapestore/tapestore/lease"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
	"github.com/tapestore/tapestore/tapeserver"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

// TestHeartbeatOfAReplacedDriver checks that the heartbeat of a driver whose grant has ended takes no lease on
// the driver's own connection, whether the lease is free, has expired or was broken. The driver gets a grant
// again by BeginRun.
func TestHeartbeatOfAReplacedDriver(t *testing.T) {
	t.Parallel()
	type fixture struct {
		store *memory.Store
		next  tapepb.TapeClient // begins the run as B after the lease of A has expired
		id    string
	}
	for _, opts := range []tapeserver.Options{{}, {WaitForLease: true}} {
		for how, end := range map[string]func(*testing.T, fixture){
			"parked": func(t *testing.T, f fixture) {
				beginAs(t, f.next, "B")
				if r, err := f.next.AwaitSignal(t.Context(), &tapepb.AwaitSignalRequest{RunId: f.id, GateName: "approval"}); err != nil || r.GetDelivered() {
					t.Fatalf("AwaitSignal = %v, %v", r, err)
				}
			},
			"expired": func(t *testing.T, f fixture) {
				beginAs(t, f.next, "B")
				f.store.Advance(61 * time.Second)
			},
			"broken": func(t *testing.T, f fixture) {
				if _, err := lease.Break(t.Context(), f.store.Open(), lease.BreakRequest{Run: runstore.RunID(f.id), Whoever: true, Operator: "ops", Reason: "stop it"}); err != nil {
					t.Fatal(err)
				}
			},
		} {
			t.Run(how, func(t *testing.T) {
				t.Parallel()
				store := memory.New(nil)
				connect := connections(t, store.Open(), opts)
				paused, next, user := connect(), connect(), connect()
				id := beginAs(t, paused, "A")
				store.Advance(61 * time.Second)
				end(t, fixture{store, next, id})
				before := getRun(t, user, id)
				for range 2 {
					_, err := paused.ResumeRun(t.Context(), &tapepb.ResumeRunRequest{RunId: id, LeaseOwner: "A", LeaseTtlMs: 60_000})
					wantStatus(t, "ResumeRun", err, codes.FailedPrecondition, "fenced")
					if acts(t.Context(), paused, id, "late") {
						t.Error("the driver acts after its heartbeat")
					}
					_, err = paused.EndRun(t.Context(), &tapepb.EndRunRequest{RunId: id, Status: tapepb.RunStatus_RUN_STATUS_TERMINAL})
					wantStatus(t, "EndRun", err, codes.FailedPrecondition, "fenced")
				}
				if after := getRun(t, user, id); after.GetToken() != before.GetToken() || after.GetStatus() != before.GetStatus() {
					t.Errorf("the driver has changed %v to %v", before, after)
				}
				if beginAs(t, paused, "A"); !acts(t.Context(), paused, id, "again") {
					t.Error("the driver may not act after BeginRun")
				}
			})
		}
	}
}

// TestHeartbeatAfterTheEndOfTheRun checks that the driver of a run that another client has cancelled reads
// the status of the run in the reply to its heartbeat.
func TestHeartbeatAfterTheEndOfTheRun(t *testing.T) {
	t.Parallel()
	connect := connections(t, memory.New(nil).Open(), tapeserver.Options{})
	driver, user := connect(), connect()
	id := beginAs(t, driver, "A")
	cancelled := tapepb.RunStatus_RUN_STATUS_CANCELLED
	if _, err := user.EndRun(t.Context(), &tapepb.EndRunRequest{RunId: id, Status: cancelled}); err != nil {
		t.Fatal(err)
	}
	r, err := driver.ResumeRun(t.Context(), &tapepb.ResumeRunRequest{RunId: id, LeaseOwner: "A", LeaseTtlMs: 60_000})
	if err != nil || r.GetRun().GetStatus() != cancelled || r.GetGrant() != nil {
		t.Errorf("ResumeRun = %v, %v; want the run CANCELLED and no grant", r, err)
	}
}

// TestHeartbeatAfterThePark checks that a heartbeat which arrives after the driver has parked its run leaves
// the run parked, so that the signal releases the run and a recovery lists it.
func TestHeartbeatAfterThePark(t *testing.T) {
	t.Parallel()
	for _, own := range []bool{true, false} {
		connect := connections(t, memory.New(nil).Open(), tapeserver.Options{})
		driver, user := connect(), connect()
		helper := driver
		if !own {
			helper = connect()
		}
		id := beginAs(t, driver, "A")
		if r, err := driver.AwaitSignal(t.Context(), &tapepb.AwaitSignalRequest{RunId: id, GateName: "approval"}); err != nil || r.GetDelivered() {
			t.Fatalf("AwaitSignal = %v, %v", r, err)
		}
		r, err := helper.ResumeRun(t.Context(), &tapepb.ResumeRunRequest{RunId: id, LeaseOwner: "A", LeaseTtlMs: 60_000})
		if err != nil || r.GetRun().GetStatus() != tapepb.RunStatus_RUN_STATUS_WAITING || r.GetGrant() != nil {
			t.Errorf("own connection %t: ResumeRun = %v, %v; want the run WAITING and no grant", own, r, err)
		}
		s, err := user.SendSignal(t.Context(), &tapepb.SendSignalRequest{RunId: id, GateName: "approval", ResolutionJson: "true"})
		if err != nil || s.GetRunStatus() != tapepb.RunStatus_RUN_STATUS_RUNNABLE {
			t.Errorf("own connection %t: SendSignal = %v, %v; want the run RUNNABLE", own, s, err)
		}
		if l, err := user.ListRunsToRecover(t.Context(), &tapepb.ListRunsToRecoverRequest{}); err != nil || len(l.GetRuns()) != 1 {
			t.Errorf("own connection %t: runs to recover = %v, %v; want one", own, l, err)
		}
		resumed, err := helper.ResumeRun(t.Context(), &tapepb.ResumeRunRequest{RunId: id, LeaseOwner: "A", LeaseTtlMs: 60_000})
		if err != nil || resumed.GetRun().GetStatus() != tapepb.RunStatus_RUN_STATUS_RUNNING || !acts(t.Context(), helper, id, "k") {
			t.Errorf("own connection %t: ResumeRun after the signal = %v, %v; want the run RUNNING", own, resumed, err)
		}
	}
}

// TestResumeOfARunThatWasParkedOverAnotherConnection checks that a driver resumes its run on its own connection
// after a helper has parked it under the driver's grant, over another connection: no later grant exists.
func TestResumeOfARunThatWasParkedOverAnotherConnection(t *testing.T) {
	t.Parallel()
	connect := connections(t, memory.New(nil).Open(), tapeserver.Options{})
	driver, helper := connect(), connect()
	begun, err := driver.BeginRun(t.Context(), &tapepb.BeginRunRequest{AppName: "a", InvocationId: "i", LeaseOwner: "A", LeaseTtlMs: 60_000})
	if err != nil {
		t.Fatal(err)
	}
	id, g := begun.GetRunId(), begun.GetGrant()
	fence := &tapepb.Fence{Owner: g.GetOwner(), Token: g.GetToken(), GrantId: g.GetGrantId()}
	if _, err := helper.AwaitSignal(t.Context(), &tapepb.AwaitSignalRequest{RunId: id, GateName: "g", Fence: fence}); err != nil {
		t.Fatal(err)
	}
	resume := func() (*tapepb.ResumeRunResponse, error) {
		return driver.ResumeRun(t.Context(), &tapepb.ResumeRunRequest{RunId: id, LeaseOwner: "A", LeaseTtlMs: 60_000})
	}
	if r, err := resume(); err != nil || r.GetRun().GetStatus() != tapepb.RunStatus_RUN_STATUS_WAITING || r.GetGrant() != nil {
		t.Errorf("ResumeRun before the signal = %v, %v; want the run WAITING and no grant", r, err)
	}
	if _, err := helper.SendSignal(t.Context(), &tapepb.SendSignalRequest{RunId: id, GateName: "g", ResolutionJson: "true"}); err != nil {
		t.Fatal(err)
	}
	if r, err := resume(); err != nil || r.GetGrant() == nil {
		t.Errorf("ResumeRun after the signal = %v, %v; want a grant", r, err)
	}
}
