// Package effort is the one knob that says how much work the tests do.
//
// A quick run (the default, and what `make test` does) proves every rule once, with few
// rounds. A full run (`make test-full`) repeats what depends on luck and runs what is
// long: more rounds, longer histories, every transport.
package effort

import "os"

// Variable is the environment variable that chooses the effort: quick (the default) or
// full.
const Variable = "TAPESTORE_EFFORT"

// Full reports whether this process does a full run.
func Full() bool { return os.Getenv(Variable) == "full" }

// Name returns quick or full.
func Name() string {
	if Full() {
		return "full"
	}
	return "quick"
}

// Choose returns quick or full, by the effort of this process.
func Choose[V any](quick, full V) V {
	if Full() {
		return full
	}
	return quick
}
