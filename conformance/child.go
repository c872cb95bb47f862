package conformance

// runChild turns this process into the child of a crash case if its parent
// started it as one. It then never returns.
func runChild() {}
