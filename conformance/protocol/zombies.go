package protocol

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/tapestore/tapestore/tape"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

func zombieCases() []Case {
	needs := []Need{NeedGrants}
	return []Case{
		{Group: "T11", Name: "every-writing-rpc-refuses-a-zombie", Needs: needs, Run: zombieByField,
			Doc: "Each writing RPC of the service's descriptor refuses the fence of a driver whose run was taken over, and changes nothing."},
		{Group: "T11", Name: "every-writing-rpc-refuses-a-zombies-headers", Needs: needs, Run: zombieByHeaders,
			Doc: "The same with the fence in the request's headers, also for RPCs that have no field for one."},
		{Group: "T11", Name: "every-driver-rpc-refuses-a-zombies-connection", Needs: []Need{NeedGrants, NeedRefusals}, Run: zombieByConnection,
			Doc: "A driver's write without a fence is refused on the connection of a driver whose run was taken over."},
		{Group: "T11", Name: "refused-begin-effect-is-permission-denied", Needs: needs, Run: refusedBeginEffect,
			Doc: "BeginEffect returns PERMISSION_DENIED for a refusal that no repeat can change: plugins treat every other status as a transient fault, and act."},
		{Group: "T11", Name: "a-stranger-may-what-the-table-says", Needs: needs, Run: strangersMay,
			Doc: "Without a fence, claims and observations are accepted in every mode, and a driver's writes in no mode that requires fences."},
		{Group: "T11", Name: "the-holder-may-everything", Needs: needs, Run: holderMay,
			Doc: "Every writing RPC accepts the fence of the current grant."},
		{Group: "T11", Name: "nothing-of-a-zombie-after-the-takeover", Needs: needs, Run: zombieInFlight,
			Doc: "No write of the former driver is applied after the takeover's grant, whose reply has the run's last seq, including writes in flight."},
		{Group: "T11", Name: "a-heartbeat-is-no-takeover", Needs: needs, Run: heartbeatIsNoTakeover,
			Doc: "ResumeRun by the owner of the live lease from another connection extends the lease and leaves the driver its grant."},
		{Group: "T11", Name: "a-waiting-driver-takes-no-live-lease", Needs: needs, Run: waitingTakesNothing,
			Doc: "BeginRun and ResumeRun with wait_for_lease leave a live lease of another owner alone: ABORTED, with the holder and the remaining time."},
	}
}

// prepared is a run with a row of every kind, the target of a zombie's writes. A zombie is a driver
// whose run was taken over.
type prepared struct {
	e          *Env
	run        string
	invocation string
	grant      *tapepb.Grant
	obligation int64
	claim      int64
	due        int64
}

// prepare begins a run by process p. The run has decision 0, the PENDING effect "open", the claimed
// OUTBOX effect "out", the unclaimed OUTBOX effect "idle", an obligation, a timer and a session.
func (e *Env) prepare(t T, p *Process, invocation string) *prepared {
	t.Helper()
	begun := e.Begin(t, p, invocation)
	z := &prepared{e: e, run: begun.GetRunId(), invocation: invocation, grant: begun.GetGrant(), due: earlyTime()}
	p.decide(t, z.run, 0)
	p.beginEffect(t, &tapepb.BeginEffectRequest{RunId: z.run, CustomKey: "open", Scope: "pay"})
	p.beginEffect(t, &tapepb.BeginEffectRequest{RunId: z.run, CustomKey: "out", DispatchMode: outbox, Connector: e.Name("bank")})
	z.claim = p.claim(t, z.run, "out", "D", 600_000).GetGeneration()
	p.beginEffect(t, &tapepb.BeginEffectRequest{RunId: z.run, CustomKey: "idle", DispatchMode: outbox, Connector: e.Name("bank")})
	z.obligation = p.owe(t, z.run, "open", 0).GetSeq()
	_, _ = p.Client.SetTimer(t.Context(), &tapepb.SetTimerRequest{RunId: z.run, TimerId: "T", FireAtMs: z.due})
	_, _ = p.Client.CreateSession(t.Context(), &tapepb.CreateSessionRequest{AppName: e.Name("app"), UserId: "ana", SessionId: "z"})
	return z
}

// takenOver prepares a run by process p and takes it over by another process.
func (e *Env) takenOver(t T, p *Process) *prepared {
	t.Helper()
	z := e.prepare(t, p, "i")
	req := e.request("i")
	req.LeaseOwner = "host:2"
	r, _ := e.NewProcess(t).Client.BeginRun(t.Context(), req)
	require(t, r.GetGrant().GetToken() > z.grant.GetToken(), "the takeover is answered %v, after the grant %v", r.GetGrant(), z.grant)
	return z
}

// state returns a dump of everything that a writing RPC could change.
func (z *prepared) state(t T) string {
	t.Helper()
	e, ctx := z.e, t.Context()
	run := e.run(t, z.run)
	decisions, _ := e.Client.GetDecision(ctx, &tapepb.GetDecisionRequest{RunId: z.run, DecisionIndex: 1})
	fresh, _ := e.Client.GetEffect(ctx, &tapepb.GetEffectRequest{RunId: z.run, IdempotencyKey: "new"})
	obligations, _ := e.Client.ListObligations(ctx, &tapepb.ListObligationsRequest{RunId: z.run})
	budget, _ := e.Client.AdmitBudget(ctx, &tapepb.AdmitBudgetRequest{RunId: z.run})
	timers := e.due(t, z.run, z.due+2, false)
	session, _ := e.Client.GetSession(ctx, &tapepb.GetSessionRequest{AppName: e.Name("app"), UserId: "ana", SessionId: "z"})
	value, err := e.Try.GetValue(ctx, &tapepb.GetValueRequest{Namespace: e.Name("ns"), Key: "z"})
	require(t, err == nil || status.Code(err) == codes.Unimplemented, "GetValue: %v", err)
	reactions, err := e.Try.ListReactions(ctx, &tapepb.ListReactionsRequest{SubjectPattern: e.Name("z")})
	require(t, err == nil || status.Code(err) == codes.Unimplemented, "ListReactions: %v", err)
	var s strings.Builder
	for _, m := range []proto.Message{
		run, decisions, fresh, e.effect(t, z.run, "open"), e.effect(t, z.run, "out"), e.effect(t, z.run, "idle"), obligations, budget, session, value, reactions,
	} {
		b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
		require(t, err == nil, "marshal: %v", err)
		fmt.Fprintf(&s, "%x\n", b)
	}
	fmt.Fprintln(&s, len(timers))
	return s.String()
}

// unchanged checks that a write changed nothing. On a costly engine only the check after the last
// write compares the state.
func (z *prepared) unchanged(t T, before, what string) {
	t.Helper()
	if what == lastWrite || !z.e.target.Costly {
		require(t, z.state(t) == before, "%s has changed something", what)
	}
}

// lastWrite is the description of the check that follows all writes.
const lastWrite = "a write of the zombie"

// isRefusal reports whether an error says that the presented fence is stale.
func isRefusal(method string, err error) bool {
	want := codes.FailedPrecondition
	if method == "BeginEffect" {
		want = codes.PermissionDenied
	}
	return status.Code(err) == want && reason(err) == "FENCED"
}

func zombieByField(t T, e *Env) {
	p := e.NewProcess(t)
	z := e.takenOver(t, p)
	before := z.state(t)
	for _, w := range z.writes() {
		if !w.setFence(fenceOf(z.grant)) {
			continue // covered by zombieByHeaders
		}
		err := p.invoke(t.Context(), w)
		if status.Code(err) == codes.Unimplemented && reason(err) == "" {
			continue // the server does not serve it
		}
		expect(t, isRefusal(w.method, err), "%s by a zombie: %v, want the reason FENCED", w.name, err)
		z.unchanged(t, before, w.name+" by a zombie")
	}
	z.unchanged(t, before, lastWrite)
}

func zombieByHeaders(t T, e *Env) {
	p := e.NewProcess(t)
	z := e.takenOver(t, p)
	before := z.state(t)
	ctx := headers(t.Context(), z.grant)
	for _, w := range z.writes() {
		err := p.invoke(ctx, w)
		if status.Code(err) == codes.Unimplemented && reason(err) == "" {
			continue // the server does not serve it
		}
		// An RPC without a fence field may refuse every fence.
		expect(t, isRefusal(w.method, err) || !w.takesFence() && err != nil, "%s with a zombie's headers: %v, want the reason FENCED", w.name, err)
		z.unchanged(t, before, w.name+" with a zombie's headers")
	}
	z.unchanged(t, before, lastWrite)
}

func zombieByConnection(t T, e *Env) {
	p := e.NewProcess(t)
	z := e.takenOver(t, p)
	before := z.state(t)
	for _, w := range z.writes() {
		if w.authority() != tape.Driver {
			continue
		}
		err := p.invoke(t.Context(), w)
		refused := isRefusal(w.method, err) || reason(err) == "FENCE_REQUIRED"
		expect(t, refused, "%s on a zombie's connection: %v, want a refusal", w.name, err)
		z.unchanged(t, before, w.name+" on a zombie's connection")
	}
	z.unchanged(t, before, lastWrite)
}

func refusedBeginEffect(t T, e *Env) {
	p := e.NewProcess(t)
	z := e.takenOver(t, p)
	try := func(what string, ctx context.Context, p *Process, f *tapepb.Fence) {
		t.Helper()
		for _, key := range []string{"new", "open"} { // a new effect, and an existing one
			_, err := p.Bare.BeginEffect(ctx, &tapepb.BeginEffectRequest{RunId: z.run, CustomKey: key, Fence: f})
			expect(t, status.Code(err) == codes.PermissionDenied, "BeginEffect of %q with %s: %v, want PERMISSION_DENIED", key, what, err)
		}
	}
	try("a stale fence", t.Context(), p, fenceOf(z.grant))
	try("a stale fence in headers", headers(t.Context(), z.grant), p, nil)
	try("half a fence", t.Context(), p, &tapepb.Fence{Owner: "host:1"})
	other := fenceOf(z.grant)
	other.GrantId = "of nobody"
	try("a grant that nobody has", t.Context(), p, other)
	if e.Mode != ModePresented {
		try("no fence on the zombie's connection", t.Context(), p, nil)
		try("no fence on another connection", t.Context(), e.NewProcess(t), nil)
	}
	e.expectNoEffect(t, z.run, "new")
}

func strangersMay(t T, e *Env) {
	z := e.prepare(t, e.Process, "stranger")
	stranger := e.NewProcess(t)
	for _, w := range z.writes() {
		a, known := tape.Authorities()[w.name]
		if !known {
			continue
		}
		p := stranger
		if a == tape.Grants { // their reply would give the connection a grant
			p = e.NewProcess(t)
		}
		err := p.invoke(t.Context(), w)
		if a == tape.Driver && e.Mode != ModePresented {
			expect(t, reason(err) == "FENCE_REQUIRED", "%s without a fence: %v, want the reason FENCE_REQUIRED", w.name, err)
			continue
		}
		expect(t, err == nil || w.mayFail(err), "%s without a fence: %v, want it taken, as %s may do it", w.name, err, a)
	}
}

func holderMay(t T, e *Env) {
	z := e.prepare(t, e.Process, "holder")
	for _, w := range z.writes() {
		if _, known := tape.Authorities()[w.name]; !known || !w.takesFence() {
			continue
		}
		if w.method == "CompactRun" || w.name == "EndRun(CANCELLED)" {
			continue // the grant ended with the run
		}
		f := fenceOf(z.grant)
		w.setFence(f)
		err := e.invoke(t.Context(), w)
		expect(t, err == nil || w.mayFail(err), "%s with the current fence: %v", w.name, err)
		if w.method == "AwaitSignal" { // it has parked the run
			z.grant = e.Begin(t, e.Process, "holder").GetGrant()
		}
	}
}

func zombieInFlight(t T, e *Env) {
	for round := range e.Rounds(4) {
		p := e.NewProcess(t)
		begun := e.Begin(t, p, fmt.Sprint(round))
		id := begun.GetRunId()
		started, done := make(chan struct{}), make(chan error, 1)
		var taken atomic.Bool // set once the takeover has returned
		go func() {
			for i := 0; ; i++ {
				late := taken.Load()
				_, err := p.Bare.RecordDecision(t.Context(), &tapepb.RecordDecisionRequest{RunId: id, DecisionIndex: int64(i), Fence: fenceOf(begun.GetGrant())})
				if err != nil || late { // a server that lets zombies write would never refuse one
					done <- err
					return
				}
				if i == 2 {
					close(started)
				}
			}
		}()
		select {
		case <-started:
		case err := <-done:
			t.Fatalf("the driver is refused before the takeover: %v", err)
		}
		req := e.request(fmt.Sprint(round))
		req.LeaseOwner = "host:2"
		r, _ := e.NewProcess(t).Client.BeginRun(t.Context(), req)
		taken.Store(true)
		err := <-done
		expect(t, isRefusal("RecordDecision", err), "the zombie ends with %v, want the reason FENCED", err)
		last := e.run(t, id).GetSeqCursor() // a takeover journals nothing
		expect(t, last == r.GetNextSeq(), "the zombie has journaled after the takeover: its reply has the last seq %d, and seq_cursor is %d", r.GetNextSeq(), last)
	}
}

func heartbeatIsNoTakeover(t T, e *Env) {
	begun := e.Begin(t, e.Process, "i")
	id := begun.GetRunId()
	before := e.run(t, id).GetLeaseExpiresAtMs()
	r, err := e.NewProcess(t).Bare.ResumeRun(t.Context(), &tapepb.ResumeRunRequest{RunId: id, LeaseOwner: "host:1", LeaseTtlMs: 1_200_000})
	require(t, err == nil, "ResumeRun: %v", err)
	expect(t, r.GetGrant() == nil && e.run(t, id).GetLeaseExpiresAtMs() > before, "the heartbeat is answered %v, want a later expiry and no grant", r)
	_, err = e.Bare.RecordDecision(t.Context(), &tapepb.RecordDecisionRequest{RunId: id, Fence: fenceOf(begun.GetGrant())})
	expect(t, err == nil, "after the heartbeat the driver is refused: %v", err)
	e.decide(t, id, 1)
	r, err = e.Bare.ResumeRun(t.Context(), &tapepb.ResumeRunRequest{RunId: id, LeaseOwner: "host:1", Fence: fenceOf(begun.GetGrant())})
	expect(t, err == nil && r.GetGrant().GetToken() == begun.GetGrant().GetToken(), "the heartbeat with the fence is answered %v, %v; want the same token", r, err)
}

func waitingTakesNothing(t T, e *Env) {
	begun := e.Begin(t, e.Process, "i")
	id, other := begun.GetRunId(), e.NewProcess(t)
	req := e.request("i")
	req.LeaseOwner, req.WaitForLease = "host:2", true
	_, byBegin := other.Bare.BeginRun(t.Context(), req)
	_, byResume := other.Bare.ResumeRun(t.Context(), &tapepb.ResumeRunRequest{RunId: id, LeaseOwner: "host:2", WaitForLease: true})
	before := e.run(t, id).GetLeaseExpiresAtMs()
	_, byName := other.Bare.ResumeRun(t.Context(), &tapepb.ResumeRunRequest{RunId: id, LeaseOwner: "host:1", LeaseTtlMs: 1_200_000, WaitForLease: true})
	after := e.run(t, id).GetLeaseExpiresAtMs()
	expect(t, before == after, "ResumeRun that waits has moved the lease's end from %d to %d", before, after)
	for _, err := range []error{byBegin, byResume, byName} {
		expect(t, status.Code(err) == codes.Aborted && reason(err) == "LEASE_HELD", "a request that waits for a live lease: %v, want ABORTED with LEASE_HELD", err)
		for _, d := range status.Convert(err).Details() {
			if info, ok := d.(*errdetails.ErrorInfo); ok {
				m := info.GetMetadata()
				expect(t, m["holder"] == "host:1" && m["remaining_ms"] != "", "the details are %v, want the holder and remaining_ms", m)
			}
		}
	}
	_, err := e.Bare.RecordDecision(t.Context(), &tapepb.RecordDecisionRequest{RunId: id, Fence: fenceOf(begun.GetGrant())})
	expect(t, err == nil, "after the requests the driver is refused: %v", err)
	_, _ = e.Client.EndRun(t.Context(), &tapepb.EndRunRequest{RunId: id, Status: runFailed})
	r, err := other.Bare.BeginRun(t.Context(), req)
	expect(t, err == nil && r.GetStatus() == running, "after the end of the lease the request is answered %v, %v", r, err)
}
