package protocol

import (
	"fmt"

	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

func firstCases() []Case {
	return []Case{
		{Group: "T2", Name: "first-decision-wins", Run: firstDecisionWins,
			Doc: "All concurrent calls that record one decision return the stored decision, which is journaled once."},
		{Group: "T2", Name: "first-effect-wins", Run: firstEffectWins,
			Doc: "All concurrent calls that begin one effect return the same effect, which is journaled once."},
		{Group: "T2", Name: "first-outcome-wins", Run: firstOutcomeWins,
			Doc: "All concurrent calls that complete one effect return the stored outcome, which is journaled once."},
		{Group: "T2", Name: "second-outcome-changes-nothing", Run: secondOutcome,
			Doc: "A second outcome changes nothing, also from another process and by reconciliation."},
		{Group: "T2", Name: "one-run-begins", Run: oneRunBegins,
			Doc: "When several processes begin one run, exactly one finds it new, and all get the same run in reply."},
	}
}

// contenders returns how many concurrent calls a case makes.
func (e *Env) contenders() int { return e.Count(16, "concurrent calls") }

// entries counts the journal entries of a run with the given kind whose payload satisfies want.
func (p *Process) entries(t T, run, kind string, want func(p map[string]any) bool) (n int) {
	t.Helper()
	for _, entry := range p.journal(t, run, 0) {
		if entry.GetKind() == kind && want(payload(t, entry)) {
			n++
		}
	}
	return n
}

func firstDecisionWins(t T, e *Env) {
	id, contenders := e.begin(t), e.contenders()
	for round := range e.Rounds(4) {
		answers := make([]*tapepb.DecisionRecord, contenders)
		together(contenders, func(i int) {
			r, err := e.Try.RecordDecision(t.Context(), &tapepb.RecordDecisionRequest{
				RunId: id, DecisionIndex: int64(round), ResponseJson: fmt.Sprint(i),
			})
			if err != nil {
				t.Errorf("RecordDecision: %v", err)
			}
			answers[i] = r
		})
		r, _ := e.Client.GetDecision(t.Context(), &tapepb.GetDecisionRequest{RunId: id, DecisionIndex: int64(round)})
		stored := r.GetDecision()
		for i, a := range answers {
			require(t, a.GetResponseJson() == stored.GetResponseJson() && a.GetSeq() == stored.GetSeq(), "caller %d is answered %v, stored is %v", i, a, stored)
		}
		n := e.entries(t, id, "decision", func(p map[string]any) bool { return p["decision_index"] == float64(round) })
		expect(t, n == 1, "round %d: the decision has %d journal entries", round, n)
	}
}

func firstEffectWins(t T, e *Env) {
	id, contenders := e.begin(t), e.contenders()
	for round := range e.Rounds(4) {
		key := fmt.Sprint(round)
		answers := make([]*tapepb.BeginEffectResponse, contenders)
		together(contenders, func(i int) {
			r, err := e.Try.BeginEffect(t.Context(), &tapepb.BeginEffectRequest{RunId: id, CustomKey: key, RequestJson: fmt.Sprint(i)})
			if err != nil {
				t.Errorf("BeginEffect: %v", err)
			}
			answers[i] = r
		})
		stored := e.effect(t, id, key)
		for i, a := range answers {
			require(t, a.GetIdempotencyKey() == key && a.GetSeq() == stored.GetSeq() && a.GetStatus() == pending, "caller %d is answered %v, stored is %v", i, a, stored)
		}
		n := e.entries(t, id, "effect", func(p map[string]any) bool { return p["idempotency_key"] == key })
		expect(t, n == 1, "round %d: the effect has %d journal entries", round, n)
	}
}

func firstOutcomeWins(t T, e *Env) {
	id, contenders := e.begin(t), e.contenders()
	for round := range e.Rounds(4) {
		key := fmt.Sprint(round)
		e.beginEffect(t, &tapepb.BeginEffectRequest{RunId: id, CustomKey: key})
		answers := make([]*tapepb.EffectRecord, contenders)
		together(contenders, func(i int) {
			outcome := confirmed
			if i%2 == 1 {
				outcome = failed
			}
			r, err := e.Try.CompleteEffect(t.Context(), &tapepb.CompleteEffectRequest{RunId: id, IdempotencyKey: key, Status: outcome, ResponseJson: fmt.Sprint(i)})
			if err != nil {
				t.Errorf("CompleteEffect: %v", err)
			}
			answers[i] = r
		})
		stored := e.effect(t, id, key)
		for i, a := range answers {
			require(t, a.GetStatus() == stored.GetStatus() && a.GetResponseJson() == stored.GetResponseJson(), "caller %d is answered %v, stored is %v", i, a, stored)
		}
		n := e.entries(t, id, "effect", func(p map[string]any) bool { return p["idempotency_key"] == key && p["status"] != "pending" })
		expect(t, n == 1, "round %d: the outcome has %d journal entries", round, n)
	}
}

func secondOutcome(t T, e *Env) {
	id := e.begin(t)
	e.post(t, id, "K", idempotent)
	e.complete(t, id, "K", confirmed, "1")
	before := e.effect(t, id, "K")
	other := e.NewProcess(t) // dispatchers complete an OUTBOX effect
	r, _ := other.Client.CompleteEffect(t.Context(), &tapepb.CompleteEffectRequest{RunId: id, IdempotencyKey: "K", Status: failed, ResponseJson: "2"})
	expect(t, r.GetStatus() == confirmed && r.GetResponseJson() == "1", "the second outcome is answered %v", r)
	r, _ = other.Client.ReconcileEffect(t.Context(), &tapepb.ReconcileEffectRequest{RunId: id, IdempotencyKey: "K", ResolvedStatus: failed, ResponseJson: "3"})
	expect(t, r.GetStatus() == confirmed && r.GetResponseJson() == "1", "the reconciliation is answered %v", r)
	got := e.effect(t, id, "K")
	expect(t, got.GetStatus() == confirmed && got.GetResponseJson() == before.GetResponseJson(), "the effect is %v, want %v", got, before)
}

func oneRunBegins(t T, e *Env) {
	processes := make([]*Process, 8)
	for i := range processes {
		processes[i] = e.NewProcess(t)
	}
	for round := range e.Rounds(4) {
		answers := make([]*tapepb.BeginRunResponse, len(processes))
		together(len(processes), func(i int) {
			req := e.request(fmt.Sprint(round))
			req.LeaseOwner = claimer(i)
			r, err := processes[i].Try.BeginRun(t.Context(), req)
			if err != nil {
				t.Errorf("BeginRun: %v", err)
			}
			answers[i] = r
		})
		fresh := 0
		for _, a := range answers {
			expect(t, a.GetRunId() == answers[0].GetRunId() && a.GetStatus() == running, "one caller is answered %v, another %v", a, answers[0])
			if !a.GetResumed() {
				fresh++
			}
		}
		expect(t, fresh == 1, "%d of %d callers found the run new", fresh, len(answers))
		n := e.entries(t, answers[0].GetRunId(), "run", func(map[string]any) bool { return true })
		expect(t, n == 1, "the begin has %d journal entries", n)
	}
}
