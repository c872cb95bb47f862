package runstore

import (
	"errors"
	"fmt"
	"time"
)

// The kinds of errors. Every error of a store matches exactly one of them with errors.Is.
// [OutcomeOf] reports whether a failed write was applied.
var (
	// ErrNotFound: there is no such run.
	ErrNotFound = errors.New("not found")
	// ErrLeaseHeld: another holder has the lease; see [LeaseHeldError].
	ErrLeaseHeld = errors.New("lease is held")
	// ErrLeaseExpired: the lease is strict and has expired.
	ErrLeaseExpired = errors.New("strict lease has expired")
	// ErrFenced: the fence, or the grant id of a request for the lease, is that of a grant which
	// is not the run's current one; see [FencedError]. The caller must stop: another holder drives
	// this run, or none does.
	ErrFenced = errors.New("fenced")
	// ErrConflict: a guard other than the fence did not hold; see [ConflictError]. The caller
	// reads again and decides again.
	ErrConflict = errors.New("conflict")
	// ErrInvalid: malformed input; see [InputError].
	ErrInvalid = errors.New("invalid")
	// ErrTooLarge: input beyond a limit; see [InputError].
	ErrTooLarge = errors.New("too large")
	// ErrUnsupported: this store cannot do what was requested. Some of these errors are an
	// [InputError].
	ErrUnsupported = errors.New("unsupported")
	// ErrUnavailable: the engine could not be reached or was too busy. Nothing was applied, and a
	// retry is safe.
	ErrUnavailable = errors.New("unavailable")
	// ErrUnknownOutcome: the reply to a write was lost, and the write may or may not have been
	// applied. The caller repeats the write with the same batch or grant id, unless the cause is
	// [ErrForgotten].
	ErrUnknownOutcome = errors.New("unknown outcome")
	// ErrNoProgress: the holder has renewed its lease for longer than its MaxStall without
	// committing an event or a record (I13); see [NoProgressError].
	ErrNoProgress = errors.New("no progress")
	// ErrStoreBehind: a token or position is above every one that the store knows, so the store
	// was rolled back; see [StoreBehindError].
	ErrStoreBehind = errors.New("store is behind its caller")
	// ErrCorrupt: the engine holds damaged data where the operation had to read, or refuses writes
	// because of such damage. Nothing was applied. A retry does not help: an operator has to
	// restore the data.
	ErrCorrupt = errors.New("stored data is corrupt")
	// ErrClosed: the handle was closed.
	ErrClosed = errors.New("store is closed")
)

// ErrForgotten is the cause of an ErrUnknownOutcome that no repeat resolves: the reply to a request was lost,
// and since then the run was purged, or has had so many other writes that the store no longer shows whether
// the request was applied. A repeat under the same batch id or grant id is a new request to the store, so
// the caller must read what the run has before it writes again.
var ErrForgotten = errors.New("the store no longer shows whether the request was applied")

// Kinds returns every kind of error, for tables that must be complete.
func Kinds() []error {
	return []error{
		ErrNotFound, ErrLeaseHeld, ErrLeaseExpired, ErrFenced, ErrConflict, ErrInvalid,
		ErrTooLarge, ErrUnsupported, ErrUnavailable, ErrUnknownOutcome, ErrNoProgress, ErrStoreBehind, ErrCorrupt, ErrClosed,
	}
}

// KindOf returns the kind of err. The kind of an error that is not classified is
// ErrUnknownOutcome; the kind of nil is nil.
func KindOf(err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, ErrUnknownOutcome) { // takes precedence over every other kind in the chain
		return ErrUnknownOutcome
	}
	for _, kind := range Kinds() {
		if errors.Is(err, kind) {
			return kind
		}
	}
	return ErrUnknownOutcome
}

// Outcome is the effect of a failed write on the store.
type Outcome int

// The outcomes of a write.
const (
	// Unknown: the write may or may not have been applied.
	Unknown Outcome = iota
	// Applied: the write was applied.
	Applied
	// NotApplied: nothing of the write is stored, or ever will be.
	NotApplied
)

// String returns the outcome in words.
func (o Outcome) String() string {
	switch o {
	case Applied:
		return "applied"
	case NotApplied:
		return "not applied"
	default:
		return "unknown"
	}
}

// OutcomeOf returns the outcome of the write that returned err (I11).
func OutcomeOf(err error) Outcome {
	switch {
	case err == nil:
		return Applied
	case KindOf(err) == ErrUnknownOutcome:
		return Unknown
	default:
		return NotApplied
	}
}

// OpError records which operation failed on which run. errors.Is finds its kind and the engine's
// own error, errors.As the details.
type OpError struct {
	// Op is the method, in lower case: "commit", "acquire lease"…
	Op  string
	Run RunID
	// Err is one of the kinds, or a typed detail that matches one.
	Err error
	// Cause is the engine's or the context's own error; it may be nil.
	Cause error
}

// Error implements error.
func (e *OpError) Error() string {
	s := e.Op
	if e.Run != "" {
		s += fmt.Sprintf(" %q", clip(string(e.Run)))
	}
	s += ": " + e.Err.Error()
	if e.Cause != nil {
		s += ": " + e.Cause.Error()
	}
	return s
}

// Unwrap returns the kind or detail, and the cause if there is one.
func (e *OpError) Unwrap() []error {
	if e.Cause == nil {
		return []error{e.Err}
	}
	return []error{e.Err, e.Cause}
}

// LeaseHeldError names the holder of the lease and the time until its expiry.
type LeaseHeldError struct {
	Holder Holder
	// Remaining is the time to the holder's expiry on the store clock when the store evaluated the
	// request. The holder may renew, so the caller waits at least that long, with jitter.
	Remaining time.Duration
}

// Error implements error.
func (e *LeaseHeldError) Error() string {
	return fmt.Sprintf("%v by %q under token %v for another %v",
		ErrLeaseHeld, clip(string(e.Holder.Owner)), e.Holder.Token, e.Remaining)
}

// Is matches ErrLeaseHeld.
func (e *LeaseHeldError) Is(target error) bool { return target == ErrLeaseHeld }

// NoProgressError reports a renewal that was refused because its holder made no progress.
type NoProgressError struct {
	// Stalled is the time since the last progress, on the store clock.
	Stalled time.Duration
	// MaxStall is the limit of the grant.
	MaxStall time.Duration
}

// Error implements error.
func (e *NoProgressError) Error() string {
	return fmt.Sprintf("%v: no event and no record was committed under the grant for %v, the limit is %v", ErrNoProgress, e.Stalled, e.MaxStall)
}

// Is matches ErrNoProgress.
func (e *NoProgressError) Is(target error) bool { return target == ErrNoProgress }

// FencedError records the grant that is current instead of the one presented.
type FencedError struct {
	// Presented is the token of the fence that was refused. It is 0 for a request whose grant id
	// names a former grant, because the store does not keep the tokens of former grants.
	Presented Token
	// Current is the run's last token.
	Current Token
	// Holder is the current holder; zero when the lease is free.
	Holder Holder
}

// Error implements error.
func (e *FencedError) Error() string {
	presented := fmt.Sprintf("token %v was presented", e.Presented)
	if e.Presented == 0 {
		presented = "the grant of that id has ended"
	}
	if e.Holder.Token == 0 {
		return fmt.Sprintf("%v: %s, the last grant is %v and was ended", ErrFenced, presented, e.Current)
	}
	return fmt.Sprintf("%v: %s, the current grant is %v of %q",
		ErrFenced, presented, e.Current, clip(string(e.Holder.Owner)))
}

// Is matches ErrFenced.
func (e *FencedError) Is(target error) bool { return target == ErrFenced }

// ConflictError records which guard did not hold and what the guard found, so that the caller
// needs no second read.
type ConflictError struct {
	// Guard is "version", "seq", "status" or "token".
	Guard string
	// Key, Want and Current are set for a version guard.
	Key           RecordKey
	Want, Current Version
	// Token is the run's last token, set for a token guard.
	Token Token
	// NextSeq is the seq of the run's next event.
	NextSeq Seq
	// Status is the run's status.
	Status Status
}

// Error implements error.
func (e *ConflictError) Error() string {
	switch e.Guard {
	case "version":
		return fmt.Sprintf("%v: record %q is at version %d, not %d", ErrConflict, clip(string(e.Key)), e.Current, e.Want)
	case "seq":
		return fmt.Sprintf("%v: the next seq is %d", ErrConflict, e.NextSeq)
	case "token":
		return fmt.Sprintf("%v: the last token is %v", ErrConflict, e.Token)
	default:
		return fmt.Sprintf("%v: the status is %d", ErrConflict, e.Status)
	}
}

// Is matches ErrConflict.
func (e *ConflictError) Is(target error) bool { return target == ErrConflict }

// StoreBehindError reports that the caller presented a number higher than any of the store: the
// store was restored from an older backup, or failed over to an older replica.
type StoreBehindError struct {
	// Field is "token" or "position".
	Field string
	// Presented is the caller's number, Known the highest one of the store.
	Presented, Known int64
}

// Error implements error.
func (e *StoreBehindError) Error() string {
	return fmt.Sprintf("%v: %s %d was presented, the highest known is %d; is it another run's, or was an old backup restored? Then raise the epoch (tapestore epoch raise)",
		ErrStoreBehind, e.Field, e.Presented, e.Known)
}

// Is matches ErrStoreBehind.
func (e *StoreBehindError) Is(target error) bool { return target == ErrStoreBehind }

// CorruptError names stored data that cannot be decoded, or that is missing.
type CorruptError struct {
	// Run is the run that the data belongs to; empty for data of the store itself.
	Run RunID
	// Cause describes the damage.
	Cause error
}

// Error implements error.
func (e *CorruptError) Error() string {
	if e.Run == "" {
		return fmt.Sprintf("%v: %v", ErrCorrupt, e.Cause)
	}
	return fmt.Sprintf("%v: run %q: %v", ErrCorrupt, clip(string(e.Run)), e.Cause)
}

// Is matches ErrCorrupt.
func (e *CorruptError) Is(target error) bool { return target == ErrCorrupt }

// InputError names what was refused and the reason: input that is malformed or beyond a limit, a
// write to a store that was opened read-only, or a schema or engine version that this program does
// not support.
type InputError struct {
	// Kind is ErrInvalid, ErrTooLarge or ErrUnsupported.
	Kind error
	// Field names what was refused. A field of the input has the name that the caller wrote: "run
	// id", "events[3].data"… With ErrUnsupported it is "write", "schema"…
	Field string
	// Problem describes the fault and the limit.
	Problem string
}

// Error implements error.
func (e *InputError) Error() string { return fmt.Sprintf("%v %s: %s", e.Kind, e.Field, e.Problem) }

// Unwrap returns the kind.
func (e *InputError) Unwrap() error { return e.Kind }

// clip shortens ids in messages to 64 bytes; ids may be long and contain any bytes.
func clip(s string) string {
	if len(s) > 64 {
		return s[:64] + "…"
	}
	return s
}
