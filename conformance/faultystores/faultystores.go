// Package faultystores holds faulty stores. Each is the reference store behind a wrapper, or behind a
// network, that breaks one rule of the contract in a way that adapters break it in practice. Each
// names the case of the conformance suite that must catch it: a suite that passes one of these
// stores proves nothing about other stores.
package faultystores

import (
	"context"
	"fmt"
	"strings"

	"github.com/tapestore/tapestore/conformance"
)

// Broken is a faulty store: it breaks one rule.
type Broken struct {
	// Name says what is wrong, in small letters with hyphens.
	Name string
	// Breaks says in a sentence which rule it breaks, and how.
	Breaks string
	// Case is the case that must catch it, written guarantee/name.
	Case string
	// Open returns a harness that makes such stores.
	Open func() conformance.Harness
}

// All returns all faulty stores, beginning with those that break the fence and the lease.
func All() []Broken {
	var all []Broken
	for _, group := range [][]faultyStore{fenceStores(), leaseStores(), grantStores(), termStores(), tokenStores(), progressStores(), runnableStores(), notifyStores(), batchStores(), readStores(), replicaStores(), inputStores(), stepStores(), moveStores()} {
		for _, x := range group {
			all = append(all, Broken{Name: x.name, Breaks: x.breaks, Case: x.caught, Open: x.harness})
		}
	}
	return append(all, networkStores()...)
}

// maxAttempts is how often Check runs a case until it catches a store. Some flaws show only when
// two events coincide, such as a kill and a write in progress. A case under load makes that likely,
// and no case can make it certain.
const maxAttempts = 4

// Check runs the case that must catch b against b. caughtBy is the case's name if b failed the
// case. An error reports that b passed the case, or that the case could not be run.
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

// Unbroken returns a harness of the same wrapper without a fault. It passes the whole suite.
func Unbroken() conformance.Harness { return harness(nil) }
