package conformance

import (
	"context"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// Harness tells the suite how to make stores of one engine. Its author writes
// New; everything else in an [Instance] but Open is optional, and what is left
// out is reported, case by case, as not applicable with the reason.
type Harness struct {
	// New makes an empty store of the case's own. Cases run in parallel.
	New func(t T) Instance
}

// Instance is one store under test.
type Instance struct {
	// Open returns another handle on the store. Each stands for a process of its
	// own; the suite closes it.
	Open func(ctx context.Context) (runstore.RunStore, error)

	// OpenSkewed returns a handle of a process whose own clock is wrong by skew.
	// An adapter that never reads the process's clock returns an ordinary handle.
	OpenSkewed func(ctx context.Context, skew time.Duration) (runstore.RunStore, error)

	// Advance moves the store clock forward. Nil means that cases which need time
	// to pass wait for it.
	Advance func(d time.Duration)

	// Stall holds writers up at the engine, after they asked it and before it
	// committed (an open transaction that holds their lock, a delayed request),
	// until resume is called. Readers go on.
	Stall func(t T) (resume func())

	// URL opens the same store by runstore.Open in another process. It makes the
	// cases possible that kill a process.
	URL string
}
