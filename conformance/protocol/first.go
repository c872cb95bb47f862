package protocol

import (
	"fmt"

	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

func firstCases() []Case {
	return []Case{
		{Group: "T2", Name: "first-decision-wins", Run: firstDecisionWins,
			Doc: "Of several drivers' threads that record one decision, all are answered the one that is stored, and it is journaled once."},
	}
}

// contenders is how many calls a case makes at the same time.
const contenders = 16

func firstDecisionWins(t T, e *Env) {
	id := e.begin(t)
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
		stored, _ := e.Client.GetDecision(t.Context(), &tapepb.GetDecisionRequest{RunId: id, DecisionIndex: int64(round)})
		for i, a := range answers {
			if a.GetResponseJson() != stored.GetDecision().GetResponseJson() || a.GetSeq() != stored.GetDecision().GetSeq() {
				t.Fatalf("round %d: caller %d is answered %v, stored is %v", round, i, a, stored)
			}
		}
		n := 0
		for _, entry := range e.journal(t, id, 1) {
			if entry.GetKind() == "decision" && payload(t, entry)["decision_index"] == float64(round) {
				n++
			}
		}
		expect(t, n == 1, "round %d: the decision has %d journal entries", round, n)
	}
}
