package tapeserver_test

import (
	"fmt"
	"reflect"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
	"github.com/tapestore/tapestore/tapeserver"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

// The tests of runs, decisions and effects follow the client-visible checks of
// the protocol, whose numbers their comments give.

// began is before every test of this package.
var began = time.Now()

// fromNow reports whether a time in milliseconds is ahead of some moment since the tests
// began.
func fromNow(got int64, ahead time.Duration) bool {
	moment := time.UnixMilli(got).Add(-ahead)
	return !moment.Before(began.Truncate(time.Millisecond)) && !moment.After(time.Now())
}

func TestBeginRun(t *testing.T) { // 1, 2, 3, 11
	t.Parallel()
	c := client(t)
	r := begin(t, c, "i")
	if r.GetResumed() || r.GetNextSeq() != 0 || r.GetStatus() != tapepb.RunStatus_RUN_STATUS_RUNNING || r.GetRunId() == "" {
		t.Errorf("BeginRun = %v, want a fresh RUNNING run", r)
	}
	run := getRun(t, c, r.GetRunId())
	if run.GetSeqCursor() != 1 || run.GetLeaseOwner() != "host:1" || !fromNow(run.GetLeaseExpiresAtMs(), time.Minute) ||
		!fromNow(run.GetStartedAtMs(), 0) || run.GetEndedAtMs() != 0 {
		t.Errorf("GetRun = %v, want cursor 1, owner host:1, a minute's lease", run)
	}
	other := beginRequest("i")
	other.LeaseOwner, other.LeaseTtlMs = "host:2", 0
	again, err := c.BeginRun(t.Context(), other)
	if err != nil || again.GetRunId() != r.GetRunId() || !again.GetResumed() || again.GetNextSeq() != 1 ||
		again.GetStatus() != tapepb.RunStatus_RUN_STATUS_RUNNING {
		t.Errorf("BeginRun again = %v, %v, want the same run resumed", again, err)
	}
	run = getRun(t, c, r.GetRunId())
	if run.GetLeaseOwner() != "host:2" || !fromNow(run.GetLeaseExpiresAtMs(), 2*time.Minute) {
		t.Errorf("GetRun = %v, want owner host:2 and two minutes' lease", run)
	}
	if another := begin(t, c, "j"); another.GetRunId() == r.GetRunId() {
		t.Errorf("another invocation has run %s too", r.GetRunId())
	}
}

// A request without a TTL gets the one of its reactor, if the server has one; a TTL in the request
// wins.
func TestLeaseTTLOfReactors(t *testing.T) {
	t.Parallel()
	c, _ := start(t, memory.New(nil).Open(), &tapeserver.Options{LeaseTTL: map[runstore.Reactor]time.Duration{
		"agent": 45 * time.Second, "recovery": 20 * time.Second, "outbox": 15 * time.Second, "compensation": 25 * time.Second,
	}})
	id := prepare(t, c).GetRunId()
	for _, want := range []struct {
		reactor string
		ms, ttl int64
	}{{"", 0, 45_000}, {"agent", -1, 45_000}, {"recovery", 0, 20_000}, {"other", 0, 120_000}, {"recovery", 3000, 3000}} {
		req := beginRequest("i")
		req.LeaseOwner, req.Reactor, req.LeaseTtlMs = "a", want.reactor, want.ms
		begun, err := c.BeginRun(t.Context(), req)
		if err != nil || begun.GetGrant().GetTtlMs() != want.ttl {
			t.Errorf("BeginRun as %q with %d ms = %v, %v, want a TTL of %d ms", want.reactor, want.ms, begun, err, want.ttl)
		}
		resumed, err := c.ResumeRun(t.Context(), &tapepb.ResumeRunRequest{RunId: id, LeaseOwner: "b", Reactor: want.reactor, LeaseTtlMs: want.ms})
		if err != nil || resumed.GetGrant().GetTtlMs() != want.ttl {
			t.Errorf("ResumeRun as %q with %d ms = %v, %v, want a TTL of %d ms", want.reactor, want.ms, resumed, err, want.ttl)
		}
	}
	dispatch, err := c.ClaimEffectDispatch(t.Context(), &tapepb.ClaimEffectDispatchRequest{RunId: id, IdempotencyKey: "outbox"})
	if err != nil || !fromNow(dispatch.GetEffect().GetDispatchClaimExpiresAtMs(), 15*time.Second) {
		t.Errorf("ClaimEffectDispatch = %v, %v, want 15 s", dispatch, err)
	}
	obligation, err := c.ClaimObligation(t.Context(), &tapepb.ClaimObligationRequest{RunId: id, ObligationSeq: preparedObligation})
	if err != nil || !fromNow(obligation.GetObligation().GetClaimExpiresAtMs(), 25*time.Second) {
		t.Errorf("ClaimObligation = %v, %v, want 25 s", obligation, err)
	}
}

func TestEndRun(t *testing.T) { // 4, 8, 9, 14
	t.Parallel()
	for _, c := range []struct {
		status, after tapepb.RunStatus
		word          string
	}{
		{tapepb.RunStatus_RUN_STATUS_TERMINAL, tapepb.RunStatus_RUN_STATUS_TERMINAL, "terminal"},
		{tapepb.RunStatus_RUN_STATUS_STUCK, tapepb.RunStatus_RUN_STATUS_STUCK, "stuck"},
		{tapepb.RunStatus_RUN_STATUS_FAILED, tapepb.RunStatus_RUN_STATUS_RUNNING, "failed"},
		{tapepb.RunStatus_RUN_STATUS_CANCELLED, tapepb.RunStatus_RUN_STATUS_RUNNING, "cancelled"},
		{tapepb.RunStatus_RUN_STATUS_COMPENSATING, tapepb.RunStatus_RUN_STATUS_RUNNING, "compensating"},
		{77, tapepb.RunStatus_RUN_STATUS_RUNNING, "ended"},
	} {
		t.Run(c.word, func(t *testing.T) {
			t.Parallel()
			cl := client(t)
			r := begin(t, cl, "i")
			expiry := getRun(t, cl, r.GetRunId()).GetLeaseExpiresAtMs()
			ended, err := cl.EndRun(t.Context(), &tapepb.EndRunRequest{RunId: r.GetRunId(), Status: c.status, DetailJson: "{}"})
			run := ended.GetRun()
			if err != nil || run.GetStatus() != c.status || run.GetEndedAtMs() == 0 || run.GetLeaseOwner() != "" || run.GetLeaseExpiresAtMs() != expiry {
				t.Errorf("EndRun = %v, %v, want %v, an end, no owner and the expiry kept", run, err, c.status)
			}
			due, err := cl.ListRunsToRecover(t.Context(), &tapepb.ListRunsToRecoverRequest{NowMs: expiry + 1})
			if err != nil || len(due.GetRuns()) != 0 {
				t.Errorf("ListRunsToRecover = %v, %v, want nothing", due, err)
			}
			entries := journal(t, cl, r.GetRunId(), 0, 2)
			if first, last := payload(t, entries[0])["status"], payload(t, entries[1])["status"]; entries[0].GetKind() != "run" || first != "running" || entries[1].GetKind() != "run" || last != c.word {
				t.Errorf("journal = %v, want run/running and run/%s", entries, c.word)
			}
			again := begin(t, cl, "i")
			if again.GetRunId() != r.GetRunId() || !again.GetResumed() || again.GetStatus() != c.after || getRun(t, cl, r.GetRunId()).GetStatus() != c.after {
				t.Errorf("BeginRun again = %v, want the run resumed and %v", again, c.after)
			}
		})
	}
}

func TestUnknownRun(t *testing.T) { // 5
	t.Parallel()
	c := client(t)
	const id = "no-such-run-id"
	_, getErr := c.GetRun(t.Context(), &tapepb.GetRunRequest{RunId: id})
	_, resumeErr := c.ResumeRun(t.Context(), &tapepb.ResumeRunRequest{RunId: id})
	_, endErr := c.EndRun(t.Context(), &tapepb.EndRunRequest{RunId: id, Status: 4})
	_, decisionErr := c.RecordDecision(t.Context(), &tapepb.RecordDecisionRequest{RunId: id})
	_, effectErr := c.BeginEffect(t.Context(), &tapepb.BeginEffectRequest{RunId: id})
	for what, err := range map[string]error{
		"GetRun": getErr, "ResumeRun": resumeErr, "EndRun": endErr, "RecordDecision": decisionErr, "BeginEffect": effectErr,
	} {
		wantStatus(t, what, err, call{name: what}.refusal(codes.NotFound), "no such run")
	}
	d, err := c.GetDecision(t.Context(), &tapepb.GetDecisionRequest{RunId: id})
	if err != nil || d.GetFound() || d.GetDecision() != nil {
		t.Errorf("GetDecision = %v, %v, want not found", d, err)
	}
	e, err := c.GetEffect(t.Context(), &tapepb.GetEffectRequest{RunId: id, IdempotencyKey: "k"})
	if err != nil || e.GetFound() || e.GetEffect() != nil {
		t.Errorf("GetEffect = %v, %v, want not found", e, err)
	}
}

func TestIdentityIsKept(t *testing.T) { // 6
	t.Parallel()
	c := client(t)
	req := &tapepb.BeginRunRequest{
		AppName: "Ä", InvocationId: "i", TenantId: "t", Actor: "a", Subject: "s", AgentId: "g", AiplexInstanceId: "x",
		GatewayRoute: "r", Scopes: []string{"z", "a", "z"}, Labels: map[string]string{"k": "v", "": "é"},
	}
	r, err := c.BeginRun(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	run := getRun(t, c, r.GetRunId())
	if run.GetAppName() != "Ä" || run.GetTenantId() != "t" || run.GetActor() != "a" || run.GetSubject() != "s" ||
		run.GetAgentId() != "g" || run.GetAiplexInstanceId() != "x" || run.GetGatewayRoute() != "r" ||
		!reflect.DeepEqual(run.GetScopes(), req.GetScopes()) || !reflect.DeepEqual(run.GetLabels(), req.GetLabels()) || run.GetLeaseOwner() != "" {
		t.Errorf("GetRun = %v, want what was given: %v", run, req)
	}
}

func TestListRunsToRecover(t *testing.T) { // 7
	t.Parallel()
	store := memory.New(nil)
	c, _ := start(t, store.Open(), nil)
	r := begin(t, c, "i")
	expiry := getRun(t, c, r.GetRunId()).GetLeaseExpiresAtMs()
	list := func(now int64) int {
		t.Helper()
		due, err := c.ListRunsToRecover(t.Context(), &tapepb.ListRunsToRecoverRequest{NowMs: now, Limit: 10})
		if err != nil {
			t.Fatal(err)
		}
		for _, run := range due.GetRuns() {
			if run.GetRunId() != r.GetRunId() || run.GetStatus() != tapepb.RunStatus_RUN_STATUS_RUNNING {
				t.Errorf("listed %v, want the RUNNING run", run)
			}
		}
		return len(due.GetRuns())
	}
	if live, at, after := list(0), list(expiry), list(expiry+1); live != 0 || at != 0 || after != 1 {
		t.Errorf("listed %d while live, %d at expiry, %d after; want 0, 0, 1", live, at, after)
	}
	store.Advance(time.Minute + time.Millisecond)
	if n := list(0); n != 1 {
		t.Errorf("listed %d once the store clock had passed the expiry, want 1", n)
	}
}

func TestResumeRun(t *testing.T) { // 10
	t.Parallel()
	c := client(t)
	r := begin(t, c, "i")
	resumed, err := c.ResumeRun(t.Context(), &tapepb.ResumeRunRequest{RunId: r.GetRunId(), LeaseOwner: "B", LeaseTtlMs: 600000})
	run := resumed.GetRun()
	if err != nil || run.GetStatus() != tapepb.RunStatus_RUN_STATUS_RUNNING || run.GetLeaseOwner() != "B" ||
		!fromNow(run.GetLeaseExpiresAtMs(), 10*time.Minute) || run.GetSeqCursor() != 1 {
		t.Errorf("ResumeRun = %v, %v, want RUNNING, owner B, ten minutes and no entry", run, err)
	}
}

func TestConcurrentBeginRuns(t *testing.T) {
	t.Parallel()
	c := client(t)
	const n = 16
	answers := make([]*tapepb.BeginRunResponse, n)
	start := make(chan struct{})
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			<-start
			var err error
			if answers[i], err = c.BeginRun(t.Context(), beginRequest("i")); err != nil {
				t.Errorf("BeginRun: %v", err)
			}
		})
	}
	close(start)
	wg.Wait()
	fresh, ids, tokens := 0, map[string]bool{}, map[int64]bool{}
	for _, a := range answers {
		if !a.GetResumed() {
			fresh++
		}
		ids[a.GetRunId()], tokens[a.GetGrant().GetToken()] = true, true
	}
	if fresh != 1 || len(ids) != 1 || len(tokens) != n {
		t.Errorf("%d fresh, %d ids, %d tokens; want 1, 1, %d", fresh, len(ids), len(tokens), n)
	}
}

func TestBadInputIsRefusedByName(t *testing.T) {
	t.Parallel()
	c := client(t)
	_, err := c.GetRun(t.Context(), &tapepb.GetRunRequest{})
	if text := status.Convert(err).Message(); text != "no such run" {
		t.Errorf("GetRun without an id: %q, want the protocol's words", text)
	}
	wantStatus(t, "GetRun without an id", err, codes.NotFound, "no such run")
	_, err = c.EndRun(t.Context(), &tapepb.EndRunRequest{})
	wantStatus(t, "EndRun without an id", err, codes.InvalidArgument, "run_id: is empty")
	_, err = c.RecordDecision(t.Context(), &tapepb.RecordDecisionRequest{
		RunId: begin(t, c, "i").GetRunId(), Rationale: string(make([]byte, 1<<20)),
	})
	wantStatus(t, "RecordDecision", err, codes.InvalidArgument, "rationale")
}

// A lease is granted for 30 minutes at most, and the grant says for how long, and until when.
func TestLongLeasesAreCut(t *testing.T) {
	t.Parallel()
	now := time.UnixMilli(1_700_000_000_000)
	c, _ := start(t, memory.New(&memory.Options{Clock: func() time.Time { return now }}).Open(), nil)
	for ttl, want := range map[int64]time.Duration{
		-1: 2 * time.Minute, 0: 2 * time.Minute, 1: time.Millisecond, 1_800_000: 30 * time.Minute,
		1_800_001: 30 * time.Minute, 1<<63 - 1: 30 * time.Minute,
	} {
		check := func(what string, g *tapepb.Grant, err error) {
			t.Helper()
			if err != nil || g.GetTtlMs() != want.Milliseconds() || g.GetExpiresAtMs() != now.Add(want).UnixMilli() {
				t.Errorf("%s for %d ms: %v, %v, want %v from %d", what, ttl, g, err, want, now.UnixMilli())
			}
		}
		req := beginRequest(fmt.Sprint(ttl))
		req.LeaseTtlMs = ttl
		begun, err := c.BeginRun(t.Context(), req)
		check("BeginRun", begun.GetGrant(), err)
		id := begun.GetRunId()
		beat, err := c.ResumeRun(t.Context(), &tapepb.ResumeRunRequest{RunId: id, LeaseTtlMs: ttl, Fence: fenceField(begun.GetGrant())})
		check("heartbeat", beat.GetGrant(), err)
		if at := beat.GetRun().GetLeaseExpiresAtMs(); at != beat.GetGrant().GetExpiresAtMs() {
			t.Errorf("heartbeat for %d ms: the run's lease expires at %d, the grant at %d", ttl, at, beat.GetGrant().GetExpiresAtMs())
		}
		again, err := c.BeginRun(t.Context(), req)
		check("BeginRun again", again.GetGrant(), err)
		taken, err := c.ResumeRun(t.Context(), &tapepb.ResumeRunRequest{RunId: id, LeaseOwner: "b", LeaseTtlMs: ttl})
		check("takeover", taken.GetGrant(), err)
	}
}

// A driver names its reactor, and the run shows it as long as the driver holds the lease.
func TestReactors(t *testing.T) {
	t.Parallel()
	c := client(t)
	shows := func(what, id, want string) {
		t.Helper()
		if got := getRun(t, c, id).GetReactor(); got != want {
			t.Errorf("after %s the reactor is %q, want %q", what, got, want)
		}
	}
	req := beginRequest("i")
	req.Reactor = "compensation"
	r, err := c.BeginRun(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	id := r.GetRunId()
	shows("the run began", id, "compensation")
	beat := &tapepb.ResumeRunRequest{RunId: id, Reactor: "other", Fence: fenceField(r.GetGrant())}
	if _, err := c.ResumeRun(t.Context(), beat); err != nil {
		t.Fatal(err)
	}
	shows("a heartbeat", id, "compensation")
	req.Reactor = "recovery"
	if _, err := c.BeginRun(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	shows("a takeover", id, "recovery")
	resumed, err := c.ResumeRun(t.Context(), &tapepb.ResumeRunRequest{RunId: id, LeaseOwner: "b", Reactor: "ræctor"})
	if err != nil || resumed.GetRun().GetReactor() != "ræctor" {
		t.Errorf("ResumeRun = %v, %v, want its reactor", resumed, err)
	}
	shows("ResumeRun", id, "ræctor")
	req.Reactor = ""
	if _, err := c.BeginRun(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	shows("a takeover that names none", id, "agent")
	end := &tapepb.EndRunRequest{RunId: id, Status: tapepb.RunStatus_RUN_STATUS_TERMINAL}
	if _, err := c.EndRun(t.Context(), end); err != nil {
		t.Fatal(err)
	}
	shows("the end", id, "")
}
