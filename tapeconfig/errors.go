package tapeconfig

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/tapestore/tapestore/runstore"
)

// Fault is one fault of a file. It matches runstore.ErrInvalid.
type Fault struct {
	File string
	// Line counts from 1; 0 if the fault has no place.
	Line int
	// Key is the path of the key, such as tape.reactors.agent.lease_ttl_s; "" for a fault of the
	// whole file.
	Key string
	// Problem describes the fault and the limit, to follow the key.
	Problem string
}

// Error returns "tape.yaml:7: tape.reactors.agent.lease_ttl_s: problem".
func (f Fault) Error() string {
	s := f.File
	if f.Line > 0 {
		s += fmt.Sprintf(":%d", f.Line)
	}
	if f.Key != "" {
		s += ": " + f.Key
	}
	return s + ": " + f.Problem
}

// Unwrap returns runstore.ErrInvalid.
func (f Fault) Unwrap() error { return runstore.ErrInvalid }

// Error is every fault of a file, in the order of its lines. It matches runstore.ErrInvalid.
type Error struct{ Faults []Fault }

// Error returns the faults, one on each line.
func (e *Error) Error() string {
	lines := make([]string, len(e.Faults))
	for i, f := range e.Faults {
		lines[i] = f.Error()
	}
	return strings.Join(lines, "\n")
}

// Unwrap returns the faults.
func (e *Error) Unwrap() []error {
	all := make([]error, len(e.Faults))
	for i, f := range e.Faults {
		all[i] = f
	}
	return all
}

// errorOf returns the faults as an error, each once; nil if there are none.
func errorOf(faults []Fault) error {
	if len(faults) == 0 {
		return nil
	}
	e, seen := &Error{}, map[Fault]bool{}
	for _, f := range faults {
		if !seen[f] {
			seen[f] = true
			e.Faults = append(e.Faults, f)
		}
	}
	slices.SortStableFunc(e.Faults, func(a, b Fault) int { return cmp.Compare(a.Line, b.Line) })
	return e
}
