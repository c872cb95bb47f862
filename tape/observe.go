package tape

import (
	"context"

	"github.com/tapestore/tapestore/runstore"
)

// Resolution is what an observer found out about an effect at its counterparty. Numbers without a
// name here leave the effect's status and claim unchanged, as ResolvedUnspecified does.
type Resolution int32

// The resolutions of an observation.
const (
	ResolvedUnspecified Resolution = 0
	ResolvedConfirmed   Resolution = 1
	ResolvedFailed      Resolution = 2
	// ResolvedAbsent: the counterparty has no trace of the effect. An idempotent effect is
	// dispatched again.
	ResolvedAbsent Resolution = 3
	// ResolvedDuplicate: the effect happened more than once.
	ResolvedDuplicate Resolution = 4
	// ResolvedStuck: the outcome cannot be found out for now.
	ResolvedStuck Resolution = 5
)

// MaxExternalRef is the maximal length of a counterparty's reference, in bytes.
const MaxExternalRef = 4 << 10

// Observation is the input of RecordExternalObservation.
type Observation struct {
	Run        runstore.RunID
	Key        string
	Resolution Resolution
	// ExternalRef, Response and Error replace the stored ones.
	ExternalRef     string
	Response, Error string
	// CompensateKind, if not empty, is the kind of the obligation that a DUPLICATE registers.
	CompensateKind string
	Fence          runstore.Fence
}

// RecordExternalObservation records an observer's finding about an effect and, if the finding has a
// status, ends the claim of its dispatch. A DUPLICATE with a kind registers the obligation in the same
// commit. Two observations are not recorded, and the effect is returned unchanged:
//
//   - of a CONFIRMED or FAILED effect, any but CONFIRMED and DUPLICATE: that an observer does not find the
//     effect does not undo it, and the agent may have paid in another way after a failure;
//   - of an effect whose dispatch is claimed, ABSENT, and STUCK unless the effect is NonIdempotent: its
//     dispatcher may be calling the counterparty. The observer looks again once the claim has ended. STUCK
//     of a NonIdempotent effect makes it UNKNOWN, so that no dispatcher calls after the claim.
//
// Two round trips, one more of the store clock if an ABSENT or STUCK meets a claim, and one more read for
// an obligation.
//
// Errors: ErrNoSuchEffect; runstore.ErrTooLarge above [MaxOutcome], [MaxExternalRef] and the limits
// of obligations, and for the obligation of an effect that was CONFIRMED before, in a run that is
// full; runstore.ErrFenced for a fence that is not current.
func (t *Tape) RecordExternalObservation(ctx context.Context, o Observation) (Effect, error) {
	if err := t.admit("RecordExternalObservation", o.Run, o.Fence); err != nil {
		return Effect{}, err
	}
	if err := checkOutcome(o.Response, o.Error); err != nil {
		return Effect{}, err
	}
	if err := checkText(field{"external_ref", o.ExternalRef}); err != nil {
		return Effect{}, err
	}
	if err := checkLength("external_ref", o.ExternalRef, MaxExternalRef); err != nil {
		return Effect{}, err
	}
	var duty *storedObligation
	if o.Resolution == ResolvedDuplicate && o.CompensateKind != "" {
		c := Compensation{Run: o.Run, EffectKey: o.Key, Kind: o.CompensateKind, Payload: string(compactJSON(map[string]any{
			"external_ref": o.ExternalRef, "idempotency_key": o.Key, "reason": "duplicate-observed",
		}))}
		fresh, err := c.obligation()
		if err != nil {
			return Effect{}, err
		}
		duty = &fresh
	}
	return t.changeEffect(ctx, o.Run, o.Key, o.Fence, func(e storedEffect, found bool) (storedEffect, *step, error) {
		if !found {
			return e, nil, ErrNoSuchEffect
		}
		seen := o.Resolution == ResolvedConfirmed || o.Resolution == ResolvedDuplicate
		if (e.Status == EffectConfirmed || e.Status == EffectFailed) && !seen { // the caller may have acted on it
			return e, nil, nil
		}
		if o.Resolution == ResolvedAbsent || o.Resolution == ResolvedStuck && (e.Semantics == Idempotent || e.Semantics == ObserveOnly) {
			if claimed, err := t.claimed(ctx, e); claimed || err != nil {
				return e, nil, err
			}
		}
		e.resolve(o.Resolution)
		e.ExternalRef, e.Response, e.Error = o.ExternalRef, o.Response, o.Error
		s := e.note(map[string]any{
			"status": "observed", "transition": "observed-" + o.Resolution.word(), "external_ref": o.ExternalRef,
		})
		if duty != nil {
			if err := t.alsoRegister(ctx, s, *duty); err != nil {
				return e, nil, err
			}
		}
		return e, s, nil
	})
}

// resolve sets the effect's status according to a resolution. Without a status the effect keeps its claim:
// the dispatcher may be at work, or may have called without a report.
func (e *storedEffect) resolve(r Resolution) {
	switch {
	case r == ResolvedConfirmed, r == ResolvedDuplicate:
		e.Status = EffectConfirmed
	case r == ResolvedAbsent && e.Semantics == Idempotent:
		e.Status = EffectPending
		e.next = runstore.After(0)
	case r == ResolvedFailed, r == ResolvedAbsent:
		e.Status = EffectFailed
	case r == ResolvedStuck:
		e.Status = EffectUnknown
	default:
		return
	}
	e.unclaim()
}

// word returns the journal's word for a resolution.
func (r Resolution) word() string {
	switch r {
	case ResolvedConfirmed:
		return "confirmed"
	case ResolvedFailed:
		return "failed"
	case ResolvedAbsent:
		return "absent"
	case ResolvedDuplicate:
		return "duplicate"
	case ResolvedStuck:
		return "stuck"
	default:
		return "unspecified"
	}
}
