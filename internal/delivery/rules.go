package delivery

import (
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// The limits of the time that a claim lasts. Each kind of work has another default.
const (
	MinTTL = time.Millisecond
	// MaxTTL allows for work that a person has to confirm within a day.
	MaxTTL = 24 * time.Hour
)

// Phase is where an entry stands. Every other value is treated as Done.
type Phase int

const (
	Waiting Phase = iota + 1 // can be claimed from State.Due on
	Claimed                  // can be claimed again from State.Ends on
	Done                     // final: the outcome is known
	Dead                     // final: a dead letter, because no attempt is left or wanted
)

// State is what the rules know of an entry. The times of a state that was read are absolute; those of
// a next state may be relative to its commit.
type State struct {
	Phase Phase
	// Due is the time from which a waiting entry can be claimed. An entry without one is not on offer.
	Due runstore.When
	// Ends is the time at which the claim expires, and Holder the caller that has it.
	Ends   runstore.When
	Holder string
	// Claim identifies the last claim: the number of claims, or the version that the record got with
	// the claim. It grows from claim to claim.
	Claim    int64
	Attempts int
}

// Receipt is how a report names its claim. A zero field is not compared.
type Receipt struct {
	Claim  int64
	Holder string
}

// names reports whether the receipt is of the last claim of an entry.
func (p Receipt) names(s State) bool {
	return p != Receipt{} && (p.Claim == 0 || p.Claim == s.Claim) && (p.Holder == "" || p.Holder == s.Holder)
}

// Result is what became of a transition: applied, or refused for a reason.
type Result int

// A refused transition returns the state unchanged.
const (
	Applied Result = iota
	// NotDue: the entry waits, or another claim lasts.
	NotDue
	// Closed: the entry is done or dead, or is not on offer.
	Closed
	// Superseded: the claim is not the receipt's.
	Superseded
	// Returned: the receipt's claim has ended, and the entry waits.
	Returned
)

// String returns the result in words.
func (r Result) String() string {
	return [...]string{"applied", "not due", "closed", "superseded", "returned"}[r]
}

// Rules are those of one kind of entries.
type Rules struct {
	// MaxAttempts is the number of attempts after which no other follows; 0 or less means no limit.
	MaxAttempts int
	// CountClaims makes an attempt of each claim, counted when it begins, so that an expiry uses it
	// up, too. Otherwise an attempt is counted when its failure is reported.
	CountClaims bool
	// Open admits reports without a receipt. A receipt then only excludes the report of a claim that
	// another claim has followed, and the second failure of one claim.
	Open bool
}

// Available returns the time from which an entry can be claimed; zero for never.
func (s State) Available() runstore.When {
	switch s.Phase {
	case Waiting:
		return s.Due
	case Claimed:
		return s.Ends
	default:
		return runstore.When{}
	}
}

// AvailableAt reports whether an entry that was read can be claimed at a time.
func (s State) AvailableAt(now time.Time) bool {
	at := s.Available()
	return !at.IsZero() && !at.Resolve(now).After(now)
}

// Claim gives an entry to a holder. If claims are attempts and none is left, the entry becomes Dead
// instead. Refused with Closed and NotDue.
func (r Rules) Claim(s State, now time.Time, holder string, ends runstore.When) (State, Result) {
	switch {
	case s.Available().IsZero():
		return s, Closed
	case !s.AvailableAt(now):
		return s, NotDue
	case r.CountClaims && r.isLast(s.Attempts):
		return s.end(Dead), Applied
	case r.CountClaims:
		s.Attempts++
	}
	s.Phase, s.Holder, s.Ends = Claimed, holder, ends
	s.Claim++
	return s, Applied
}

// Extend moves the end of a claim, to an earlier or a later time. Refused with Closed, Superseded and
// Returned.
func (r Rules) Extend(s State, p Receipt, ends runstore.When) (State, Result) {
	if !s.heldUnder(p) {
		return s, s.refusal()
	}
	s.Ends = ends
	return s, Applied
}

// Complete records that the outcome is known. In open rules this applies to the last claim also after
// it has ended. Refused with Closed, Superseded and Returned.
func (r Rules) Complete(s State, p Receipt) (State, Result) {
	if !r.admits(s, p) && !(r.Open && s.Phase == Waiting && p.names(s)) {
		return s, s.refusal()
	}
	return s.end(Done), Applied
}

// Fail records that an attempt has failed. The entry waits until the next attempt, or becomes Dead if
// no attempt is left or next is zero. Refused with Closed, Superseded and Returned.
func (r Rules) Fail(s State, p Receipt, next runstore.When) (State, Result) {
	if !r.admits(s, p) {
		return s, s.refusal()
	}
	if !r.CountClaims {
		s.Attempts++
	}
	if next.IsZero() || r.isLast(s.Attempts) {
		s.Due = runstore.When{}
		return s.end(Dead), Applied
	}
	s.Due = next
	return s.end(Waiting), Applied
}

// Release gives an entry back that was not worked on, for the next caller at once; no attempt is
// counted. Refused with Closed, Superseded and Returned.
func (r Rules) Release(s State, p Receipt) (State, Result) {
	if !s.heldUnder(p) {
		return s, s.refusal()
	}
	if r.CountClaims {
		s.Attempts--
	}
	s.Due = runstore.After(0)
	return s.end(Waiting), Applied
}

// heldUnder reports whether the claim of a receipt lasts. It may have expired.
func (s State) heldUnder(p Receipt) bool { return s.Phase == Claimed && p.names(s) }

// admits reports whether a caller with a receipt may end the attempt at an entry.
func (r Rules) admits(s State, p Receipt) bool {
	open := s.Phase == Waiting || s.Phase == Claimed
	return s.heldUnder(p) || r.Open && open && p == Receipt{}
}

// refusal returns why a report about an entry is refused.
func (s State) refusal() Result {
	switch s.Phase {
	case Waiting:
		return Returned
	case Claimed:
		return Superseded
	default:
		return Closed
	}
}

// isLast reports whether no attempt follows that many.
func (r Rules) isLast(attempts int) bool { return r.MaxAttempts > 0 && attempts >= r.MaxAttempts }

// end returns the state in a phase without a claim.
func (s State) end(p Phase) State {
	s.Phase, s.Holder, s.Ends = p, "", runstore.When{}
	return s
}
