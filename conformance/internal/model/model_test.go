package model

import (
	"slices"
	"strings"
	"testing"

	"github.com/anishathalye/porcupine"
	"github.com/tapestore/tapestore/conformance/harness"
	"github.com/tapestore/tapestore/runstore"
)

// TestModelOfLateCopies checks that the model accepts a late copy of a request after a later grant
// only if it is refused.
func TestModelOfLateCopies(t *testing.T) {
	t.Parallel()
	acquired := func(grant runstore.GrantID, token runstore.Token, kind error, call int64) porcupine.Operation {
		return porcupine.Operation{
			Input: Input{Kind: Preempt, Run: "run", Grant: grant}, Call: call,
			Output: Output{Kind: kind, Token: token}, Return: call + 1,
		}
	}
	before := []porcupine.Operation{acquired("first", 1, nil, 1), acquired("second", 2, nil, 3)}
	refused := append(slices.Clone(before), acquired("first", 0, runstore.ErrFenced, 5))
	if err := Judge(refused, harness.CaseTimeout); err != nil {
		t.Errorf("a late copy that is refused: %v", err)
	}
	granted := append(slices.Clone(before), acquired("first", 3, nil, 5))
	if err := Judge(granted, harness.CaseTimeout); err == nil {
		t.Error("a late copy that is granted a lease passes the checker")
	}
}

// TestJudgeOutOfTime checks that a history which the checker had no time for does not pass.
func TestJudgeOutOfTime(t *testing.T) {
	t.Parallel()
	// Many concurrent writes of unknown outcome, and a read that no order of them explains.
	var history []porcupine.Operation
	for i := range 24 {
		name := string(rune('a' + i))
		history = append(history, porcupine.Operation{
			ClientId: i, Input: Input{Kind: Commit, Run: "run", Batch: name, At: -1, Key: i % 2},
			Call: 1, Output: Output{Kind: runstore.ErrUnknownOutcome}, Return: OpenEnd,
		})
	}
	history = append(history, porcupine.Operation{
		ClientId: 24, Input: Input{Kind: Journal, Run: "run"}, Call: 2, Output: Output{Found: "never;"}, Return: 3,
	})
	err := Judge(history, 1)
	if err == nil || !strings.HasPrefix(err.Error(), "checker ran out of time") {
		t.Errorf("got verdict %v, want that the checker ran out of time", err)
	}
}
