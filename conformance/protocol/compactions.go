package protocol

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

func cutCases() []Case {
	return []Case{
		{Group: "T10", Name: "cut-compaction-is-finished", Run: cutCompaction,
			Doc: "A compaction whose caller cancelled it is finished by the next caller: every body is blank, and one entry counts them all."},
		{Group: "T10", Name: "one-compaction", Run: oneCompaction,
			Doc: "Concurrent compactions of one run write exactly one journal entry, and its counts are right."},
		{Group: "T10", Name: "settled-check-and-blanking-are-one", Run: compactAgainstUnknown,
			Doc: "When an obligation is registered while a run is compacted, the compaction is refused or commits first; no body of an unsettled run is blank."},
	}
}

// large is a number of rows greater than a server blanks in one commit: 150.
const large = 150

// endedLarge begins a run, gives it n decisions and n effects, and ends it.
func (e *Env) endedLarge(t T, invocation string, n int) string {
	t.Helper()
	id := e.Begin(t, e.Process, invocation).GetRunId()
	const side = 16 // concurrent calls
	together(side, func(part int) {
		for i := part; i < n; i += side {
			key := fmt.Sprint(i)
			_, err := e.Try.RecordDecision(t.Context(), &tapepb.RecordDecisionRequest{RunId: id, DecisionIndex: int64(i), ResponseJson: "body"})
			if err == nil {
				_, err = e.Try.BeginEffect(t.Context(), &tapepb.BeginEffectRequest{RunId: id, CustomKey: key, RequestJson: "body"})
			}
			if err == nil {
				_, err = e.Try.CompleteEffect(t.Context(), &tapepb.CompleteEffectRequest{RunId: id, IdempotencyKey: key, Status: confirmed, ResponseJson: "body"})
			}
			if err != nil {
				t.Errorf("filling a run: %v", err)
				return
			}
		}
	})
	e.end(t, id, terminal)
	return id
}

// expectBlank checks that a run with n decisions and effects was compacted exactly once.
func (e *Env) expectBlank(t T, run string, n int) {
	t.Helper()
	for i := range n {
		d, _ := e.Client.GetDecision(t.Context(), &tapepb.GetDecisionRequest{RunId: run, DecisionIndex: int64(i)})
		effect := e.effect(t, run, fmt.Sprint(i))
		require(t, d.GetDecision().GetResponseJson() == "" && effect.GetRequestJson() == "" && effect.GetResponseJson() == "", "decision %v or effect %v has a body", d, effect)
	}
	compactions := e.entries(t, run, "run", func(p map[string]any) bool { return p["compacted_at_ms"] != nil })
	counted := e.entries(t, run, "run", func(p map[string]any) bool {
		return p["decisions_zeroed"] == float64(n) && p["effects_zeroed"] == float64(n) && p["bytes_saved"] == float64(12*n)
	})
	expect(t, compactions == 1 && counted == 1, "the journal has %d compactions, %d with the right counts", compactions, counted)
}

func cutCompaction(t T, e *Env) {
	n := e.Count(large, "rows")
	const most = 20 * time.Millisecond // about the time of a compaction of this size
	for round := range e.Rounds(2) {
		id := e.endedLarge(t, fmt.Sprint(round), n)
		for range 3 {
			ctx, cancel := context.WithTimeout(t.Context(), rand.N(most))
			_, _ = e.Try.CompactRun(ctx, &tapepb.CompactRunRequest{RunId: id}) // may be cancelled midway
			cancel()
		}
		e.compact(t, id)
		expect(t, e.compact(t, id).GetAlreadyCompacted(), "the compaction is not finished")
		e.expectBlank(t, id, n)
	}
}

func oneCompaction(t T, e *Env) {
	const n = 5
	for round := range e.Rounds(4) {
		id := e.endedLarge(t, fmt.Sprint(round), n)
		together(6, func(int) {
			r, err := e.Try.CompactRun(t.Context(), &tapepb.CompactRunRequest{RunId: id})
			if err != nil || !r.GetAlreadyCompacted() && (r.GetDecisionsZeroed() != n || r.GetEffectsZeroed() != n) {
				t.Errorf("CompactRun = %v, %v; want the counts of the whole run", r, err)
			}
		})
		e.expectBlank(t, id, n)
	}
}

func compactAgainstUnknown(t T, e *Env) {
	for round := range e.Rounds(8) {
		id := e.Begin(t, e.Process, fmt.Sprint(round)).GetRunId()
		e.decide(t, id, 0)
		e.post(t, id, "K", idempotent)
		e.end(t, id, terminal)
		var compacted, observed error
		together(2, func(i int) {
			if i == 0 {
				_, compacted = e.Try.CompactRun(t.Context(), &tapepb.CompactRunRequest{RunId: id})
			} else {
				_, observed = e.Try.RecordExternalObservation(t.Context(), &tapepb.RecordExternalObservationRequest{
					RunId: id, IdempotencyKey: "K", ResponseJson: "late", Resolution: tapepb.EffectResolution_EFFECT_RESOLUTION_DUPLICATE, CompensateOnDuplicateKind: "undo",
				})
			}
		})
		require(t, observed == nil, "RecordExternalObservation: %v", observed)
		d, _ := e.Client.GetDecision(t.Context(), &tapepb.GetDecisionRequest{RunId: id})
		blank := d.GetDecision().GetResponseJson() == ""
		if compacted != nil {
			expectStatus(t, "CompactRun", compacted, status.Code(compacted), "not settled")
			expect(t, status.Code(compacted) != codes.OK && !blank, "a compaction that was refused has blanked %v", d)
			continue
		}
		expect(t, blank, "a compaction that was done has left %v", d)
		// The compaction committed before the outcome, so the outcome keeps its body.
		expect(t, e.effect(t, id, "K").GetResponseJson() == "late", "the compaction has blanked an outcome that came after it: %v", e.effect(t, id, "K"))
	}
}
