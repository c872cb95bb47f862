// Package harness declares what the suite of package conformance and the author of an adapter have
// in common: the [Harness] that makes stores, what a store under test can offer ([Instance],
// [Network], [Server], [Aborts]), and the [Case] that runs on it with its [Env].
//
// Package conformance has the same names and runs the suite, so a test imports that package alone.
package harness
