package adapter

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// Invalid returns the error of an option or another input that is refused. It matches ErrInvalid.
func Invalid(field, format string, args ...any) error {
	return &runstore.InputError{Kind: runstore.ErrInvalid, Field: field, Problem: fmt.Sprintf(format, args...)}
}

// ReadParams calls, for each parameter of a store URL, the function of its key with its value. It
// refuses keys that params does not have. YesNo, Duration and Number return such functions.
func ReadParams(u runstore.URL, params map[string]func(value string) error) error {
	keys := slices.Sorted(maps.Keys(params))
	if err := u.RejectUnknownParams(keys...); err != nil {
		return err
	}
	for _, key := range keys {
		if !u.Params.Has(key) {
			continue
		}
		if err := params[key](u.Params.Get(key)); err != nil {
			return err
		}
	}
	return nil
}

// Text returns a function that sets a field to the value of a parameter.
func Text[S ~string](field *S) func(string) error {
	return func(value string) error {
		*field = S(value)
		return nil
	}
}

// YesNo returns a function that sets a field to whether the value is sets, which is yes or no, and
// refuses any other value than these two.
func YesNo(key string, field *bool, sets string) func(string) error {
	return func(value string) error {
		if value != "yes" && value != "no" {
			return Invalid(key, "%q is neither yes nor no", value)
		}
		*field = value == sets
		return nil
	}
}

// Duration returns a function that sets a field to a duration other than 0, such as 10s.
func Duration(key string, field *time.Duration) func(string) error {
	return func(value string) error {
		d, err := time.ParseDuration(value)
		if err != nil || d == 0 {
			return Invalid(key, "%q is no duration such as 10s", value)
		}
		*field = d
		return nil
	}
}

// Number returns a function that sets a field to an integer other than 0.
func Number[N int | int64](key string, field *N) func(string) error {
	return func(value string) error {
		n, err := strconv.ParseInt(value, 10, strconv.IntSize)
		if err != nil || n == 0 {
			return Invalid(key, "%q is no number above 0", value)
		}
		*field = N(n)
		return nil
	}
}

// SplitAddress returns the three parts of an address //project/instance/name. kind says what the
// name is of, for the message of an address in another form.
func SplitAddress(u runstore.URL, kind string) (project, instance, name string, err error) {
	path, ok := strings.CutPrefix(u.Address, "//")
	parts := strings.Split(path, "/")
	if !ok || len(parts) != 3 {
		return "", "", "", Invalid("store URL", "%s: write %s://project/instance/%s", u, u.Scheme, kind)
	}
	return parts[0], parts[1], parts[2], nil
}
