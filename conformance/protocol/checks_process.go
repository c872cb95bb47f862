package protocol

import (
	"context"
	"io"
	"net/http"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

func processCases() []Case {
	return []Case{
		{Group: "process", Check: 83, Name: "second-server-starts", Needs: []Need{NeedSecond}, Run: secondServer,
			Doc: "A server with the store memory starts although the default address of probes is taken, and serves."},
		{Group: "process", Check: 84, Name: "probes", Needs: []Need{NeedProbes}, Run: probes,
			Doc: "/healthz and /readyz answer 200 with ok, any other path 404."},
		{Group: "process", Check: 85, Name: "restart-keeps-everything", Needs: []Need{NeedPrivate}, Run: restart,
			Doc: "After a server has ended and started again, runs, effects, obligations, gates, sessions and the journal are as they were, with the global numbers that its entries had."},
	}
}

func secondServer(t T, e *Env) {
	p := e.process(t, e.target.Second(t))
	r, err := p.Try.BeginRun(t.Context(), e.request("i"), grpc.WaitForReady(true))
	expect(t, err == nil && !r.GetResumed(), "BeginRun on the second server = %v, %v", r, err)
	_, err = p.Try.GetRun(t.Context(), &tapepb.GetRunRequest{RunId: r.GetRunId()})
	expect(t, err == nil, "GetRun on the second server: %v", err)
}

func probes(t T, e *Env) {
	for _, c := range []struct {
		path string
		code int
		body string
	}{{"/healthz", 200, "ok"}, {"/", 200, "ok"}, {"/readyz", 200, "ok"}, {"/nope", 404, "not found"}} {
		ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(e.target.Probes, "/")+c.path, nil)
		if err != nil {
			t.Fatalf("%s: %v", e.target.Probes, err)
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Errorf("%s: %v", c.path, err)
			continue
		}
		body, err := io.ReadAll(res.Body)
		_ = res.Body.Close()
		expect(t, err == nil && res.StatusCode == c.code && strings.TrimSpace(string(body)) == c.body, "%s: %d %q, %v; want %d %q", c.path, res.StatusCode, body, err, c.code, c.body)
	}
}

func restart(t T, e *Env) {
	address, restart := e.target.Private(t)
	p := e.process(t, address)
	id := e.Begin(t, p, "i").GetRunId()
	p.decide(t, id, 0)
	p.beginEffect(t, &tapepb.BeginEffectRequest{RunId: id, CustomKey: "K", RequestJson: `{"q":1}`, Scope: "pay"})
	p.complete(t, id, "K", confirmed, `{"a":1}`)
	p.owe(t, id, "K", 0)
	p.signal(t, id, "g", "1")
	_, _ = p.Client.SetBudget(t.Context(), &tapepb.SetBudgetRequest{RunId: id, UsdCap: 1})
	_, _ = p.Client.AppendEvent(t.Context(), e.appendRequest("s", "e1", `{"k":1}`))

	before := snapshot(t, e, p, id)
	restart()
	after := snapshot(t, e, e.process(t, address), id)
	expect(t, len(before) == len(after), "%d answers before the restart, %d after it", len(before), len(after))
	for i := range min(len(before), len(after)) {
		// An entry has no number until a reader of the feed has reached it.
		if was, ok := before[i].(*tapepb.JournalEntry); ok && was.GetGlobalSeq() == 0 {
			after[i].(*tapepb.JournalEntry).GlobalSeq = 0
		}
		expect(t, proto.Equal(before[i], after[i]), "before the restart %v, after it %v", before[i], after[i])
	}
	q := e.process(t, address)
	again := e.Begin(t, q, "i")
	expect(t, again.GetResumed() && again.GetRunId() == id, "BeginRun after the restart = %v, want run %s", again, id)
	expect(t, q.await(t, id, "g").GetDelivered(), "the signal is gone")
}

// snapshot returns a server's replies about a run and its session.
func snapshot(t T, e *Env, p *Process, id string) (all []proto.Message) {
	t.Helper()
	ctx := t.Context()
	decision, _ := p.Client.GetDecision(ctx, &tapepb.GetDecisionRequest{RunId: id})
	obligations, _ := p.Client.ListObligations(ctx, &tapepb.ListObligationsRequest{RunId: id})
	budget, _ := p.Client.AdmitBudget(ctx, &tapepb.AdmitBudgetRequest{RunId: id})
	session, _ := p.Client.GetSession(ctx, &tapepb.GetSessionRequest{AppName: e.Name("app"), UserId: "ana", SessionId: "s"})
	all = append(all, p.run(t, id), p.effect(t, id, "K"), decision, obligations, budget, session)
	for _, entry := range p.journal(t, id, 0) {
		all = append(all, entry)
	}
	return all
}
