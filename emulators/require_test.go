package emulators

import (
	"errors"
	"fmt"
	"testing"
)

// verdict records what Require does to a test.
type verdict struct{ got string }

func (v *verdict) Helper()               {}
func (v *verdict) Skipf(string, ...any)  { v.got = "skip" }
func (v *verdict) Fatalf(string, ...any) { v.got = "fail" }

func TestRequire(t *testing.T) {
	missing := fmt.Errorf("no engine: %w", ErrMissing)
	for _, c := range []struct {
		ci   string
		err  error
		want string
	}{
		{"", nil, ""},
		{"true", nil, ""},
		{"", missing, "skip"},
		{"false", missing, "skip"},
		{"true", missing, "fail"},
		{"1", missing, "fail"},
		{"yes", missing, "fail"},
		{"", errors.New("another"), "fail"},
	} {
		t.Setenv("CI", c.ci)
		var v verdict
		Require(&v, c.err)
		if v.got != c.want {
			t.Errorf("CI=%q, %v: got %q, want %q", c.ci, c.err, v.got, c.want)
		}
	}
}
