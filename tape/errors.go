package tape

import (
	"errors"
	"fmt"
)

// The kinds of errors that this package adds to those of runstore. An error of an operation matches
// exactly one of these or one of runstore's. Its text is the one that Tape's clients expect.
var (
	// ErrNoSuchRun: there is no run with that id.
	ErrNoSuchRun = errors.New("no such run")
	// ErrNoSuchEffect: the run has no effect under that key.
	ErrNoSuchEffect = errors.New("no such effect")
	// ErrNoSuchObligation: the run has no obligation with that seq.
	ErrNoSuchObligation = errors.New("no such obligation")
	// ErrNoSuchTask: there is no task with that id, or the caller does not hold its claim.
	ErrNoSuchTask = errors.New("no such task or lease mismatch")
	// ErrEffectExists: the effect that is to be begun exists, or another caller is beginning it, and it
	// cannot be read now. The caller must not act, and may try again.
	ErrEffectExists = errors.New("the effect exists")
	// ErrNotBegun: the completed effect was never begun.
	ErrNotBegun = errors.New("complete_effect before begin_effect")
	// ErrScope: the run was not granted the scope that an effect needs; see
	// [ScopeError].
	ErrScope = errors.New("scope not granted")
	// ErrRefused: a rule of the protocol forbids the request.
	ErrRefused = errors.New("refused")
	// ErrFenceRequired: a write presented no fence and the mode requires one.
	ErrFenceRequired = errors.New("a fence is required")
	// ErrFormat: a stored value is damaged or was written by a newer version of this software.
	ErrFormat = errors.New("unreadable value")
)

// Kinds returns the kinds of errors that this package adds, for tables that must be complete.
func Kinds() []error {
	return []error{
		ErrNoSuchRun, ErrNoSuchEffect, ErrNoSuchObligation, ErrNoSuchTask, ErrEffectExists, ErrNotBegun, ErrScope, ErrRefused,
		ErrFenceRequired, ErrFormat,
	}
}

// ScopeError names the scope that was missing. It matches ErrScope.
type ScopeError struct {
	// Scope is the scope that the effect needs; "<required>" if it named none although it had to.
	Scope string
}

// Error returns the protocol's text.
func (e *ScopeError) Error() string {
	return "policy violation — scope \"" + clip(e.Scope, 256) + "\" not granted to run"
}

// Is reports whether target is ErrScope.
func (e *ScopeError) Is(target error) bool { return target == ErrScope }

// refusal is an error that matches kind and has its own text.
type refusal struct {
	kind error
	text string
}

func (e *refusal) Error() string { return e.text }
func (e *refusal) Unwrap() error { return e.kind }

func refuse(kind error, format string, args ...any) error {
	return &refusal{kind: kind, text: fmt.Sprintf(format, args...)}
}
