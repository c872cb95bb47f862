package tapeserver_test

import (
	"context"
	"fmt"
	"net"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/tapestore/tapestore/runstore/memory"
	"github.com/tapestore/tapestore/tape"
	"github.com/tapestore/tapestore/tapeserver"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

// TestGrantsAreBounded checks that a connection which has the largest number of grants takes no further run
// and keeps all its grants: the driver of its oldest run was taken over, and does not take the run back, or
// cancel it once its successor has ended it. Once a run has ended on another connection under the grant of
// this one, there is room for another run.
func TestGrantsAreBounded(t *testing.T) {
	t.Parallel()
	connect := connections(t, memory.New(nil).Open(), tapeserver.Options{})
	c, next := connect(), connect()
	begin := func(c tapepb.TapeClient, invocation int) (*tapepb.BeginRunResponse, error) {
		return c.BeginRun(t.Context(), beginRequest(fmt.Sprint(invocation)))
	}
	refuseAll := func(when string) {
		t.Helper()
		for range tapeserver.MaxGrants/tapeserver.CheckedGrants + 1 { // each refusal reads the runs of some grants
			_, err := begin(c, tapeserver.MaxGrants)
			wantLimit(t, "BeginRun "+when, err, "GrantsPerConnection")
		}
	}
	var first string
	var second *tapepb.BeginRunResponse
	for i := range tapeserver.MaxGrants {
		r, err := begin(c, i)
		if err != nil {
			t.Fatal(err)
		}
		switch i {
		case 0:
			first = r.GetRunId()
		case 1:
			second = r
		}
	}
	_, err := begin(c, tapeserver.MaxGrants)
	wantLimit(t, "BeginRun", err, "GrantsPerConnection")
	if _, err := begin(next, 0); err != nil {
		t.Fatal(err)
	}
	_, err = begin(c, tapeserver.MaxGrants)
	wantLimit(t, "BeginRun after a takeover", err, "GrantsPerConnection")
	_, err = begin(c, 0)
	wantStatus(t, "BeginRun of the former driver", err, codes.Aborted, "held")
	if acts(t.Context(), c, first, "k") || !acts(t.Context(), next, first, "k") {
		t.Error("the former driver acts, or the next one does not")
	}
	// A run that was cancelled can be begun again, so its grant stays.
	if _, err := next.EndRun(t.Context(), &tapepb.EndRunRequest{RunId: first, Status: tapepb.RunStatus_RUN_STATUS_CANCELLED}); err != nil {
		t.Fatal(err)
	}
	refuseAll("after a cancellation")
	if _, err := begin(next, 0); err != nil {
		t.Fatal(err)
	}
	_, err = begin(c, 0)
	wantStatus(t, "BeginRun of the former driver of a revived run", err, codes.Aborted, "held")
	// The former driver of a run that its successor has ended has no say in it.
	if _, err := next.EndRun(t.Context(), &tapepb.EndRunRequest{RunId: first, Status: tapepb.RunStatus_RUN_STATUS_TERMINAL}); err != nil {
		t.Fatal(err)
	}
	refuseAll("after the end of a run that was taken over")
	_, err = c.EndRun(t.Context(), &tapepb.EndRunRequest{RunId: first, Status: tapepb.RunStatus_RUN_STATUS_CANCELLED})
	if got := getRun(t, next, first).GetStatus(); err == nil || got != tapepb.RunStatus_RUN_STATUS_TERMINAL {
		t.Errorf("EndRun(CANCELLED) of the former driver = %v, and the TERMINAL run of its successor is %v", err, got)
	}
	g := second.GetGrant()
	end := &tapepb.EndRunRequest{RunId: second.GetRunId(), Status: tapepb.RunStatus_RUN_STATUS_TERMINAL,
		Fence: &tapepb.Fence{Owner: g.GetOwner(), Token: g.GetToken(), GrantId: g.GetGrantId()}}
	if _, err := next.EndRun(t.Context(), end); err != nil {
		t.Fatal(err)
	}
	for i := range tapeserver.MaxGrants {
		if _, err = begin(c, tapeserver.MaxGrants); err == nil {
			return
		}
		wantLimit(t, fmt.Sprint("BeginRun ", i), err, "GrantsPerConnection")
	}
	t.Error("no room for a run, although the run of a grant has ended")
}

// TestNoTakeoverWithoutRoomForItsGrant checks that a call whose grant the server has no room for takes no
// lease: the driver keeps its run. Heartbeats, and drivers that have their grant, need no room.
func TestNoTakeoverWithoutRoomForItsGrant(t *testing.T) {
	t.Parallel()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := tapeserver.New(memory.New(nil).Open(), patient(&tapeserver.Options{Fence: tape.FenceConnection}))
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- server.Serve(ctx, lis) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Errorf("Serve = %v", err)
		}
	})
	connect := func() tapepb.TapeClient { return tapepb.NewTapeClient(connection(t, lis.Addr().String())) }
	driver, helper, next := connect(), connect(), connect()
	id := beginAs(t, driver, "A")
	for _, full := range []struct {
		client, limit string
		grants        int
	}{
		{"another", "Grants", tapeserver.MaxGrantsInAll - 1},
		{"address 127.0.0.1", "GrantsPerClient", tapeserver.MaxGrantsInAll - tapeserver.MaxGrantsInAll/8 - 1},
	} {
		server.CountGrants(full.client, full.grants)
		before := getRun(t, driver, id)
		req := beginRequest("i")
		req.LeaseOwner = "B"
		_, err = next.BeginRun(t.Context(), req)
		wantLimit(t, "BeginRun", err, full.limit)
		_, err = next.BeginRun(t.Context(), beginRequest("new"))
		wantLimit(t, "BeginRun of a new run", err, full.limit)
		_, err = next.ResumeRun(t.Context(), &tapepb.ResumeRunRequest{RunId: id, LeaseOwner: "B"})
		wantLimit(t, "ResumeRun", err, full.limit)
		_, err = next.ResumeRun(t.Context(), &tapepb.ResumeRunRequest{RunId: id, LeaseOwner: "A", WaitForLease: true})
		wantLimit(t, "ResumeRun that waits", err, full.limit)
		if after := getRun(t, driver, id); after.GetToken() != before.GetToken() || after.GetLeaseOwner() != "A" {
			t.Errorf("%s: the refused calls changed %v to %v", full.limit, before, after)
		}
		if _, err := helper.ResumeRun(t.Context(), &tapepb.ResumeRunRequest{RunId: id, LeaseOwner: "A", LeaseTtlMs: 60_000}); err != nil {
			t.Errorf("%s: a heartbeat: %v", full.limit, err)
		}
		if again := beginAs(t, driver, "A"); again != id || !acts(t.Context(), driver, id, full.limit) {
			t.Errorf("%s: the driver may not act", full.limit)
		}
		server.CountGrants(full.client, -full.grants)
	}
	if beginAs(t, next, "B"); !acts(t.Context(), next, id, "k") {
		t.Error("the next driver may not act once there is room")
	}
}
