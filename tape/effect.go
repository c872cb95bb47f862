package tape

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	"github.com/tapestore/tapestore/internal/delivery"
	"github.com/tapestore/tapestore/runstore"
)

// EffectStatus is what is known about an effect. Numbers without a name here are stored unchanged.
type EffectStatus int32

// The statuses of an effect.
const (
	EffectUnspecified EffectStatus = 0
	// EffectPending: the intent is recorded, the outcome is not.
	EffectPending   EffectStatus = 1
	EffectConfirmed EffectStatus = 2
	EffectFailed    EffectStatus = 3
	// EffectUnknown: the call may have happened; a reconciler has to find out.
	EffectUnknown EffectStatus = 4
)

// EffectSemantics is what a second call to the counterparty would do.
type EffectSemantics int32

// The semantics of an effect.
const (
	SemanticsUnspecified EffectSemantics = 0
	// Idempotent: the counterparty recognises the key of a repeated call.
	Idempotent EffectSemantics = 1
	// NonIdempotent: the counterparty would act twice. Such an effect needs outbox dispatch and a
	// scope.
	NonIdempotent EffectSemantics = 2
	// ObserveOnly: the call only reads.
	ObserveOnly EffectSemantics = 3
)

// DispatchMode is which process calls the counterparty.
type DispatchMode int32

// The dispatch modes of an effect.
const (
	DispatchUnspecified DispatchMode = 0
	// Inline: the run's driver calls the counterparty.
	Inline DispatchMode = 1
	// Outbox: a dispatcher calls the counterparty some time after the effect is recorded.
	Outbox DispatchMode = 2
)

// Effect is one call to a counterparty, from intent to outcome.
type Effect struct {
	Run runstore.RunID
	// Key is the idempotency key, unique within the run.
	Key string
	// Decision is the index of the decision that authorised the effect; negative for none.
	Decision    int64
	Tool        string
	Semantics   EffectSemantics
	Mode        DispatchMode
	BusinessKey string
	Connector   string
	// Scope is the scope under which the effect was admitted.
	Scope  string
	Status EffectStatus
	// Request, Response and Error are JSON texts, stored verbatim.
	Request, Response, Error string
	// Seq is the seq of the journal entry that began the effect.
	Seq runstore.Seq
	// Time is the time of the last change.
	Time time.Time

	DispatchAttempts int32
	// NextDispatch is when an outbox effect is due; zero for never.
	NextDispatch         time.Time
	ExternalRef          string
	DispatchClaimedBy    string
	DispatchClaimExpires time.Time
	// Claims is the number of claims of the effect's dispatch. It serves as the generation of the
	// last claim: a report under an earlier claim changes nothing.
	Claims            int64
	LastDispatchError string
}

// size returns an upper bound of the bytes that the effect takes in an answer.
func (e Effect) size() int {
	const numbers = 256 // numbers, and the tags and lengths of all fields: under 200 bytes
	size := numbers + len(e.Run)
	for _, text := range []string{
		e.Key, e.Tool, e.BusinessKey, e.Connector, e.Scope, e.Request, e.Response, e.Error,
		e.ExternalRef, e.DispatchClaimedBy, e.LastDispatchError,
	} {
		size += len(text)
	}
	return size
}

// The cross-run queues of effects. Effects with an open outcome are ordered by the time of their
// last change, effects to dispatch by the time at which they are due.
const (
	IndexPending  runstore.IndexName = "effect.pending"
	IndexUnknown  runstore.IndexName = "effect.unknown"
	IndexDispatch runstore.IndexName = "effect.dispatch"
)

// dispatchIndex returns the queue of one connector's effects to dispatch.
func dispatchIndex(connector string) runstore.IndexName {
	return indexFor(IndexDispatch, connector)
}

// indexFor returns the index of one name. A name that is too long for an index is replaced by its
// hash.
func indexFor(index runstore.IndexName, name string) runstore.IndexName {
	if len(index)+1+len(name) > runstore.MaxIndexName {
		sum := sha256.Sum256([]byte(name))
		name = "#" + hex.EncodeToString(sum[:])
	}
	return index + "/" + runstore.IndexName(name)
}

const effectPrefix = "effect/"

// maxEffectKey is the maximal length of an idempotency key, in bytes.
const maxEffectKey = runstore.MaxRecordKey - len(effectPrefix)

func effectKey(key string) runstore.RecordKey { return runstore.RecordKey(effectPrefix + key) }

// effectHead is the stored form of an effect's small fields. Its request,
// response and error are bodies; its key, seq and time are those of the record.
type effectHead struct {
	Status      EffectStatus    `json:"status"`
	Tool        string          `json:"tool,omitempty"`
	Decision    int64           `json:"decision"`
	Semantics   EffectSemantics `json:"semantics,omitempty"`
	Mode        DispatchMode    `json:"mode,omitempty"`
	BusinessKey string          `json:"business_key,omitempty"`
	Connector   string          `json:"connector,omitempty"`
	Scope       string          `json:"scope,omitempty"`
	Attempts    int32           `json:"attempts,omitempty"`
	// DueAtOnce marks an effect that is due since its creation. Earlier versions of this package
	// wrote DueAtOnce, and NextUS for any other time; both are only read.
	DueAtOnce     bool       `json:"due_at_once,omitempty"`
	NextUS        int64      `json:"next_dispatch_us,omitempty"`
	NextDispatch  storedWhen `json:"next_dispatch,omitzero"`
	ExternalRef   string     `json:"external_ref,omitempty"`
	ClaimedBy     string     `json:"claimed_by,omitempty"`
	ClaimExpires  storedWhen `json:"claim_expires,omitzero"`
	Claims        int64      `json:"claims,omitempty"`
	DispatchError string     `json:"dispatch_error,omitempty"`
}

// storedEffect is an effect with the times that are needed to write it again.
type storedEffect struct {
	Effect
	// next and claimEnd are NextDispatch and DispatchClaimExpires in the form that is written: the
	// time of the commit may not be known yet.
	next, claimEnd runstore.When
}

var effects = ledger[storedEffect]{decode: effectOf, encode: func(e storedEffect) ([]byte, []runstore.Place) {
	return e.encode(), e.places()
}, later: storedEffect.later}

func (e storedEffect) encode() []byte {
	head := effectHead{
		Status: e.Status, Tool: e.Tool, Decision: e.Decision, Semantics: e.Semantics, Mode: e.Mode,
		BusinessKey: e.BusinessKey, Connector: e.Connector, Scope: e.Scope, Attempts: e.DispatchAttempts,
		NextDispatch: storeWhen(e.next), ExternalRef: e.ExternalRef, ClaimedBy: e.DispatchClaimedBy,
		ClaimExpires: storeWhen(e.claimEnd), Claims: e.Claims, DispatchError: e.LastDispatchError,
	}
	return encode(head, e.Request, e.Response, e.Error)
}

// delivery returns the state of the effect's dispatch. Only a PENDING effect is dispatched, and only
// one of the outbox is on offer.
func (e storedEffect) delivery() delivery.State {
	s := delivery.State{
		Phase: delivery.Done, Due: e.next, Ends: e.claimEnd, Holder: e.DispatchClaimedBy, Claim: e.Claims, Attempts: int(e.DispatchAttempts),
	}
	if e.Status == EffectPending {
		s.Phase = delivery.Waiting
		if !e.claimEnd.IsZero() {
			s.Phase = delivery.Claimed
		}
	}
	if e.Mode != Outbox {
		s.Due = runstore.When{}
	}
	return s
}

// apply puts the effect's dispatch into the state of a transition, if that is applied.
func (e *storedEffect) apply(s delivery.State, result delivery.Result) (applied bool) {
	if result != delivery.Applied {
		return false
	}
	e.next, e.claimEnd = s.Due, s.Ends
	e.DispatchClaimedBy, e.Claims, e.DispatchAttempts = s.Holder, s.Claim, int32(s.Attempts)
	if s.Phase == delivery.Dead {
		e.Status = EffectUnknown
	}
	return true
}

// places returns the effect's index entries.
func (e storedEffect) places() []runstore.Place {
	switch e.Status {
	case EffectPending:
		places := []runstore.Place{{Index: IndexPending, At: runstore.After(0)}}
		if due := e.delivery().Available(); !due.IsZero() {
			places = append(places, runstore.Place{Index: IndexDispatch, At: due})
			if e.Connector != "" {
				places = append(places, runstore.Place{Index: dispatchIndex(e.Connector), At: due})
			}
		}
		return places
	case EffectUnknown:
		return []runstore.Place{{Index: IndexUnknown, At: runstore.After(0)}}
	default:
		return nil
	}
}

// later returns the room to reserve for the largest later form of the effect. A CONFIRMED effect
// stays CONFIRMED, in no queue. Any other may become PENDING, with the most index entries that it
// can have, or be observed as a duplicate, which registers an obligation, whose key has the same
// length for every kind.
func (e storedEffect) later() []runstore.RecordWrite {
	if e.Status == EffectConfirmed {
		return nil
	}
	e.Status, e.next = EffectPending, runstore.After(0)
	e.unclaim()
	duty := storedObligation{Obligation: Obligation{EffectKey: e.Key, Status: ObligationPending}}
	return append(roomFor(effectKey(e.Key), e.places()...), duty.later()...)
}

// effectOf is the inverse of storedEffect.encode.
func effectOf(run runstore.RunID, rec runstore.Record) (storedEffect, error) {
	var e storedEffect
	e.Run, e.Key = run, strings.TrimPrefix(string(rec.Key), effectPrefix)
	e.Seq, e.Time = rec.Created.Seq, rec.Updated.Time
	var head effectHead
	what := fmt.Sprintf("effect %q of run %q", clip(e.Key, 64), run)
	if err := decode(what, rec.Value, &head, &e.Request, &e.Response, &e.Error); err != nil {
		return storedEffect{}, err
	}
	e.Status, e.Tool, e.Decision, e.Semantics, e.Mode = head.Status, head.Tool, head.Decision, head.Semantics, head.Mode
	e.BusinessKey, e.Connector, e.Scope = head.BusinessKey, head.Connector, head.Scope
	e.DispatchAttempts, e.Claims = head.Attempts, head.Claims
	switch {
	case head.DueAtOnce:
		e.NextDispatch = rec.Created.Time
	case head.NextUS != 0:
		e.NextDispatch = runstore.FromMicros(head.NextUS)
	default:
		e.NextDispatch = head.NextDispatch.time(rec.Updated.Time)
	}
	e.ExternalRef, e.DispatchClaimedBy, e.LastDispatchError = head.ExternalRef, head.ClaimedBy, head.DispatchError
	e.DispatchClaimExpires = head.ClaimExpires.time(rec.Updated.Time)
	e.next, e.claimEnd = whenAt(e.NextDispatch), whenAt(e.DispatchClaimExpires)
	return e, nil
}

// GetEffect returns the effect under a key; found is false if there is no such effect or run. One
// read.
func (t *Tape) GetEffect(ctx context.Context, run runstore.RunID, key string) (e Effect, found bool, err error) {
	stored, found, err := t.readEffect(ctx, run, key)
	return stored.Effect, found, err
}

func (t *Tape) readEffect(ctx context.Context, run runstore.RunID, key string) (storedEffect, bool, error) {
	if err := checkLength("idempotency_key", key, maxEffectKey); err != nil {
		return storedEffect{}, false, err
	}
	rec, found, err := t.readRecord(ctx, run, effectKey(key))
	if err != nil || !found {
		return storedEffect{}, false, err
	}
	e, err := effectOf(run, rec)
	return e, err == nil, err
}
