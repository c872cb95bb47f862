package tapeclient

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strconv"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tape"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

var (
	// ErrDenied: the server returned PERMISSION_DENIED. From BeginEffect it means that the client
	// must not act, now or later under this grant; if the error matches tape.ErrEffectExists, it may
	// call BeginEffect again.
	ErrDenied = errors.New("permission denied")
	// ErrUnauthenticated: the server did not accept the client's token or certificate. Nothing was
	// applied. BeginEffect returns it together with ErrDenied.
	ErrUnauthenticated = errors.New("unauthenticated")
	// ErrEnded: the run has ended, so there is no lease to acquire; see [EndedError].
	ErrEnded = errors.New("the run has ended")
	// ErrParked: the run waits at a gate for a signal, without a lease. Work that gets this error
	// returns it.
	ErrParked = errors.New("the run is parked at a gate")
	// ErrUnsettled: the outcome of the effect is UNKNOWN, or PENDING in another run. Before the run
	// can continue, a reconciler or the driver of that run has to find it out.
	ErrUnsettled = errors.New("the outcome of the effect is unknown")
)

// Handlers of loops and of [Run.Act] return errors that match one of these to report more than a
// failed call. Any other error leaves open what the counterparty did.
var (
	// ErrPermanent: the counterparty has refused and will refuse every repeat. The effect becomes
	// FAILED, the obligation STUCK.
	ErrPermanent = errors.New("refused for good")
	// ErrNotSent: the counterparty was not called. The handler is called again later.
	ErrNotSent = errors.New("not sent")
)

// EndedError reports that a run granted no lease because it has ended. It matches ErrEnded and
// runstore.ErrConflict.
type EndedError struct{ Status tapepb.RunStatus }

// Error implements error.
func (e *EndedError) Error() string { return fmt.Sprintf("%v: %v", ErrEnded, e.Status) }

// Is reports whether target is ErrEnded or runstore.ErrConflict.
func (e *EndedError) Is(target error) bool {
	return target == ErrEnded || target == runstore.ErrConflict
}

// Error is the error of a failed call. Its Err is a kind of package runstore or a detail that
// matches one; its Cause is the gRPC status.
type Error struct {
	*runstore.OpError
	// Reason is the server's reason, from the status's ErrorInfo: "FENCED", "LEASE_HELD"… It is
	// empty if the server sent none.
	Reason string
	// Facts is the ErrorInfo's metadata.
	Facts map[string]string

	also []error // further errors that this one matches
}

// Unwrap returns the operation's error and the further kinds.
func (e *Error) Unwrap() []error { return append([]error{e.OpError}, e.also...) }

// reasons maps the server's reasons to the kinds that they match.
var reasons = map[string]struct {
	kind error // of package runstore; determines the result of OutcomeOf
	also error // of package tape
}{
	"UNAUTHENTICATED":    {runstore.ErrInvalid, ErrUnauthenticated},
	"PERMISSION_DENIED":  {kind: runstore.ErrInvalid}, // the code adds ErrDenied
	"NO_SUCH_RUN":        {runstore.ErrNotFound, tape.ErrNoSuchRun},
	"NO_SUCH_EFFECT":     {runstore.ErrConflict, tape.ErrNoSuchEffect},
	"NO_SUCH_OBLIGATION": {runstore.ErrConflict, tape.ErrNoSuchObligation},
	"NO_SUCH_TASK":       {runstore.ErrConflict, tape.ErrNoSuchTask},
	"EFFECT_EXISTS":      {runstore.ErrUnavailable, tape.ErrEffectExists},
	"EFFECT_NOT_BEGUN":   {runstore.ErrConflict, tape.ErrNotBegun},
	"SCOPE_NOT_GRANTED":  {runstore.ErrInvalid, tape.ErrScope},
	"REFUSED":            {runstore.ErrInvalid, tape.ErrRefused},
	"FENCE_REQUIRED":     {runstore.ErrInvalid, tape.ErrFenceRequired},
	"UNREADABLE_VALUE":   {runstore.ErrCorrupt, tape.ErrFormat},
	"LEASE_HELD":         {kind: runstore.ErrLeaseHeld},
	"LEASE_EXPIRED":      {kind: runstore.ErrLeaseExpired},
	"FENCED":             {kind: runstore.ErrFenced},
	"NO_PROGRESS":        {kind: runstore.ErrNoProgress},
	"CONFLICT":           {kind: runstore.ErrConflict},
	"INVALID":            {kind: runstore.ErrInvalid},
	"TOO_LARGE":          {kind: runstore.ErrTooLarge},
	"UNSUPPORTED":        {kind: runstore.ErrUnsupported},
	"UNAVAILABLE":        {kind: runstore.ErrUnavailable},
	"LIMIT":              {kind: runstore.ErrUnavailable},
	"CLOSED":             {kind: runstore.ErrUnavailable, also: runstore.ErrClosed},
	"UNKNOWN_OUTCOME":    {kind: runstore.ErrUnknownOutcome},
	"STORE_BEHIND":       {kind: runstore.ErrStoreBehind},
	"CORRUPT":            {kind: runstore.ErrCorrupt},
}

// bare maps statuses without a reason, from a server that sends none, to kinds. Codes that gRPC
// itself returns after a request may have been applied are missing here, so their outcome is
// unknown.
var bare = map[codes.Code]error{
	codes.InvalidArgument:    runstore.ErrInvalid,
	codes.NotFound:           runstore.ErrNotFound,
	codes.AlreadyExists:      runstore.ErrConflict,
	codes.PermissionDenied:   runstore.ErrInvalid,
	codes.FailedPrecondition: runstore.ErrConflict,
	codes.Aborted:            runstore.ErrConflict,
	codes.OutOfRange:         runstore.ErrInvalid,
	codes.Unimplemented:      runstore.ErrUnsupported,
	codes.Unauthenticated:    runstore.ErrInvalid,
}

// final reports whether err is a status without a reason that a repeat would get again, such as
// RESOURCE_EXHAUSTED for a message that is too large. Its outcome may nevertheless be unknown.
// UNAVAILABLE, DEADLINE_EXCEEDED, CANCELLED and UNKNOWN are not final: gRPC returns them when a
// connection has failed.
func final(err error) bool {
	var e *Error
	if !errors.As(err, &e) || e.Reason != "" {
		return false
	}
	switch status.Code(e.Cause) {
	case codes.OK, codes.Unavailable, codes.DeadlineExceeded, codes.Canceled, codes.Unknown:
		return false
	default:
		return true
	}
}

// errorOf returns the error of a call; nil for nil.
func errorOf(ctx context.Context, method string, req any, err error) error {
	if err == nil {
		return nil
	}
	s := status.Convert(err)
	e := &Error{OpError: &runstore.OpError{Op: path.Base(method), Run: runOf(req), Err: runstore.ErrUnknownOutcome, Cause: err}}
	if kind, ok := bare[s.Code()]; ok {
		e.Err = kind
	}
	for _, d := range s.Details() {
		info, ok := d.(*errdetails.ErrorInfo)
		if !ok || info.GetDomain() != "tapestore" {
			continue
		}
		e.Reason, e.Facts, e.Err = info.GetReason(), info.GetMetadata(), runstore.ErrUnknownOutcome
		if r, ok := reasons[e.Reason]; ok {
			if e.Err = e.detail(r.kind); r.also != nil {
				e.also = append(e.also, r.also)
			}
		}
	}
	if s.Code() == codes.PermissionDenied {
		e.also = append(e.also, ErrDenied)
	}
	if ctx.Err() != nil { // gRPC's status hides it
		e.Cause, e.also = fmt.Errorf("%w: %w", context.Cause(ctx), err), append(e.also, ctx.Err())
	}
	return e
}

// detail returns the error of a kind, with the details that the server sent.
func (e *Error) detail(kind error) error {
	number := func(name string) int64 {
		n, _ := strconv.ParseInt(e.Facts[name], 10, 64)
		return n
	}
	switch kind {
	case runstore.ErrFenced:
		f := &runstore.FencedError{
			Presented: runstore.Token(number("presented_token")), Current: runstore.Token(number("current_token")),
		}
		if owner := e.Facts["current_owner"]; owner != "" {
			f.Holder = runstore.Holder{Owner: runstore.Owner(owner), Token: f.Current}
		}
		return f
	case runstore.ErrLeaseHeld:
		return &runstore.LeaseHeldError{
			Holder:    runstore.Holder{Owner: runstore.Owner(e.Facts["holder"])},
			Remaining: time.Duration(number("remaining_ms")) * time.Millisecond,
		}
	case runstore.ErrStoreBehind:
		return &runstore.StoreBehindError{Field: e.Facts["field"], Presented: number("presented"), Known: number("known")}
	default:
		return kind
	}
}

// notSent returns the error of a call that was not made because its context had ended.
func notSent(ctx context.Context, method string, req any) error {
	return &Error{
		OpError: &runstore.OpError{Op: path.Base(method), Run: runOf(req), Err: runstore.ErrUnavailable, Cause: context.Cause(ctx)},
		also:    []error{ctx.Err()},
	}
}

// runOf returns the run that a request names.
func runOf(req any) runstore.RunID {
	if r, ok := req.(interface{ GetRunId() string }); ok {
		return runstore.RunID(r.GetRunId())
	}
	return ""
}
