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

func atomicCases() []Case {
	return []Case{
		{Group: "T1", Name: "rows-counter-and-journal-agree", Run: rowsAndJournalAgree,
			Doc: "After concurrent writes to one run each row has the seq of the entry that begins it, seqs are unique, and the counter is the last seq."},
		{Group: "T1", Name: "given-up-calls-are-whole-or-absent", Run: givenUpCalls,
			Doc: "A write whose caller cancelled it is applied with its journal entry or not at all, and repeating the write completes it."},
	}
}

// writeLoad makes n calls of each kind concurrently and retries each until it succeeds. newContext
// returns the context of one attempt, which may cancel the call midway.
func (e *Env) writeLoad(t T, run string, n int, newContext func() (context.Context, context.CancelFunc)) {
	t.Helper()
	call := func(f func(ctx context.Context) error) {
		for {
			ctx, cancel := newContext()
			err := f(ctx)
			// The server may see the deadline pass before the caller does. The outcome of a write
			// that it had sent to the store is then unknown.
			_, bounded := ctx.Deadline()
			given := ctx.Err() != nil || bounded && (status.Code(err) == codes.DeadlineExceeded || status.Code(err) == codes.Unknown)
			cancel()
			if err == nil {
				return
			}
			if !given || t.Context().Err() != nil {
				t.Errorf("a write of the load: %v", err)
				return
			}
		}
	}
	together(3*n, func(i int) {
		key := fmt.Sprint(i / 3)
		switch i % 3 {
		case 0:
			call(func(ctx context.Context) error {
				_, err := e.Try.RecordDecision(ctx, &tapepb.RecordDecisionRequest{RunId: run, DecisionIndex: int64(i / 3)})
				return err
			})
		case 1:
			call(func(ctx context.Context) error {
				_, err := e.Try.BeginEffect(ctx, &tapepb.BeginEffectRequest{RunId: run, CustomKey: key})
				return err
			})
			call(func(ctx context.Context) error {
				_, err := e.Try.CompleteEffect(ctx, &tapepb.CompleteEffectRequest{RunId: run, IdempotencyKey: key, Status: confirmed})
				return err
			})
		case 2:
			call(func(ctx context.Context) error {
				_, err := e.Try.RegisterCompensation(ctx, &tapepb.RegisterCompensationRequest{RunId: run, EffectKey: key, Kind: "undo"})
				return err
			})
		}
	})
}

// checkLoad checks the rows and the journal of a run after writeLoad with the same n.
func (e *Env) checkLoad(t T, run string, n int) {
	t.Helper()
	begun := map[string]int64{} // what each entry begins, by seq
	completed := map[string]int{}
	last := int64(0)
	for _, entry := range e.journal(t, run, 0) {
		expect(t, entry.GetSeq() == last+1, "entry %d follows entry %d", entry.GetSeq(), last)
		last = entry.GetSeq()
		p := payload(t, entry)
		what := ""
		switch {
		case entry.GetKind() == "decision":
			what = fmt.Sprintf("decision %v", p["decision_index"])
		case entry.GetKind() == "effect" && p["status"] == "pending":
			what = fmt.Sprintf("effect %v", p["idempotency_key"])
		case entry.GetKind() == "effect" && p["status"] == "confirmed":
			completed[fmt.Sprint(p["idempotency_key"])]++
		case entry.GetKind() == "obligation":
			what = fmt.Sprintf("obligation %v", p["effect_key"])
		}
		if what != "" {
			expect(t, begun[what] == 0, "%s is begun by entry %d and by entry %d", what, begun[what], entry.GetSeq())
			begun[what] = entry.GetSeq()
		}
	}
	expect(t, last == int64(1+4*n), "the journal has %d entries, want %d", last, 1+4*n)
	owed, _ := e.Client.ListObligations(t.Context(), &tapepb.ListObligationsRequest{RunId: run})
	expect(t, len(owed.GetObligations()) == n, "there are %d obligations, want %d", len(owed.GetObligations()), n)
	for _, o := range owed.GetObligations() {
		expect(t, begun["obligation "+o.GetEffectKey()] == o.GetSeq(), "obligation %s has seq %d, its entry %d", o.GetEffectKey(), o.GetSeq(), begun["obligation "+o.GetEffectKey()])
	}
	for i := range n {
		key := fmt.Sprint(i)
		d, _ := e.Client.GetDecision(t.Context(), &tapepb.GetDecisionRequest{RunId: run, DecisionIndex: int64(i)})
		expect(t, d.GetFound() && d.GetDecision().GetSeq() == begun["decision "+key], "decision %s has seq %d, its entry %d", key, d.GetDecision().GetSeq(), begun["decision "+key])
		effect := e.effect(t, run, key)
		expect(t, effect.GetStatus() == confirmed && effect.GetSeq() == begun["effect "+key], "effect %s is %v with seq %d, its entry has %d", key, effect.GetStatus(), effect.GetSeq(), begun["effect "+key])
		expect(t, completed[key] == 1, "the outcome of effect %s has %d entries", key, completed[key])
	}
}

func rowsAndJournalAgree(t T, e *Env) {
	id, n := e.begin(t), e.Rounds(12)
	e.writeLoad(t, id, n, func() (context.Context, context.CancelFunc) { return context.WithCancel(t.Context()) })
	e.checkLoad(t, id, n)
}

func givenUpCalls(t T, e *Env) {
	id, n := e.begin(t), e.Rounds(12)
	const most = 10 * time.Millisecond // about the time of a call, so that some attempts are cancelled and some are not
	e.writeLoad(t, id, n, func() (context.Context, context.CancelFunc) {
		if rand.IntN(4) == 0 { // every fourth attempt on average, so that each call ends
			return context.WithCancel(t.Context())
		}
		return context.WithTimeout(t.Context(), rand.N(most))
	})
	e.checkLoad(t, id, n)
}
