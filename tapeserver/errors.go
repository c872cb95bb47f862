package tapeserver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tape"
)

// errorDomain is the domain of the ErrorInfo details.
const errorDomain = "tapestore"

// maxMessage is the maximal length of a status's message, in bytes. Clients in C and Python drop
// trailers of more than 8 KiB, and the status with them. The trailers contain the message twice,
// once with each byte that is not ASCII as three.
const maxMessage = 1024

// wire is how one kind of error appears on the wire.
type wire struct {
	kind error
	code codes.Code
	// reason is the reason in the ErrorInfo detail.
	reason string
	// bare omits the prefix that the protocol puts before a store's text.
	bare bool
}

// statusTable is the only mapping from errors to statuses. The protocol's own texts and codes come first;
// a client without fences gets no others in normal operation.
var statusTable = []wire{
	{kind: errUnauthenticated, code: codes.Unauthenticated, reason: "UNAUTHENTICATED", bare: true},
	{kind: errPermission, code: codes.PermissionDenied, reason: "PERMISSION_DENIED", bare: true},
	{kind: errUnchecked, code: codes.Unavailable, reason: "UNAVAILABLE", bare: true},
	{kind: tape.ErrNoSuchRun, code: codes.NotFound, reason: "NO_SUCH_RUN", bare: true},
	{kind: tape.ErrNoSuchEffect, code: codes.NotFound, reason: "NO_SUCH_EFFECT", bare: true},
	{kind: tape.ErrNoSuchObligation, code: codes.NotFound, reason: "NO_SUCH_OBLIGATION", bare: true},
	{kind: tape.ErrNoSuchTask, code: codes.NotFound, reason: "NO_SUCH_TASK", bare: true},
	// BeginEffect returns it as PERMISSION_DENIED; no other call returns it.
	{kind: tape.ErrEffectExists, code: codes.Unavailable, reason: "EFFECT_EXISTS", bare: true},
	{kind: tape.ErrNotBegun, code: codes.FailedPrecondition, reason: "EFFECT_NOT_BEGUN", bare: true},
	{kind: tape.ErrScope, code: codes.PermissionDenied, reason: "SCOPE_NOT_GRANTED"},
	{kind: tape.ErrRefused, code: codes.Internal, reason: "REFUSED"},
	{kind: tape.ErrFenceRequired, code: codes.FailedPrecondition, reason: "FENCE_REQUIRED", bare: true},
	{kind: tape.ErrFormat, code: codes.Internal, reason: "UNREADABLE_VALUE"},

	{kind: runstore.ErrNotFound, code: codes.NotFound, reason: "NO_SUCH_RUN"},
	// The lease has another holder: try again after its expiry, do not resend at once.
	{kind: runstore.ErrLeaseHeld, code: codes.Aborted, reason: "LEASE_HELD"},
	// Stop: the lease is gone, and resending cannot bring it back.
	{kind: runstore.ErrLeaseExpired, code: codes.FailedPrecondition, reason: "LEASE_EXPIRED"},
	{kind: runstore.ErrFenced, code: codes.FailedPrecondition, reason: "FENCED"},
	{kind: runstore.ErrNoProgress, code: codes.FailedPrecondition, reason: "NO_PROGRESS"},
	// Redo the read-modify-write.
	{kind: runstore.ErrConflict, code: codes.Aborted, reason: "CONFLICT"},
	{kind: runstore.ErrInvalid, code: codes.InvalidArgument, reason: "INVALID", bare: true},
	{kind: runstore.ErrTooLarge, code: codes.InvalidArgument, reason: "TOO_LARGE", bare: true},
	{kind: runstore.ErrUnsupported, code: codes.Unimplemented, reason: "UNSUPPORTED"},
	// Surely not applied: clients may resend, and many do so automatically.
	{kind: runstore.ErrUnavailable, code: codes.Unavailable, reason: "UNAVAILABLE"},
	{kind: runstore.ErrClosed, code: codes.Unavailable, reason: "CLOSED"},
	// Never Unavailable: no client may resend this blindly.
	{kind: runstore.ErrUnknownOutcome, code: codes.Unknown, reason: "UNKNOWN_OUTCOME"},
	// DataLoss and not FailedPrecondition: the caller holds proof of an acknowledged write that is
	// gone. Stopping one driver does not fix that, and among fenced writes it would go unnoticed;
	// an operator has to raise the epoch.
	{kind: runstore.ErrStoreBehind, code: codes.DataLoss, reason: "STORE_BEHIND"},
	{kind: runstore.ErrCorrupt, code: codes.DataLoss, reason: "CORRUPT"},
}

// statusOf returns the status of an operation's error.
func statusOf(err error) error {
	if err == nil {
		return nil
	}
	return lookup(err).status(err)
}

// beginEffectStatus returns the status of a BeginEffect's error. Tape's Python plugin treats every
// status but PERMISSION_DENIED as transient, and calls the counterparty without a recorded intent.
// So a refusal that resending cannot change is returned as PERMISSION_DENIED, with the ErrorInfo
// reason of the table, and so is that the effect exists and cannot be read. What the protocol itself
// returns as INTERNAL stays so, and other transient errors keep their status.
func beginEffectStatus(err error) error {
	if err == nil {
		return nil
	}
	w := lookup(err)
	switch w.kind {
	case errUnchecked, tape.ErrRefused, runstore.ErrConflict, runstore.ErrUnavailable, runstore.ErrClosed, runstore.ErrUnknownOutcome:
	default:
		w.code = codes.PermissionDenied
	}
	return w.status(err)
}

// beginEffect is the method whose client acts after every status but PERMISSION_DENIED.
const beginEffect = "BeginEffect"

// beginEffectFault is the error of a BeginEffect that panicked. A client that acted would do so
// although the intent may not be recorded.
var beginEffectFault = wire{code: codes.PermissionDenied, reason: "UNKNOWN_OUTCOME"}.status(
	errors.New("internal fault; see the server's log"))

// status returns the status of an error of the row's kind.
func (w wire) status(err error) error {
	// If the caller went away before the store was asked, the status says so. Once a write was in
	// flight, its unknown outcome matters more.
	if runstore.OutcomeOf(err) == runstore.NotApplied {
		switch {
		case errors.Is(err, context.Canceled):
			w.code = codes.Canceled
		case errors.Is(err, context.DeadlineExceeded):
			w.code = codes.DeadlineExceeded
		}
	}
	text := err.Error()
	if !w.bare {
		text = "tape store: " + text
	}
	// Owners and ids may contain any bytes; a status must be UTF-8.
	if text = strings.ToValidUTF8(text, "\uFFFD"); len(text) > maxMessage {
		text = strings.ToValidUTF8(text[:maxMessage], "") // drop a partial character at the end
	}
	s := status.New(w.code, text)
	detailed, detailErr := s.WithDetails(&errdetails.ErrorInfo{
		Reason: w.reason, Domain: errorDomain, Metadata: facts(err),
	})
	if detailErr != nil {
		return s.Err()
	}
	return detailed.Err()
}

// lookup returns the row of err's kind. An error that matches ErrUnknownOutcome is an unknown
// outcome, whatever else it matches: a repeat that the store did not evaluate may be UNAVAILABLE
// although the write before it was stored. An error that matches no row is an unknown outcome too.
func lookup(err error) wire {
	unknown := slices.IndexFunc(statusTable, func(w wire) bool { return w.kind == runstore.ErrUnknownOutcome })
	if errors.Is(err, runstore.ErrUnknownOutcome) {
		return statusTable[unknown]
	}
	for _, w := range statusTable {
		if errors.Is(err, w.kind) {
			return w
		}
	}
	return statusTable[unknown]
}

// facts returns the details of an error as metadata for programs.
func facts(err error) map[string]string {
	var fenced *runstore.FencedError
	var behind *runstore.StoreBehindError
	var limit *runstore.InputError
	var held *runstore.LeaseHeldError
	switch {
	case errors.As(err, &held):
		return map[string]string{
			"holder":       strings.ToValidUTF8(string(held.Holder.Owner), "\uFFFD"),
			"remaining_ms": fmt.Sprint(held.Remaining.Milliseconds()),
		}
	case errors.As(err, &fenced):
		return map[string]string{
			"presented_token": fmt.Sprint(int64(fenced.Presented)),
			"current_token":   fmt.Sprint(int64(fenced.Current)),
			"current_owner":   strings.ToValidUTF8(string(fenced.Holder.Owner), "\uFFFD"),
		}
	case errors.As(err, &behind):
		return map[string]string{
			"field": behind.Field, "presented": fmt.Sprint(behind.Presented), "known": fmt.Sprint(behind.Known),
		}
	case errors.As(err, &limit):
		return map[string]string{"field": limit.Field}
	default:
		return nil
	}
}
