package kit

import "github.com/tapestore/tapestore/runstore"

// Capability returns a capability of a store that has it: the case declares that it needs it.
func Capability[T any](s runstore.RunStore) T {
	c, _ := runstore.As[T](s)
	return c
}

// StrictAtCommit reports whether the store declares that it judges strict leases at the commit.
func StrictAtCommit(s runstore.RunStore) bool {
	c, ok := runstore.As[runstore.StrictCommitter](s)
	return ok && c.StrictAtCommit()
}
