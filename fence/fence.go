package fence

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/tapestore/tapestore/runstore"
)

const (
	// MaxResource is the longest name of a resource, in bytes: twice the longest run id. A name
	// that is percent-encoded in a header stays below 2 KiB, and an index of PostgreSQL holds it.
	MaxResource = 512

	// MaxToken is the highest token that a store mints: the last one of the last epoch. Checkers
	// refuse tokens above it, because such a token would shut out every holder for good.
	MaxToken = runstore.Token((int64(runstore.MaxEpoch)+1)<<40 - 1)
)

// Checker remembers the highest token seen per resource and refuses lower ones. It is safe for
// concurrent use.
type Checker interface {
	// Check records token as seen on resource, unless a higher one was seen there before.
	//
	// Guarantees: once a Check of a token has returned nil, every Check of a lower token of that
	// resource that begins afterwards is refused. Checks of equal tokens succeed, so one holder may
	// call as often as it likes.
	//
	// It cannot refuse a stale token before it has seen a newer one: a new holder announces itself
	// by a call under its token before it acts. Nor does it cover what the caller does after the
	// check. All tokens of a resource must come from one run.
	//
	// After any error the caller must not do what the token was presented for. Errors:
	//   - ErrFenced (as *StaleError and *runstore.FencedError): refused, a higher token was seen.
	//     The presenter must stop: another holder has replaced it.
	//   - ErrInvalid, ErrTooLarge (as *runstore.InputError): the resource or token is malformed.
	//     Nothing was recorded.
	//   - ErrUnavailable: the token was neither compared nor recorded; a repeat is safe. A
	//     *FullError matches it.
	//   - ErrUnknownOutcome: the token may or may not have been recorded, and the caller does not
	//     know whether it is stale. A repeat is safe: it records nothing twice.
	Check(ctx context.Context, resource string, token runstore.Token) error
}

// Presented is a fence as a request carries it: the token of the caller's grant, and the resource
// that the token guards.
type Presented struct {
	Resource string
	Token    runstore.Token
}

// Validate reports whether the resource and the token are well formed. A resource is 1 to
// [MaxResource] bytes of UTF-8 without NUL; a token is between 1 and [MaxToken]. Errors: ErrInvalid,
// ErrTooLarge, as *runstore.InputError.
func (p Presented) Validate() error {
	switch {
	case p.Resource == "":
		return invalid("resource", "is empty, the limits are 1 and %d bytes", MaxResource)
	case len(p.Resource) > MaxResource:
		return &runstore.InputError{
			Kind: runstore.ErrTooLarge, Field: "resource",
			Problem: fmt.Sprintf("%d bytes, the limit is %d", len(p.Resource), MaxResource),
		}
	case !utf8.ValidString(p.Resource) || strings.ContainsRune(p.Resource, 0):
		return invalid("resource", "is not UTF-8 without NUL")
	case p.Token < 1 || p.Token > MaxToken:
		return invalid("token", "%d is out of range, the limits are 1 and %d", int64(p.Token), int64(MaxToken))
	default:
		return nil
	}
}

// Announce presents the token of a new holder to several checkers, so that each of them refuses the
// former holder from then on. A holder calls it before it acts. It tries every checker and returns
// all their errors joined; after an error the holder must not act.
func Announce(ctx context.Context, p Presented, checkers ...Checker) error {
	errs := make([]error, len(checkers))
	for i, c := range checkers {
		errs[i] = c.Check(ctx, p.Resource, p.Token)
	}
	return errors.Join(errs...)
}

type contextKey struct{}

// NewContext returns a context that carries a fence which a service has checked. The middleware of
// this module calls it.
func NewContext(ctx context.Context, p Presented) context.Context {
	return context.WithValue(ctx, contextKey{}, p)
}

// FromContext returns the checked fence of the request, for a handler that presents it once more
// with its write. It reports false if the request was let through without a fence.
func FromContext(ctx context.Context) (p Presented, ok bool) {
	p, ok = ctx.Value(contextKey{}).(Presented)
	return p, ok
}

// ready reports why a check cannot begin: a malformed fence, or a context that has ended.
func ready(ctx context.Context, p Presented) error {
	if err := p.Validate(); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return fmt.Errorf("fence: check %q: %w: %w", p.Resource, runstore.ErrUnavailable, foreignError{context.Cause(ctx)})
	}
	return nil
}

// foreignError wraps the cause of a context, for example the loss of the caller's lease. It keeps the
// text and hides the runstore kinds, because the checker has compared nothing.
type foreignError struct{ err error }

func (e foreignError) Error() string { return e.err.Error() }
func (e foreignError) Is(target error) bool {
	return !slices.Contains(runstore.Kinds(), target) && errors.Is(e.err, target)
}

func invalid(field, format string, args ...any) error {
	return &runstore.InputError{Kind: runstore.ErrInvalid, Field: field, Problem: fmt.Sprintf(format, args...)}
}
