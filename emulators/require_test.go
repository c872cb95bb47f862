package emulators

import (
	"errors"
	"flag"
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

func TestSkipExamples(t *testing.T) {
	skip := flag.Lookup("test.skip")
	before := skip.Value.String()
	defer func() {
		if err := skip.Value.Set(before); err != nil {
			t.Error(err)
		}
	}()
	missing := fmt.Errorf("no engine: %w", ErrMissing)
	for _, c := range []struct {
		ci   string
		err  error
		want string
	}{
		{"", nil, before},
		{"", errors.New("another"), before},
		{"true", missing, before},
		{"", missing, "^Example"},
	} {
		t.Setenv("CI", c.ci)
		SkipExamples(c.err)
		if got := skip.Value.String(); got != c.want {
			t.Errorf("CI=%q, %v: go test skips %q, want %q", c.ci, c.err, got, c.want)
		}
	}
}
