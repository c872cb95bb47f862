package emulators

import "context"

// Fault is a fault that an emulator applies to some RPCs, from its creation to its Stop. Its
// methods are safe for concurrent use.
type Fault interface {
	// Count returns the number of RPCs to which the fault was applied so far.
	Count() int
	// Await blocks until the fault was applied to n RPCs.
	Await(ctx context.Context, n int) error
	// Stop ends the fault and delivers the RPCs that it holds. A second Stop does nothing.
	Stop()
}
