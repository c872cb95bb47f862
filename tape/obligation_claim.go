package tape

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/tapestore/tapestore/internal/delivery"
	"github.com/tapestore/tapestore/runstore"
)

// ObligationClaimRequest is the input of ClaimObligation.
type ObligationClaimRequest struct {
	Run runstore.RunID
	Seq runstore.Seq
	// Claimer is the caller's name. Callers that lose see it.
	Claimer string
	// TTL is how long the claim lasts: from 1 ms to 24 h; 0 or less means 60 s.
	TTL   time.Duration
	Fence runstore.Fence
}

// ObligationClaim is the result of ClaimObligation.
type ObligationClaim struct {
	// Acquired reports that the request won. Obligation.Claims is then the claim's generation.
	Acquired bool
	// Found reports that the obligation exists.
	Found bool
	// Obligation is the row after the request. If the request lost, it names the winner.
	Obligation Obligation
}

// ClaimObligation claims an obligation that is PENDING and due, or COMMITTED under a claim that has
// expired on the store clock. Exactly one of several concurrent callers wins. Three round trips,
// and one more if the store clock has to be read.
//
// Errors: runstore.ErrFenced for a stale fence, even if there was nothing to write.
func (t *Tape) ClaimObligation(ctx context.Context, req ObligationClaimRequest) (ObligationClaim, error) {
	if err := t.admit("ClaimObligation", req.Run, req.Fence); err != nil {
		return ObligationClaim{}, err
	}
	ttl, err := ClaimRequest{Claimer: req.Claimer, TTL: req.TTL}.check()
	if err != nil {
		return ObligationClaim{}, err
	}
	acquired := false
	o, err := t.changeObligation(ctx, req.Run, req.Seq, req.Fence, func(o storedObligation) (storedObligation, *step, error) {
		next, result, err := t.claim(ctx, o.delivery(), o.Time, req.Claimer, ttl)
		if acquired = o.apply(next, result); !acquired {
			return o, nil, err
		}
		return o, o.note("claimed", map[string]any{"claimer": req.Claimer}), nil
	})
	if errors.Is(err, ErrNoSuchObligation) {
		return ObligationClaim{}, t.confirm(ctx, req.Fence)
	}
	if err != nil {
		return ObligationClaim{}, err
	}
	return ObligationClaim{Acquired: acquired, Found: true, Obligation: o}, nil
}

// ObligationAttempt reports an attempt that failed.
type ObligationAttempt struct {
	Run   runstore.RunID
	Seq   runstore.Seq
	Error string
	// Next is the time of the next attempt; zero gives up.
	Next time.Time
	// Generation is the generation of the claim under which the attempt was made. 0 or less is not
	// checked.
	Generation int64
	Fence      runstore.Fence
}

// RecordObligationAttempt counts a failed attempt and ends the claim. The obligation becomes
// PENDING until the next attempt, or STUCK if no attempt is left or wanted. A STUCK or COMPENSATED
// obligation is returned unchanged. So is one whose last claim is not the presented one or has ended:
// a repeated report under a generation is counted once. Three round trips.
//
// Errors: ErrNoSuchObligation; runstore.ErrFenced for a stale fence, even if there was nothing to
// write.
func (t *Tape) RecordObligationAttempt(ctx context.Context, req ObligationAttempt) (Obligation, error) {
	if err := t.admit("RecordObligationAttempt", req.Run, req.Fence); err != nil {
		return Obligation{}, err
	}
	if err := checkText(field{"error", req.Error}); err != nil {
		return Obligation{}, err
	}
	failure := clip(req.Error, MaxAttemptError)
	if !req.Next.IsZero() {
		if err := checkTime("next_attempt_at_ms", req.Next); err != nil {
			return Obligation{}, err
		}
	}
	return t.changeObligation(ctx, req.Run, req.Seq, req.Fence, func(o storedObligation) (storedObligation, *step, error) {
		rules := openRules
		rules.MaxAttempts = int(o.MaxAttempts)
		if !o.apply(rules.Fail(o.delivery(), generation(req.Generation), whenAt(req.Next))) {
			return o, nil, nil
		}
		o.LastError = failure
		transition, nextMS := "retry-scheduled", req.Next.UnixMilli()
		if o.Status == ObligationStuck {
			transition, nextMS = "stuck", 0
		}
		return o, o.note(transition, map[string]any{
			"attempts": o.Attempts, "error": failure, "next_attempt_at_ms": nextMS,
		}), nil
	})
}

// ObligationResult reports the result of an obligation.
type ObligationResult struct {
	Run runstore.RunID
	Seq runstore.Seq
	// Status is ObligationStuck or, for any other value, ObligationCompensated.
	Status ObligationStatus
	Result string
	// Generation is the generation of the claim under which the caller worked. 0 or less is not
	// checked.
	Generation int64
	Fence      runstore.Fence
}

// ResolveObligation makes an obligation COMPENSATED or STUCK, whether it is claimed or not. A STUCK
// obligation can still become COMPENSATED, so that a person can record a compensation by hand.
// Otherwise a STUCK or COMPENSATED obligation is returned unchanged, and so is one whose last claim is
// not the presented one. Three round trips.
//
// Errors: ErrNoSuchObligation; runstore.ErrFenced for a stale fence, even if there was nothing to
// write.
func (t *Tape) ResolveObligation(ctx context.Context, req ObligationResult) (Obligation, error) {
	if err := t.admit("ResolveObligation", req.Run, req.Fence); err != nil {
		return Obligation{}, err
	}
	result := field{"result_json", req.Result}
	if err := checkText(result); err != nil {
		return Obligation{}, err
	}
	if err := checkLength(result.name, result.text, MaxResult); err != nil {
		return Obligation{}, err
	}
	if req.Status != ObligationStuck {
		req.Status = ObligationCompensated
	}
	return t.changeObligation(ctx, req.Run, req.Seq, req.Fence, func(o storedObligation) (storedObligation, *step, error) {
		from := o.delivery()
		if o.Status == ObligationStuck && req.Status == ObligationCompensated {
			from.Phase = delivery.Waiting // a report is admitted as after a failed attempt
		}
		if !o.apply(openRules.Complete(from, generation(req.Generation))) {
			return o, nil, nil
		}
		o.Status, o.Result = req.Status, req.Result
		return o, o.note("resolved", map[string]any{}), nil
	})
}

// note returns a step with a journal entry about a change of the obligation.
func (o storedObligation) note(transition string, entry map[string]any) *step {
	entry["obligation_seq"], entry["effect_key"], entry["kind"] = o.Seq, o.EffectKey, o.Kind
	entry["status"], entry["transition"] = o.Status.word(), transition
	return note(kindObligation, entry)
}

// changeObligation applies a transition to the obligation of a seq.
//
// Errors: ErrNoSuchObligation.
func (t *Tape) changeObligation(ctx context.Context, run runstore.RunID, seq runstore.Seq, f runstore.Fence,
	decide func(storedObligation) (storedObligation, *step, error)) (Obligation, error) {
	key, err := t.obligationAt(ctx, run, seq)
	if err != nil {
		return Obligation{}, err
	}
	o, err := obligations.change(ctx, t, run, f, key, func(o storedObligation, found bool) (storedObligation, *step, error) {
		if !found || o.Seq != seq {
			return o, nil, ErrNoSuchObligation
		}
		return decide(o)
	})
	return o.Obligation, err
}

// obligationAt returns the key of the obligation that a run's journal registers at seq. One read.
//
// Errors: ErrNoSuchObligation.
func (t *Tape) obligationAt(ctx context.Context, run runstore.RunID, seq runstore.Seq) (runstore.RecordKey, error) {
	if seq <= 0 {
		return "", ErrNoSuchObligation
	}
	events, err := t.store.ReadJournal(ctx, run, seq, 1)
	if errors.Is(err, runstore.ErrNotFound) {
		return "", ErrNoSuchObligation
	}
	if err != nil {
		return "", err
	}
	var entry struct {
		EffectKey  string `json:"effect_key"`
		Kind       string `json:"kind"`
		Transition string `json:"transition"`
	}
	if len(events) == 0 || events[0].Seq != seq || events[0].Kind != kindObligation ||
		json.Unmarshal(events[0].Data, &entry) != nil || entry.Transition != "registered" {
		return "", ErrNoSuchObligation
	}
	return obligationKey(entry.EffectKey, entry.Kind), nil
}
