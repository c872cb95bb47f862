package tape

import (
	"context"
	"errors"

	"github.com/tapestore/tapestore/runstore"
)

// OutcomeRequest tells what became of an effect.
type OutcomeRequest struct {
	Run runstore.RunID
	// Key is the effect's idempotency key.
	Key string
	// Status is the effect's status from now on; any number is kept.
	Status EffectStatus
	// Response and Error replace what is stored. Together they have up to
	// [MaxOutcome] bytes, however large the effect's request is.
	Response, Error string
	Fence           runstore.Fence
}

// CompleteEffect records the outcome of a PENDING effect. Any other effect is
// returned as it is: the first outcome wins. Two round trips: the record is read
// to be written again.
//
// Errors: ErrNotBegun; runstore.ErrFenced, also where nothing would have been
// written.
func (t *Tape) CompleteEffect(ctx context.Context, req OutcomeRequest) (Effect, error) {
	return t.settle(ctx, req, transition{
		missing: ErrNotBegun,
		open:    func(s EffectStatus) bool { return s == EffectPending },
		entry: func(e Effect) map[string]any {
			return map[string]any{"status": outcomeWord(req.Status)}
		},
	})
}

// ReconcileEffect records what a reconciler found out about an effect that is
// PENDING or UNKNOWN. A CONFIRMED or FAILED one is returned as it is. Two round
// trips.
//
// Errors: ErrNoSuchEffect; runstore.ErrFenced, also where nothing would have
// been written.
func (t *Tape) ReconcileEffect(ctx context.Context, req OutcomeRequest) (Effect, error) {
	return t.settle(ctx, req, transition{
		missing: ErrNoSuchEffect,
		open:    func(s EffectStatus) bool { return s != EffectConfirmed && s != EffectFailed },
		entry: func(e Effect) map[string]any {
			return map[string]any{"status": "reconciled", "resolved_to": req.Status}
		},
	})
}

// transition is a way in which an effect gets its outcome.
type transition struct {
	// missing is the error for an effect that is not there.
	missing error
	// open reports whether the effect can still get an outcome.
	open func(EffectStatus) bool
	// entry returns what the journal says, but for tool and key.
	entry func(Effect) map[string]any
}

func (t *Tape) settle(ctx context.Context, req OutcomeRequest, how transition) (Effect, error) {
	if err := t.admit(req.Run, req.Fence); err != nil {
		return Effect{}, err
	}
	fields := []field{{"response_json", req.Response}, {"error_json", req.Error}}
	if err := checkText(fields...); err != nil {
		return Effect{}, err
	}
	if err := checkSize("an outcome", len(req.Response)+len(req.Error), MaxOutcome, fields...); err != nil {
		return Effect{}, err
	}
	var lost error
	for range maxAttempts {
		e, found, err := t.readEffect(ctx, req.Run, req.Key)
		if err != nil {
			return Effect{}, err
		}
		if !found {
			return Effect{}, how.missing
		}
		if !how.open(e.Status) {
			if err := t.confirm(ctx, req.Fence); err != nil {
				return Effect{}, err
			}
			return e.Effect, nil
		}
		payload := how.entry(e.Effect)
		payload["tool"], payload["idempotency_key"] = e.Tool, e.Key
		e.Status, e.Response, e.Error = req.Status, req.Response, req.Error
		entry, value := compactJSON(payload), e.encode()
		b := guards(req.Run, req.Fence, runstore.AtVersion(effectKey(req.Key), e.version))
		b.Append(kindEffect, entry)
		b.Put(effectKey(req.Key), value, e.places()...)
		done, err := t.commit(ctx, b)
		if err == nil {
			e.Time = done.Time
			return e.Effect, nil
		}
		if !errors.Is(err, runstore.ErrConflict) {
			return Effect{}, err
		}
		lost = err
	}
	return Effect{}, lost
}

// outcomeWord is the journal's word for the status that an effect got.
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
