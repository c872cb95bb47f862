package protocol

import (
	"maps"
	"slices"

	"google.golang.org/grpc/codes"

	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

func runCases() []Case {
	return []Case{
		{Group: "runs", Check: 1, Name: "new-run", Run: newRun,
			Doc: "BeginRun of a new key returns a new run with next_seq 0; the caller holds its lease for the TTL."},
		{Group: "runs", Check: 2, Name: "begin-again-takes-over", Run: beginAgain,
			Doc: "BeginRun of the same key by another owner returns the same run, and the new owner holds the lease."},
		{Group: "runs", Check: 3, Name: "another-invocation-is-another-run", Run: anotherInvocation,
			Doc: "Two invocations of one session are two runs."},
		{Group: "runs", Check: 4, Name: "terminal-run-stays-terminal", Run: terminalStays,
			Doc: "BeginRun of a TERMINAL run returns the run, and leaves it TERMINAL. So does ResumeRun, which revives no run that has ended."},
		{Group: "runs", Check: 5, Name: "no-such-run", Run: noSuchRun,
			Doc: "GetRun, ResumeRun and EndRun of an unknown run are NOT_FOUND."},
		{Group: "runs", Check: 6, Name: "identity-is-returned", Run: identityIsReturned,
			Doc: "GetRun returns the identity, the scopes in their order and the labels that BeginRun named."},
		{Group: "runs", Check: 7, Name: "expired-run-is-listed", Run: expiredIsListed,
			Doc: "ListRunsToRecover lists a RUNNING run once its lease has expired, on the server's clock or at now_ms, and not before."},
		{Group: "runs", Check: 8, Name: "cancelled-run-is-not-listed", Run: cancelledIsNotListed,
			Doc: "A CANCELLED run is never listed for recovery, and a late heartbeat does not revive it."},
		{Group: "runs", Check: 9, Name: "failed-run-begins-again", Run: failedBeginsAgain,
			Doc: "BeginRun of a FAILED run makes it RUNNING."},
		{Group: "runs", Check: 10, Name: "resume-takes-over", Run: resumeTakesOver,
			Doc: "ResumeRun by another owner takes the lease, and journals nothing."},
		{Group: "runs", Check: 11, Name: "default-ttl", Run: defaultTTL,
			Doc: "A TTL of 0 means two minutes."},
	}
}

func newRun(t T, e *Env) {
	r := e.Begin(t, e.Process, "i")
	expect(t, !r.GetResumed() && r.GetNextSeq() == 0 && r.GetStatus() == running && r.GetRunId() != "",
		"BeginRun = %v, want a new RUNNING run with next_seq 0", r)
	run := e.run(t, r.GetRunId())
	expect(t, run.GetSeqCursor() == 1 && run.GetLeaseOwner() == "host:1" && run.GetStatus() == running,
		"GetRun = %v, want seq_cursor 1 and the lease of host:1", run)
	expectTTL(t, run, 600_000)
}

// expectTTL checks the lease of a run that has just begun. Both times are the server's.
func expectTTL(t T, run *tapepb.RunState, ttl int64) {
	t.Helper()
	const slack = 30_000 // 30 s between two readings of the server's clock
	got := run.GetLeaseExpiresAtMs() - run.GetStartedAtMs()
	expect(t, got > ttl-slack && got < ttl+slack, "the lease expires %d ms after the run's start, want about %d", got, ttl)
}

func beginAgain(t T, e *Env) {
	first := e.begin(t)
	req := e.request("i")
	req.LeaseOwner = "host:2"
	r, _ := e.NewProcess(t).Client.BeginRun(t.Context(), req)
	expect(t, r.GetRunId() == first && r.GetResumed() && r.GetStatus() == running, "BeginRun = %v, want run %s resumed", r, first)
	run := e.run(t, first)
	expect(t, run.GetLeaseOwner() == "host:2", "the owner is %q, want host:2", run.GetLeaseOwner())
}

func anotherInvocation(t T, e *Env) {
	if a, b := e.begin(t), e.Begin(t, e.Process, "other").GetRunId(); a == b {
		t.Errorf("both invocations are run %s", a)
	}
}

func terminalStays(t T, e *Env) {
	id := e.begin(t)
	r, _ := e.Client.EndRun(t.Context(), &tapepb.EndRunRequest{RunId: id, Status: terminal})
	ended := r.GetRun()
	expect(t, ended.GetStatus() == terminal && ended.GetEndedAtMs() > 0 && ended.GetLeaseOwner() == "",
		"EndRun = %v, want it TERMINAL, with a time and without an owner", ended)
	again := e.Begin(t, e.Process, "i")
	expect(t, again.GetRunId() == id && again.GetResumed() && again.GetStatus() == terminal,
		"BeginRun = %v, want run %s TERMINAL", again, id)
	resumed, _ := e.NewProcess(t).Client.ResumeRun(t.Context(), &tapepb.ResumeRunRequest{RunId: id, LeaseOwner: "host:2"})
	expect(t, resumed.GetRun().GetStatus() == terminal, "ResumeRun = %v, want it TERMINAL", resumed)
	expect(t, e.run(t, id).GetStatus() == terminal, "the run is %v, want it TERMINAL", e.run(t, id))
}

func noSuchRun(t T, e *Env) {
	ctx, id := t.Context(), e.Name("no-such-run-id")
	_, err := e.Try.GetRun(ctx, &tapepb.GetRunRequest{RunId: id})
	expectStatus(t, "GetRun", err, codes.NotFound, "no such run")
	_, err = e.Try.ResumeRun(ctx, &tapepb.ResumeRunRequest{RunId: id})
	expectStatus(t, "ResumeRun", err, codes.NotFound, "no such run")
	// A server that requires the driver's fence checks it first. A cancellation needs no fence.
	_, err = e.Try.EndRun(ctx, &tapepb.EndRunRequest{RunId: id, Status: cancelled})
	expectStatus(t, "EndRun", err, codes.NotFound, "no such run")
}

func identityIsReturned(t T, e *Env) {
	req := e.request("i")
	req.TenantId, req.Actor, req.Subject, req.AgentId = "tenant", "actor", "subject", "agent"
	req.AiplexInstanceId, req.GatewayRoute = "instance", "route"
	req.Scopes = []string{"z", "a", "m"}
	req.Labels = map[string]string{"k": "v", "": "empty"}
	r, _ := e.Client.BeginRun(t.Context(), req)
	run := e.run(t, r.GetRunId())
	got := []string{run.GetTenantId(), run.GetActor(), run.GetSubject(), run.GetAgentId(), run.GetAiplexInstanceId(), run.GetGatewayRoute()}
	expect(t, slices.Equal(got, []string{"tenant", "actor", "subject", "agent", "instance", "route"}), "identity %q", got)
	expect(t, slices.Equal(run.GetScopes(), req.GetScopes()), "scopes %q, want %q", run.GetScopes(), req.GetScopes())
	expect(t, maps.Equal(run.GetLabels(), req.GetLabels()), "labels %v, want %v", run.GetLabels(), req.GetLabels())
	expect(t, run.GetAppName() == req.GetAppName() && run.GetUserId() == "ana" && run.GetSessionId() == "s" && run.GetInvocationId() == "i",
		"GetRun = %v, want the key of %v", run, req)
}

// listed returns a run as ListRunsToRecover lists it at the given time, or nil if the run is not
// listed.
func (p *Process) listed(t T, id string, now int64) *tapepb.RunState {
	t.Helper()
	r, _ := p.Client.ListRunsToRecover(t.Context(), &tapepb.ListRunsToRecoverRequest{NowMs: now, Limit: everything})
	i := slices.IndexFunc(r.GetRuns(), func(run *tapepb.RunState) bool { return run.GetRunId() == id })
	if i < 0 {
		return nil
	}
	return r.GetRuns()[i]
}

// everything is a page limit above the length of every list that a case reads.
const everything = 1 << 20

func expiredIsListed(t T, e *Env) {
	id := e.begin(t)
	run := e.run(t, id)
	expect(t, e.listed(t, id, 0) == nil, "a run with a live lease is listed")
	later := e.listed(t, id, run.GetLeaseExpiresAtMs()+1000)
	expect(t, later.GetStatus() == running, "after its expiry the run is listed as %v", later)

	req := e.request("short")
	req.LeaseTtlMs = 1
	r, _ := e.Client.BeginRun(t.Context(), req)
	until(t, "a run whose lease has expired is listed", func() bool { return e.listed(t, r.GetRunId(), 0) != nil })
}

func cancelledIsNotListed(t T, e *Env) {
	id := e.begin(t)
	expires := e.run(t, id).GetLeaseExpiresAtMs()
	require(t, e.listed(t, id, expires+1000) != nil, "an expired run is not listed")
	r, _ := e.Client.EndRun(t.Context(), &tapepb.EndRunRequest{RunId: id, Status: cancelled})
	expect(t, r.GetRun().GetStatus() == cancelled, "EndRun = %v", r)
	expect(t, e.listed(t, id, expires+1000) == nil, "a CANCELLED run is listed")
	beat, err := e.Bare.ResumeRun(t.Context(), &tapepb.ResumeRunRequest{RunId: id, LeaseOwner: "host:1"})
	expect(t, err == nil && beat.GetRun().GetStatus() == cancelled && e.run(t, id).GetStatus() == cancelled, "after a late heartbeat, answered %v, %v, the run is %v", beat, err, e.run(t, id))
	expect(t, e.listed(t, id, expires+1_000_000) == nil, "a CANCELLED run is listed after a late heartbeat")
}

func failedBeginsAgain(t T, e *Env) {
	id := e.begin(t)
	_, _ = e.Client.EndRun(t.Context(), &tapepb.EndRunRequest{RunId: id, Status: runFailed})
	expect(t, e.run(t, id).GetStatus() == runFailed, "the run is %v, want it FAILED", e.run(t, id))
	r := e.Begin(t, e.Process, "i")
	expect(t, r.GetRunId() == id && r.GetResumed() && r.GetStatus() == running, "BeginRun = %v, want run %s RUNNING", r, id)
	expect(t, e.run(t, id).GetStatus() == running, "the run is %v, want it RUNNING", e.run(t, id))
}

func resumeTakesOver(t T, e *Env) {
	id := e.begin(t)
	before := e.run(t, id)
	r, _ := e.NewProcess(t).Client.ResumeRun(t.Context(), &tapepb.ResumeRunRequest{RunId: id, LeaseOwner: "host:2", LeaseTtlMs: 1_200_000})
	for _, run := range []*tapepb.RunState{r.GetRun(), e.run(t, id)} {
		expect(t, run.GetStatus() == running && run.GetLeaseOwner() == "host:2", "the run is %v, want it RUNNING by host:2", run)
		expect(t, run.GetLeaseExpiresAtMs() > before.GetLeaseExpiresAtMs(), "the lease still expires at %d", run.GetLeaseExpiresAtMs())
		expect(t, run.GetSeqCursor() == before.GetSeqCursor(), "ResumeRun has journaled: seq_cursor %d", run.GetSeqCursor())
	}
}

func defaultTTL(t T, e *Env) {
	req := e.request("i")
	req.LeaseTtlMs = 0
	r, _ := e.Client.BeginRun(t.Context(), req)
	expectTTL(t, e.run(t, r.GetRunId()), 120_000)
}
