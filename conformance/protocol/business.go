package protocol

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

func businessCases() []Case {
	needs := []Need{NeedBusinessKeys}
	return []Case{
		{Group: "T5", Name: "one-effect-over-runs", Needs: needs, Run: oneEffectOverRuns,
			Doc: "When several runs begin an effect with the same business key concurrently, one run has the effect, and all get it in reply."},
		{Group: "T5", Name: "given-up-creators", Needs: needs, Run: givenUpCreators,
			Doc: "Creators that are cancelled midway leave at most one effect, and the next creator gets the only effect in reply."},
	}
}

// raceForKey has several processes, each with its own run, begin an effect with the same business
// key, and checks that one effect exists. newContext returns the context of each first attempt;
// each run then tries again.
func (e *Env) raceForKey(t T, key string, newContext func() (context.Context, context.CancelFunc)) {
	t.Helper()
	const n = 6
	runs, processes := make([]string, n), make([]*Process, n)
	for i := range n {
		processes[i] = e.NewProcess(t)
		runs[i] = e.Begin(t, processes[i], fmt.Sprintf("%s-%d", key, i)).GetRunId()
	}
	answers := make([]*tapepb.BeginEffectResponse, n)
	together(n, func(i int) {
		req := &tapepb.BeginEffectRequest{RunId: runs[i], ToolName: "pay", Connector: e.Name("bank"), BusinessKey: key}
		ctx, cancel := newContext()
		_, _ = processes[i].Try.BeginEffect(ctx, req) // may be cancelled; repeated below
		cancel()
		r, err := processes[i].Try.BeginEffect(t.Context(), req)
		if err != nil {
			t.Errorf("BeginEffect: %v", err)
		}
		answers[i] = r
	})
	owners := 0
	for i, a := range answers {
		expect(t, a.GetIdempotencyKey() == answers[0].GetIdempotencyKey() && a.GetSeq() == answers[0].GetSeq(), "one run is answered %v, another %v", a, answers[0])
		begun := e.entries(t, runs[i], "effect", func(map[string]any) bool { return true })
		own, _ := e.Client.GetEffect(t.Context(), &tapepb.GetEffectRequest{RunId: runs[i], IdempotencyKey: runs[i] + "/decision-0/pay/0"})
		expect(t, own.GetFound() == (begun == 1) && begun <= 1, "run %s has the effect: %t, with %d journal entries", runs[i], own.GetFound(), begun)
		if own.GetFound() {
			owners++
			expect(t, own.GetEffect().GetIdempotencyKey() == a.GetIdempotencyKey(), "the effect is %v, the answer %v", own, a)
		}
	}
	expect(t, owners == 1, "%d runs have the effect of one business key", owners)
}

func oneEffectOverRuns(t T, e *Env) {
	for round := range e.Rounds(3) {
		e.raceForKey(t, fmt.Sprint(round), func() (context.Context, context.CancelFunc) { return context.WithCancel(t.Context()) })
	}
}

func givenUpCreators(t T, e *Env) {
	const most = 5 * time.Millisecond // about the time of a call
	for round := range e.Rounds(6) {
		e.raceForKey(t, fmt.Sprint(round), func() (context.Context, context.CancelFunc) { return context.WithTimeout(t.Context(), rand.N(most)) })
	}
}
