// Package gallery holds stores that are broken on purpose. Each is the reference
// store behind a wrapper, or behind a network, that breaks one rule of the contract,
// the way adapters break it in practice, and names the case of the conformance suite that has to
// catch it. A suite that lets one of them pass proves nothing about the others.
package gallery

import (
	"context"
	"fmt"
	"strings"

	"github.com/tapestore/tapestore/conformance"
)

// Broken is a store that breaks one rule.
type Broken struct {
	// Name says what is wrong with it, in small letters with hyphens.
	Name string
	// Breaks says in a sentence which rule it breaks, and how.
	Breaks string
	// Case is the case that must catch it, written guarantee/name.
	Case string
	// Open returns a harness that makes such stores.
	Open func() conformance.Harness
}

// Stores returns all broken stores, those that break the lease first.
func Stores() []Broken {
	var all []Broken
	for _, group := range [][]faultyStore{fenceStores(), leaseStores(), grantStores(), tokenStores(), progressStores(), runnableStores(), notifyStores(), batchStores(), readStores(), replicaStores(), inputStores(), stepStores()} {
		for _, x := range group {
			all = append(all, Broken{Name: x.name, Breaks: x.breaks, Case: x.caught, Open: x.harness})
		}
	}
	return append(all, networkStores()...)
}

// chances is how often a case may meet a broken store. Some flaws show only when two
// things fall together, a kill and a write under way, which a case that works under load
// makes likely, and no case can make certain.
const maxAttempts = 4

// Check runs the case that must catch b against it. caughtBy is the case's name
// if the store failed it, and the error tells of a case that it got through, or
// that could not be run.
func Check(ctx context.Context, b Broken) (caughtBy string, err error) {
	c, ok := conformance.Find(b.Case)
	if !ok {
		return "", fmt.Errorf("broken store %s: there is no case %q", b.Name, b.Case)
	}
	var result conformance.Result
	for range maxAttempts {
		if result = conformance.RunCase(ctx, b.Open(), c); result.Status != conformance.Passed || ctx.Err() != nil {
			break
		}
	}
	switch {
	case ctx.Err() != nil:
		return "", fmt.Errorf("broken store %s: %w", b.Name, context.Cause(ctx))
	case result.Status != conformance.Failed:
		return "", fmt.Errorf("broken store %s: %s does not catch it: %s %s", b.Name, b.Case, result.Status, result.Reason)
	case strings.Contains(result.Reason, "panic: "):
		return "", fmt.Errorf("broken store %s: %s panicked instead of catching it: %s", b.Name, b.Case, result.Reason)
	}
	return b.Case, nil
}

// Unbroken returns a harness of the same wrapper with nothing broken. It passes
// the whole suite.
func Unbroken() conformance.Harness { return harness(nil) }
