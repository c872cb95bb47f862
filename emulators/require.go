package emulators

import (
	"errors"
	"flag"
	"os"
	"strconv"
)

// TB is the part of testing.TB that Require needs.
type TB interface {
	Helper()
	Skipf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// Require ends a test that could not get its engine. A missing engine skips the test on a person's
// machine and fails it where CI is set: an engine that every test skipped must not look green
// there. Any other error fails the test. A nil error lets the test continue.
func Require(t TB, err error) {
	t.Helper()
	switch {
	case err == nil:
	case errors.Is(err, ErrMissing) && !inCI(os.Getenv("CI")):
		t.Skipf("%v", err)
	default:
		t.Fatalf("%v", err)
	}
}

// inCI reports whether a value of the CI variable means yes: any but a false one does.
func inCI(value string) bool {
	yes, err := strconv.ParseBool(value)
	return value != "" && (err != nil || yes)
}

// SkipExamples does for the examples of a package what Require does for a test: on a person's
// machine it makes go test skip them if err says that their engine is missing. TestMain calls it.
func SkipExamples(err error) {
	if errors.Is(err, ErrMissing) && !inCI(os.Getenv("CI")) {
		_ = flag.Set("test.skip", "^Example") // go test has this flag
	}
}
