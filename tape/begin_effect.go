package tape

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/tapestore/tapestore/internal/optimistic"
	"github.com/tapestore/tapestore/runstore"
)

// BeginEffectRequest is the input of BeginEffect.
type BeginEffectRequest struct {
	Run runstore.RunID
	// Decision, Tool and Call form the idempotency key, unless CustomKey is set.
	Decision  int64
	Tool      string
	Call      int32
	CustomKey string
	Request   string
	// Unspecified values mean Idempotent and Inline.
	Semantics EffectSemantics
	Mode      DispatchMode
	// BusinessKey and Connector, if set, identify the effect across all runs.
	BusinessKey, Connector string
	// Scope, if not empty, must be among the run's scopes.
	Scope string
	Fence runstore.Fence
}

// key returns the idempotency key, and the name of the request field that an error reports if the
// key is too long.
func (req BeginEffectRequest) key() (key, blame string) {
	switch {
	case req.CustomKey != "":
		return req.CustomKey, "custom_key"
	case req.Decision >= 0:
		return fmt.Sprintf("%s/decision-%d/%s/%d", req.Run, req.Decision, req.Tool, req.Call), "tool_name"
	default:
		return fmt.Sprintf("%s/no-decision/%s/%d", req.Run, req.Tool, req.Call), "tool_name"
	}
}

// BeginEffect records the intent of an effect as PENDING before any call to the counterparty, or
// returns the effect that its run already has under that key, with any status. The intent is
// durable when BeginEffect returns. If another run has begun an effect with the same connector and
// business key, BeginEffect returns that effect, with that run's id and key.
//
// One round trip for a new effect. A scope costs one more, to read the scopes granted to the run; a
// business key one more, to register it (three more if the store is not a runstore.MultiCommitter);
// a replay one more, to read the effect. If the creator of a business key died before its effect
// was begun, the next caller pauses for about 130 ms.
//
// Errors: ErrNoSuchRun; ErrScope, which is journaled if the request names a scope and the store takes
// the entry; ErrRefused; ErrEffectExists, also for a business key whose effect other callers are
// beginning; runstore.ErrTooLarge above [MaxRequest] and [MaxEffectNames]; runstore.ErrFenced, for a
// replay too. After any error except runstore.ErrUnknownOutcome and ErrEffectExists the effect is not
// begun.
func (t *Tape) BeginEffect(ctx context.Context, req BeginEffectRequest) (Effect, error) {
	if err := t.admit("BeginEffect", req.Run, req.Fence); err != nil {
		return Effect{}, err
	}
	if req.Semantics == SemanticsUnspecified {
		req.Semantics = Idempotent
	}
	if req.Mode == DispatchUnspecified {
		req.Mode = Inline
	}
	if err := req.check(); err != nil {
		return Effect{}, err
	}
	key, _ := req.key()
	fresh := storedEffect{Effect: Effect{
		Run: req.Run, Key: key, Decision: req.Decision, Tool: req.Tool, Semantics: req.Semantics, Mode: req.Mode,
		BusinessKey: req.BusinessKey, Connector: req.Connector, Scope: req.Scope,
		Status: EffectPending, Request: req.Request,
	}}
	if req.Mode == Outbox {
		fresh.next = runstore.After(0)
	}
	entry, value := fresh.beginEntry(), fresh.encode()
	if err := checkSize("the names of an effect", len(entry), MaxEffectNames, req.names()...); err != nil {
		return Effect{}, err
	}
	var lost error
	for range optimistic.MaxAttempts {
		// The guard makes the scopes those of the commit, not those of the read.
		b := guards(req.Run, req.Fence, runstore.AtVersion(effectKey(key), 0))
		if req.Scope != "" {
			granted, err := t.admitScope(ctx, req)
			if err != nil {
				return Effect{}, err
			}
			b.Require(granted)
		}
		b.Append(kindEffect, entry)
		b.Put(effectKey(key), value, fresh.places()...)
		b.Records[0].Reserve = fresh.later()
		var done runstore.Committed
		var err error
		if req.BusinessKey == "" {
			done, err = t.commit(ctx, b)
		} else {
			var other Effect
			if done, other, err = t.commitRegistered(ctx, b, fresh.Effect); err == errRegistered {
				return other, nil
			}
		}
		if err == nil {
			fresh.Seq, fresh.Time = done.FirstSeq, done.Time
			fresh.NextDispatch = fresh.next.Resolve(done.Time)
			return fresh.Effect, nil
		}
		if !errors.Is(err, runstore.ErrConflict) {
			return Effect{}, err
		}
		lost = err
		stored, found, err := t.GetEffect(ctx, req.Run, key)
		if err != nil && conflictOn(lost, effectKey(key)) {
			err = unread(err)
		}
		if err != nil || found {
			return stored, err
		}
	}
	return Effect{}, lost
}

// check validates the request without the store, in the protocol's order.
func (req BeginEffectRequest) check() error {
	request := field{"request_json", req.Request}
	if err := checkText(append(req.names(), request)...); err != nil {
		return err
	}
	switch {
	case req.Semantics == NonIdempotent && req.Mode == Inline:
		return refuse(ErrRefused, "begin_effect: NON_IDEMPOTENT semantics requires OUTBOX dispatch "+
			"(a non-idempotent counterparty cannot be safely re-driven inline)")
	case req.Semantics == NonIdempotent && req.Scope == "":
		return &ScopeError{Scope: "<required>"}
	case req.BusinessKey != "" && req.Connector == "":
		return refuse(ErrRefused, "begin_effect: business_key requires connector "+
			"(cross-run dedupe is per-(connector, business_key))")
	}
	key, blame := req.key()
	if len(key) > maxEffectKey {
		return &runstore.InputError{
			Kind: runstore.ErrTooLarge, Field: blame,
			Problem: fmt.Sprintf("makes an idempotency key of %d bytes, the limit is %d", len(key), maxEffectKey),
		}
	}
	return checkLength(request.name, request.text, MaxRequest)
}

// admitScope checks that the run was granted the request's scope. It returns a guard that the
// scopes are unchanged, or ErrScope, which it has journaled. If the entry cannot be committed, the
// refusal is ErrScope all the same: the clients of the protocol act after a passing fault.
func (t *Tape) admitScope(ctx context.Context, req BeginEffectRequest) (runstore.Guard, error) {
	var lost error
	for range optimistic.MaxAttempts {
		run, version, err := t.readRun(ctx, req.Run)
		if err != nil {
			return nil, err
		}
		unchanged := runstore.AtVersion(runstore.SummaryKey, version)
		if slices.Contains(run.Scopes, req.Scope) {
			return unchanged, nil
		}
		granted := run.Scopes
		if granted == nil {
			granted = []string{} // encode an empty array, not null
		}
		entry := compactJSON(map[string]any{
			"tool": req.Tool, "decision_index": req.Decision, "required_scope": req.Scope,
			"granted_scopes": granted, "violation": "scope_not_granted",
		})
		b := guards(req.Run, req.Fence, unchanged)
		b.Append(kindPolicy, entry)
		if _, err = t.commit(ctx, b); err == nil {
			return nil, &ScopeError{Scope: req.Scope}
		}
		if errors.Is(err, runstore.ErrFenced) || errors.Is(err, runstore.ErrStoreBehind) || errors.Is(err, ErrNoSuchRun) {
			return nil, err
		}
		if lost = err; !errors.Is(err, runstore.ErrConflict) {
			break
		}
	}
	t.log.WarnContext(ctx, "a policy violation is not in the journal", "run", req.Run, "scope", clip(req.Scope, 64), "error", lost)
	return nil, &ScopeError{Scope: req.Scope}
}

// unread returns the error of a read of an effect that exists. A passing fault becomes
// ErrEffectExists.
func unread(err error) error {
	if errors.Is(err, runstore.ErrUnavailable) || errors.Is(err, runstore.ErrClosed) || isUnknown(err) {
		return refuse(ErrEffectExists, "begin_effect: the effect exists, or another caller is beginning it, and it cannot be read now: "+
			"do not act, and try again: %v", err)
	}
	return err
}

// names returns the texts that the journal entry holds.
func (req BeginEffectRequest) names() []field {
	return []field{
		{"tool_name", req.Tool}, {"custom_key", req.CustomKey}, {"business_key", req.BusinessKey},
		{"connector", req.Connector}, {"scope", req.Scope}, {"run_id", string(req.Run)},
	}
}

// beginEntry returns the payload of the journal entry that begins an effect.
func (e storedEffect) beginEntry() []byte {
	return compactJSON(map[string]any{
		"tool": e.Tool, "decision_index": e.Decision, "idempotency_key": e.Key, "status": "pending",
		"semantics": e.Semantics, "dispatch_mode": e.Mode,
		"business_key": e.BusinessKey, "connector": e.Connector, "scope": e.Scope,
	})
}
