package tape

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"time"

	"github.com/tapestore/tapestore/internal/delivery"
	"github.com/tapestore/tapestore/runstore"
)

// ObligationStatus is the state of an obligation.
type ObligationStatus int32

// The statuses of an obligation, numbered like the phases of a delivery. Workers are finished with one
// that is COMPENSATED or STUCK. ResolveObligation can still make a STUCK one COMPENSATED.
const (
	ObligationUnspecified ObligationStatus = 0
	// ObligationPending: the next attempt is due at NextAttempt.
	ObligationPending ObligationStatus = 1
	// ObligationCommitted: a worker has claimed the obligation.
	ObligationCommitted   ObligationStatus = 2
	ObligationCompensated ObligationStatus = 3
	// ObligationStuck: every attempt failed, or a worker gave up.
	ObligationStuck ObligationStatus = 4
)

// final reports whether workers are finished with an obligation of that status.
func (s ObligationStatus) final() bool { return s == ObligationCompensated || s == ObligationStuck }

// word returns the journal's word for the status.
func (s ObligationStatus) word() string {
	switch s {
	case ObligationCommitted:
		return "committed"
	case ObligationCompensated:
		return "compensated"
	case ObligationStuck:
		return "stuck"
	default:
		return "pending"
	}
}

// Obligation is the duty to compensate one effect in one way. A run has at most one obligation for
// each effect key and kind.
type Obligation struct {
	Run runstore.RunID
	// Seq is the seq of the entry that registered the obligation. It identifies the obligation
	// within its run.
	Seq       runstore.Seq
	EffectKey string
	// Kind names the compensator.
	Kind        string
	Payload     string
	Compensator string
	Status      ObligationStatus
	// Time is the time of the last change.
	Time time.Time
	// Attempts is the number of failed attempts.
	Attempts, MaxAttempts int32
	// NextAttempt is when a PENDING obligation is due; zero once the attempts are used up.
	NextAttempt time.Time
	LastError   string
	// ClaimedBy and ClaimExpires are set while the obligation is COMMITTED.
	ClaimedBy    string
	ClaimExpires time.Time
	// Claims is the number of claims. It serves as the generation of the last claim: a report under
	// an earlier claim changes nothing.
	Claims int64
	Result string
}

// The limits of an obligation's texts, in bytes. A row with all texts at their limits fits into one
// record and one answer. No limit depends on what the row holds, so an obligation that was
// registered can always be resolved.
const (
	// MaxObligationNames is the largest journal entry that registers an obligation: a JSON text of
	// its effect key and kind.
	MaxObligationNames = 64 << 10
	// MaxCompensation is the largest payload.
	MaxCompensation = 2_000_000
	// MaxCompensator is the longest reference to a compensator.
	MaxCompensator = 4 << 10
	// MaxClaimer is the longest name of a claimer.
	MaxClaimer = 1 << 10
	// MaxAttemptError is the number of bytes of a failed attempt's error that are stored. A longer
	// error is truncated, not refused: an attempt that could not be reported would be repeated. As
	// JSON the text may be six times as long, and a journal entry has up to 1 MiB.
	MaxAttemptError = 128 << 10
	// MaxResult is the largest result.
	MaxResult = 1_000_000
)

// defaultMaxAttempts applies if a registration names no number of attempts.
const defaultMaxAttempts = 5

// size returns an upper bound of the bytes that the obligation takes in an answer.
func (o Obligation) size() int {
	const numbers = 256 // numbers, and the tags and lengths of all fields: under 200 bytes
	return numbers + len(o.Run) + len(o.EffectKey) + len(o.Kind) + len(o.Payload) + len(o.Compensator) +
		len(o.LastError) + len(o.ClaimedBy) + len(o.Result)
}

// The cross-run queues of obligations. IndexObligations has the obligations to work on: PENDING
// ones at the time of their next attempt, COMMITTED ones at the end of their claim.
// IndexStuckObligations has the STUCK ones, by the time at which they got stuck.
const (
	IndexObligations      runstore.IndexName = "obligation.due"
	IndexStuckObligations runstore.IndexName = "obligation.stuck"
)

const obligationPrefix = "obligation/"

// obligationKey returns the record key of an obligation: a hash of its identity, which may be
// longer than a record key. A kind contains no zero byte, so the last zero byte in the hashed text
// separates effect key and kind.
func obligationKey(effectKey, kind string) runstore.RecordKey {
	sum := sha256.Sum256([]byte(effectKey + "\x00" + kind))
	return runstore.RecordKey(obligationPrefix + hex.EncodeToString(sum[:]))
}

// obligationHead is the stored form of an obligation's small fields. Its payload and result are
// bodies; its seq is that of the record's creation, its time that of the record's last change.
type obligationHead struct {
	Status       ObligationStatus `json:"status"`
	EffectKey    string           `json:"effect_key,omitempty"`
	Kind         string           `json:"kind,omitempty"`
	Compensator  string           `json:"compensator,omitempty"`
	Attempts     int32            `json:"attempts,omitempty"`
	MaxAttempts  int32            `json:"max_attempts,omitempty"`
	NextAttempt  storedWhen       `json:"next_attempt,omitzero"`
	LastError    string           `json:"last_error,omitempty"`
	ClaimedBy    string           `json:"claimed_by,omitempty"`
	ClaimExpires storedWhen       `json:"claim_expires,omitzero"`
	Claims       int64            `json:"claims,omitempty"`
}

// storedObligation is an obligation with the times that are needed to write it again.
type storedObligation struct {
	Obligation
	// next and claimEnd are NextAttempt and ClaimExpires in the form that is written: the time of
	// the commit may not be known yet.
	next, claimEnd runstore.When
}

var obligations = ledger[storedObligation]{decode: obligationOf, encode: storedObligation.encode, later: storedObligation.later}

func (o storedObligation) key() runstore.RecordKey { return obligationKey(o.EffectKey, o.Kind) }

func (o storedObligation) encode() ([]byte, []runstore.Place) {
	head := obligationHead{
		Status: o.Status, EffectKey: o.EffectKey, Kind: o.Kind, Compensator: o.Compensator,
		Attempts: o.Attempts, MaxAttempts: o.MaxAttempts, NextAttempt: storeWhen(o.next), LastError: o.LastError,
		ClaimedBy: o.ClaimedBy, ClaimExpires: storeWhen(o.claimEnd), Claims: o.Claims,
	}
	return encode(head, o.Payload, o.Result), o.places()
}

// delivery returns the obligation's state as a delivery.
func (o storedObligation) delivery() delivery.State {
	return delivery.State{
		Phase: delivery.Phase(o.Status), Due: o.next, Ends: o.claimEnd, Holder: o.ClaimedBy, Claim: o.Claims, Attempts: int(o.Attempts),
	}
}

// apply puts the obligation into the state of a transition, if that is applied.
func (o *storedObligation) apply(s delivery.State, result delivery.Result) (applied bool) {
	if result != delivery.Applied {
		return false
	}
	o.Status, o.next, o.claimEnd = ObligationStatus(s.Phase), s.Due, s.Ends
	o.ClaimedBy, o.Claims, o.Attempts = s.Holder, s.Claim, int32(s.Attempts)
	return true
}

// places returns the obligation's index entry.
func (o storedObligation) places() []runstore.Place {
	if o.Status == ObligationStuck {
		return []runstore.Place{{Index: IndexStuckObligations, At: runstore.After(0)}}
	}
	if at := o.delivery().Available(); !at.IsZero() {
		return []runstore.Place{{Index: IndexObligations, At: at}}
	}
	return nil
}

// later returns the room to reserve for the largest later form of an open obligation: the one with
// the longest index entry.
func (o storedObligation) later() []runstore.RecordWrite {
	if o.Status.final() {
		return nil
	}
	return roomFor(o.key(), runstore.Place{Index: IndexStuckObligations, At: runstore.After(0)})
}

// obligationOf is the inverse of storedObligation.encode.
func obligationOf(run runstore.RunID, rec runstore.Record) (storedObligation, error) {
	var o storedObligation
	var head obligationHead
	what := fmt.Sprintf("obligation %d of run %q", rec.Created.Seq, run)
	if err := decode(what, rec.Value, &head, &o.Payload, &o.Result); err != nil {
		return storedObligation{}, err
	}
	o.Run, o.Seq, o.Time = run, rec.Created.Seq, rec.Updated.Time
	o.EffectKey, o.Kind, o.Compensator, o.Status = head.EffectKey, head.Kind, head.Compensator, head.Status
	o.Attempts, o.MaxAttempts, o.LastError = head.Attempts, head.MaxAttempts, head.LastError
	o.ClaimedBy, o.Claims = head.ClaimedBy, head.Claims
	o.NextAttempt = head.NextAttempt.time(rec.Updated.Time)
	o.ClaimExpires = head.ClaimExpires.time(rec.Updated.Time)
	o.next, o.claimEnd = whenAt(o.NextAttempt), whenAt(o.ClaimExpires)
	return o, nil
}
