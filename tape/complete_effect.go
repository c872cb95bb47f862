package tape

import (
	"context"

	"github.com/tapestore/tapestore/internal/delivery"
	"github.com/tapestore/tapestore/runstore"
)

// OutcomeRequest reports the outcome of an effect.
type OutcomeRequest struct {
	Run runstore.RunID
	// Key is the effect's idempotency key.
	Key string
	// Status is the effect's status from now on; any number is kept.
	Status EffectStatus
	// Response and Error replace the stored ones. Together they have up to [MaxOutcome] bytes,
	// however large the effect's request is.
	Response, Error string
	// Claim is the generation of the claim under which the dispatcher acted; 0 for none.
	Claim int64
	Fence runstore.Fence
}

// CompleteEffect records the outcome of a PENDING effect and ends its claim. An effect in any other
// state is returned unchanged: the first outcome wins. So is an OUTBOX effect that was claimed
// again since the request's claim. If fences are required, an INLINE effect's outcome needs one; an
// outcome reported by a dispatcher does not. Two round trips: the record is read before it is
// written.
//
// Errors: ErrNotBegun; ErrFenceRequired; runstore.ErrFenced for a stale fence, even if there was
// nothing to write.
func (t *Tape) CompleteEffect(ctx context.Context, req OutcomeRequest) (Effect, error) {
	return t.settle(ctx, "CompleteEffect(OUTBOX)", req, func(e storedEffect, found bool) (storedEffect, *step, error) {
		if !found {
			return e, nil, ErrNotBegun
		}
		claim := generation(req.Claim)
		if e.Mode != Outbox {
			if err := t.require("CompleteEffect", req.Fence); err != nil {
				return e, nil, err
			}
			claim = generation(0) // the run's driver has no claim
		}
		if _, result := openRules.Complete(e.delivery(), claim); result != delivery.Applied {
			return e, nil, nil
		}
		return e.settled(req, map[string]any{"status": outcomeWord(req.Status)})
	})
}

// ReconcileEffect records the outcome that a reconciler found for an effect that is PENDING or
// UNKNOWN, and ends the claim of its dispatch. PENDING ends only a claim that has lapsed. An outbox effect
// that becomes PENDING and has no time of a next dispatch is due at once. An effect that is CONFIRMED or
// FAILED is returned unchanged. Two round trips, and one of the store clock if PENDING meets a claim.
//
// Errors: ErrNoSuchEffect; runstore.ErrFenced for a stale fence, even if there was nothing to
// write.
func (t *Tape) ReconcileEffect(ctx context.Context, req OutcomeRequest) (Effect, error) {
	return t.settle(ctx, "ReconcileEffect", req, func(e storedEffect, found bool) (storedEffect, *step, error) {
		if !found {
			return e, nil, ErrNoSuchEffect
		}
		if e.Status == EffectConfirmed || e.Status == EffectFailed {
			return e, nil, nil
		}
		if req.Status == EffectPending {
			claimed, err := t.claimed(ctx, e)
			if err != nil {
				return e, nil, err
			}
			if !claimed {
				e.unclaim()
			}
		}
		return e.settled(req, map[string]any{"status": "reconciled", "resolved_to": req.Status})
	})
}

func (t *Tape) settle(ctx context.Context, method string, req OutcomeRequest, decide transition[storedEffect]) (Effect, error) {
	if err := t.admit(method, req.Run, req.Fence); err != nil {
		return Effect{}, err
	}
	if err := checkOutcome(req.Response, req.Error); err != nil {
		return Effect{}, err
	}
	return t.changeEffect(ctx, req.Run, req.Key, req.Fence, decide)
}

func checkOutcome(response, failure string) error {
	fields := []field{{"response_json", response}, {"error_json", failure}}
	if err := checkText(fields...); err != nil {
		return err
	}
	return checkSize("an outcome", len(response)+len(failure), MaxOutcome, fields...)
}

// changeEffect applies a transition to an effect.
func (t *Tape) changeEffect(ctx context.Context, run runstore.RunID, key string, f runstore.Fence, decide transition[storedEffect]) (Effect, error) {
	if err := checkLength("idempotency_key", key, maxEffectKey); err != nil {
		return Effect{}, err
	}
	e, err := effects.change(ctx, t, run, f, effectKey(key), decide)
	return e.Effect, err
}

// settled returns the effect with its outcome and, unless that is PENDING, without the claim of its
// dispatch, and a step with the entry, to which it adds the effect's names.
func (e storedEffect) settled(req OutcomeRequest, entry map[string]any) (storedEffect, *step, error) {
	e.Status, e.Response, e.Error = req.Status, req.Response, req.Error
	switch {
	case e.Status != EffectPending:
		e.unclaim()
	case e.Mode == Outbox && e.next.IsZero(): // the last attempt left it UNKNOWN
		e.next = runstore.After(0)
	}
	return e, e.note(entry), nil
}

// note returns a step with a journal entry about the effect.
func (e storedEffect) note(entry map[string]any) *step {
	entry["tool"], entry["idempotency_key"] = e.Tool, e.Key
	return note(kindEffect, entry)
}

// outcomeWord returns the journal's word for an effect's new status.
func outcomeWord(s EffectStatus) string {
	switch s {
	case EffectConfirmed:
		return "confirmed"
	case EffectFailed:
		return "failed"
	case EffectUnknown:
		return "unknown"
	default:
		return "completed"
	}
}
