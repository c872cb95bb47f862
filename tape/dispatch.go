package tape

import (
	"context"
	"slices"
	"time"

	"github.com/tapestore/tapestore/internal/delivery"
	"github.com/tapestore/tapestore/runstore"
)

// DispatchQuery selects effects that are ready for a dispatcher.
type DispatchQuery struct {
	// Now is the time by which the effects are due; zero means the store clock.
	Now time.Time
	// Limit is the maximal number of effects; 0 or less means 200.
	Limit int
	// Connector, if not empty, selects the effects of one connector.
	Connector string
}

// ListEffectsToDispatch returns effects of all runs that a dispatcher may claim: PENDING outbox
// effects that are due and not claimed, in the order of their due times. It returns fewer than the
// limit if they would not fit into one answer. An effect that cannot be read is logged and left
// out. One read per page, and one of the store clock unless the query names the time.
func (t *Tape) ListEffectsToDispatch(ctx context.Context, q DispatchQuery) ([]Effect, error) {
	return t.listEffectsToDispatch(ctx, nil, q)
}

func (t *Tape) listEffectsToDispatch(ctx context.Context, part *partScan, q DispatchQuery) ([]Effect, error) {
	if q.Limit <= 0 {
		q.Limit = 200
	}
	index := IndexDispatch
	if q.Connector != "" {
		if err := checkText(field{"connector", q.Connector}); err != nil {
			return nil, err
		}
		index = dispatchIndex(q.Connector)
	}
	if !q.Now.IsZero() && !q.Now.After(time.Unix(0, 0)) {
		return nil, nil // before all times of a store
	}
	now := clampTime(q.Now)
	if now.IsZero() {
		var err error
		if now, err = t.store.Now(ctx); err != nil {
			return nil, err
		}
	}
	entries := part.entries(ctx, t.store, []runstore.IndexQuery{{Index: index, Until: now, Limit: min(q.Limit, runstore.MaxPage)}})
	due, err := list(ctx, t, part, "effects", effectOf, entries, q.Limit, func(e storedEffect) (Effect, bool) {
		return e.Effect, e.delivery().AvailableAt(now) && (q.Connector == "" || e.Connector == q.Connector)
	})
	// The queue orders an effect with a lapsed claim by the end of that claim.
	slices.SortStableFunc(due, func(a, b Effect) int { return a.NextDispatch.Compare(b.NextDispatch) })
	return due, err
}

// ClaimEffectDispatch gives the caller the right to dispatch an effect while the claim lasts. Of
// several callers at most one acquires the claim; the others get the effect with the claimer's
// name. A claim raises the effect's Claims, its generation: a report under an earlier generation
// changes nothing. found is false if there is no such effect. It writes no journal entry. Two round
// trips, and one of the store clock if an earlier claim or a scheduled time has to be checked.
//
// Errors: runstore.ErrFenced for a fence that is not current.
func (t *Tape) ClaimEffectDispatch(ctx context.Context, run runstore.RunID, key string, req ClaimRequest) (e Effect, acquired, found bool, err error) {
	if err := t.admit("ClaimEffectDispatch", run, req.Fence); err != nil {
		return Effect{}, false, false, err
	}
	ttl, err := req.check()
	if err != nil {
		return Effect{}, false, false, err
	}
	e, err = t.changeEffect(ctx, run, key, req.Fence, func(e storedEffect, there bool) (storedEffect, *step, error) {
		found = there
		next, result, err := t.claim(ctx, e.delivery(), e.Time, req.Claimer, ttl)
		if acquired = e.apply(next, result); !acquired {
			return e, nil, err
		}
		return e, &step{}, nil
	})
	return e, acquired && err == nil, found, err
}

// DispatchReport reports a failed attempt to dispatch an effect.
type DispatchReport struct {
	Run runstore.RunID
	Key string
	// Claim is the generation of the claim under which the attempt was made; 0 if the dispatcher
	// does not use generations.
	Claim int64
	// Error is stored with the effect, truncated to [MaxDispatchError] bytes.
	Error string
	// Next is the time of the next attempt; zero makes the effect UNKNOWN.
	Next  time.Time
	Fence runstore.Fence
}

// MaxDispatchError is the number of bytes of a failed dispatch's error that are stored. A longer
// error is truncated, not refused: an attempt that could not be reported would be repeated.
const MaxDispatchError = 8 << 10

// RecordDispatchAttempt records that a dispatch has failed, and ends its claim. The effect is due
// again at Next, or becomes UNKNOWN, for a reconciler to resolve. An effect that is not PENDING is
// returned unchanged. So is an effect whose last claim is not the report's, or has been ended by a
// report, an observation or ReconcileEffect. Two round trips.
//
// Errors: ErrNoSuchEffect; runstore.ErrFenced for a fence that is not current.
func (t *Tape) RecordDispatchAttempt(ctx context.Context, req DispatchReport) (Effect, error) {
	if err := t.admit("RecordDispatchAttempt", req.Run, req.Fence); err != nil {
		return Effect{}, err
	}
	if err := checkText(field{"error", req.Error}); err != nil {
		return Effect{}, err
	}
	if !req.Next.IsZero() {
		if err := checkTime("next_dispatch_at_ms", req.Next); err != nil {
			return Effect{}, err
		}
	}
	failure := clip(req.Error, MaxDispatchError)
	return t.changeEffect(ctx, req.Run, req.Key, req.Fence, func(e storedEffect, found bool) (storedEffect, *step, error) {
		if !found {
			return e, nil, ErrNoSuchEffect
		}
		if !e.apply(openRules.Fail(e.delivery(), generation(req.Claim), whenAt(req.Next))) {
			return e, nil, nil
		}
		e.LastDispatchError = failure
		entry := map[string]any{
			"status": "pending", "transition": "dispatch-retry-scheduled", "dispatch_attempts": e.DispatchAttempts,
			"error": failure, "next_dispatch_at_ms": max(req.Next.UnixMilli(), 0),
		}
		if e.Status == EffectUnknown {
			entry["status"], entry["transition"], entry["next_dispatch_at_ms"] = "unknown", "dispatch-unknown", 0
		}
		return e, e.note(entry), nil
	})
}

// claimed reports whether a dispatcher has a claim of the effect that has not lapsed. It reads the store
// clock only if the claim had not lapsed at the effect's last change.
func (t *Tape) claimed(ctx context.Context, e storedEffect) (bool, error) {
	s := e.delivery()
	if s.Phase != delivery.Claimed || s.AvailableAt(e.Time) {
		return false, nil
	}
	now, err := t.store.Now(ctx)
	return err == nil && !s.AvailableAt(now), err
}

func (e *storedEffect) unclaim() {
	e.DispatchClaimedBy, e.claimEnd = "", runstore.When{}
}
