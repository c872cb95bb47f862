// Package effort selects how much work the tests do.
//
// A quick run (the default, and make test) proves every rule once, with few rounds. A full run
// (make test-full) repeats what depends on chance and adds what takes long: more rounds, longer
// histories, every transport.
package effort

import "os"

// Variable is the environment variable that selects the effort: quick (the default) or full.
const Variable = "TAPESTORE_EFFORT"

// Full reports whether this process does a full run.
func Full() bool { return os.Getenv(Variable) == "full" }

// Name returns "quick" or "full", the effort of this process.
func Name() string {
	if Full() {
		return "full"
	}
	return "quick"
}

// Choose returns the value of quick or of full, according to the effort of this process.
func Choose[V any](quick, full V) V {
	if Full() {
		return full
	}
	return quick
}
