package emulators

import (
	"errors"
	"os"
	"strconv"
)

// TB is what Require needs of a test; *testing.T and *testing.B have it.
type TB interface {
	Helper()
	Skipf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// Require ends a test that could not get its engine. A missing engine skips the
// test on a person's machine and fails it where CI is set: an engine that every
// test skipped must not look green there. Any other error fails. A nil error lets
// the test go on.
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

// inCI reads the CI variable: any value but a false one means yes.
func inCI(value string) bool {
	yes, err := strconv.ParseBool(value)
	return value != "" && (err != nil || yes)
}
