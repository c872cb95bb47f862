package tape

import (
	"errors"
	"fmt"
)

// The kinds of errors that this package adds to those of the store. An error of
// an operation matches exactly one of these or one of runstore's; its text is the
// one that Tape's clients know.
var (
	// ErrNoSuchRun: there is no run of that id.
	ErrNoSuchRun = errors.New("no such run")
	// ErrNoSuchEffect: the run has no effect under that key.
	ErrNoSuchEffect = errors.New("no such effect")
	// ErrNoSuchObligation: the run has no obligation of that seq.
	ErrNoSuchObligation = errors.New("no such obligation")
	// ErrNoSuchTask: there is no task of that id, or its claim is not the caller's.
	ErrNoSuchTask = errors.New("no such task or lease mismatch")
	// ErrNotBegun: an effect was completed that was never begun.
	ErrNotBegun = errors.New("complete_effect before begin_effect")
	// ErrScope: the run was not granted the scope that an effect needs; see
	// [ScopeError].
	ErrScope = errors.New("scope not granted")
	// ErrRefused: a rule of the protocol forbids the request.
	ErrRefused = errors.New("refused")
	// ErrFenceRequired: a write presented no fence and the mode is FenceRequired.
	ErrFenceRequired = errors.New("a fence is required")
	// ErrFormat: a stored value cannot be read: it is damaged, or of a newer
	// version of this software.
	ErrFormat = errors.New("unreadable value")
)

// Kinds lists the kinds of errors that this package adds, for tables that must
// be complete.
func Kinds() []error {
	return []error{
		ErrNoSuchRun, ErrNoSuchEffect, ErrNoSuchObligation, ErrNoSuchTask, ErrNotBegun, ErrScope, ErrRefused, ErrFenceRequired, ErrFormat,
	}
}

// ScopeError names the scope that was missing. It matches ErrScope.
type ScopeError struct {
	// Scope is the scope that the effect needs: "<required>" when it had to name
	// one and named none.
	Scope string
}

// Error implements error, in the protocol's words.
func (e *ScopeError) Error() string {
	return "policy violation — scope \"" + clip(e.Scope, 256) + "\" not granted to run"
}

// Is matches ErrScope.
func (e *ScopeError) Is(target error) bool { return target == ErrScope }

// refusal is an error of a kind with words of its own.
type refusal struct {
	kind error
	text string
}

func (e *refusal) Error() string { return e.text }
func (e *refusal) Unwrap() error { return e.kind }

func refuse(kind error, format string, args ...any) error {
	return &refusal{kind: kind, text: fmt.Sprintf(format, args...)}
}
