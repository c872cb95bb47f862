package tape

import (
	"context"
	"slices"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// DispatchQuery asks for effects that wait for a dispatcher.
type DispatchQuery struct {
	// Now is the time at which they are due; zero for the store clock.
	Now time.Time
	// Limit is 200 for 0 or less.
	Limit int
	// Connector, if not empty, is that of the effects.
	Connector string
}

// ListEffectsToDispatch returns effects of all runs that a dispatcher may claim: PENDING outbox
// effects that are due and under no claim, in the order in which they became due. It returns fewer
// than the limit when they would not fit into one answer. An effect that cannot be read is logged
// and left out. One read per page, and one of the store clock unless the query names the time.
func (t *Tape) ListEffectsToDispatch(ctx context.Context, q DispatchQuery) ([]Effect, error) {
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
	entries := runstore.Entries(ctx, t.store, runstore.IndexQuery{Index: index, Until: now, Limit: min(q.Limit, runstore.MaxPage)})
	list, err := t.listEffects(ctx, entries, q.Limit, func(e storedEffect) bool {
		return e.isDispatchable(now) && (q.Connector == "" || e.Connector == q.Connector)
	})
	// The queue has effects whose claim has lapsed by the end of the claim.
	slices.SortStableFunc(list, func(a, b Effect) int { return a.NextDispatch.Compare(b.NextDispatch) })
	return list, err
}

func (e storedEffect) isDispatchable(now time.Time) bool {
	return e.Status == EffectPending && e.Mode == Outbox &&
		!e.NextDispatch.IsZero() && !e.NextDispatch.After(now) && !e.DispatchClaimExpires.After(now)
}

// ClaimEffectDispatch gives the caller the right to dispatch an effect for as long as the claim
// lasts. Of several callers at most one gets it, and the others see who did. A claim raises the
// effect's Claims, its generation: a report that names an earlier one changes nothing. found is
// false where there is no such effect. Nothing is journaled. Two round trips, and one of the store
// clock where a former claim or an appointed time has to be judged.
//
// Errors: runstore.ErrFenced, if a fence is presented.
func (t *Tape) ClaimEffectDispatch(ctx context.Context, run runstore.RunID, key string, req ClaimRequest) (e Effect, acquired, found bool, err error) {
	if err := t.admit("ClaimEffectDispatch", run, req.Fence); err != nil {
		return Effect{}, false, false, err
	}
	ttl, err := req.check()
	if err != nil {
		return Effect{}, false, false, err
	}
	e, err = t.changeEffect(ctx, run, key, req.Fence, func(e storedEffect, there bool) (storedEffect, *step, error) {
		acquired, found = false, there
		if !there || e.Status != EffectPending || e.Mode != Outbox || e.NextDispatch.IsZero() {
			return e, nil, nil
		}
		// An effect that was due when it was last written is due now.
		if e.NextDispatch.After(e.Time) || !e.DispatchClaimExpires.IsZero() {
			now, err := t.store.Now(ctx)
			if err != nil || !e.isDispatchable(now) {
				return e, nil, err
			}
		}
		e.DispatchClaimedBy, e.claimEnd = req.Claimer, runstore.After(ttl)
		e.Claims++
		acquired = true
		return e, &step{}, nil
	})
	return e, acquired && err == nil, found, err
}

// DispatchReport says that an attempt to dispatch an effect has failed.
type DispatchReport struct {
	Run runstore.RunID
	Key string
	// Claim is the generation of the claim under which it was made; 0 for a dispatcher that knows of
	// none.
	Claim int64
	// Error is kept with the effect, up to [MaxDispatchError] bytes of it.
	Error string
	// Next is when to try again; zero makes the effect UNKNOWN.
	Next  time.Time
	Fence runstore.Fence
}

// MaxDispatchError is how much of the error of a failed dispatch is kept. A longer one is cut, and
// not refused: an attempt that could not be reported would be made again.
const MaxDispatchError = 8 << 10

// RecordDispatchAttempt records that a dispatch has failed, and ends its claim: the effect is due
// again at Next, or becomes UNKNOWN, for a reconciler. An effect that is not PENDING is returned as it
// is, and so is one whose last claim is not the report's or has ended by a report or an observation. Two round trips.
//
// Errors: ErrNoSuchEffect; runstore.ErrFenced, if a fence is presented.
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
		if e.Status != EffectPending || req.Claim > 0 && (req.Claim != e.Claims || e.DispatchClaimExpires.IsZero()) {
			return e, nil, nil
		}
		e.unclaim()
		e.DispatchAttempts++
		e.LastDispatchError, e.next = failure, whenAt(req.Next)
		entry := map[string]any{
			"status": "pending", "transition": "dispatch-retry-scheduled", "dispatch_attempts": e.DispatchAttempts,
			"error": failure, "next_dispatch_at_ms": max(req.Next.UnixMilli(), 0),
		}
		if req.Next.IsZero() {
			e.Status = EffectUnknown
			entry["status"], entry["transition"], entry["next_dispatch_at_ms"] = "unknown", "dispatch-unknown", 0
		}
		return e, e.note(entry), nil
	})
}

func (e *storedEffect) unclaim() {
	e.DispatchClaimedBy, e.claimEnd = "", runstore.When{}
}
