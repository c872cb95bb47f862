package wire_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/tapestore/tapestore/fence"
	"github.com/tapestore/tapestore/fence/internal/wire"
	"github.com/tapestore/tapestore/runstore"
)

// What Format writes is printable ASCII without spaces, and Parse reads it.
func FuzzWire(f *testing.F) {
	f.Add("accounts/7", int64(1))
	f.Add("caf\u00e9 100%+/\n", int64(fence.MaxToken))
	f.Add("%41", int64(0))
	f.Fuzz(func(t *testing.T, resource string, number int64) {
		p := fence.Presented{Resource: resource, Token: runstore.Token(number)}
		token, encoded, err := wire.Format(p)
		if err != nil {
			if valid := p.Validate(); !errors.Is(err, runstore.KindOf(valid)) {
				t.Fatalf("got %v, want %v", err, valid)
			}
			return
		}
		if i := strings.IndexFunc(token+encoded, func(r rune) bool { return r <= ' ' || r > '~' }); i >= 0 {
			t.Errorf("%q is not printable ASCII", token+encoded)
		}
		if got, err := wire.Parse([]string{token}, []string{encoded}); err != nil || got != p {
			t.Errorf("got %+v, %v; want %+v", got, err, p)
		}
	})
}

func TestParseRefuses(t *testing.T) {
	t.Parallel()
	if _, err := wire.Parse(nil, nil); !errors.Is(err, wire.ErrMissing) {
		t.Errorf("got %v, want ErrMissing", err)
	}
	for _, token := range []string{"", " 7", "+7", "007", "7.0", "0x7", "-7", "0", "9223372036854775808", "7,7"} {
		if p, err := wire.Parse([]string{token}, []string{"a"}); !errors.Is(err, runstore.ErrInvalid) {
			t.Errorf("token %q: got %v, %v; want ErrInvalid", token, p, err)
		}
	}
	for _, resource := range []string{"", "%", "%4", "%zz", "%00", "%ff"} {
		if p, err := wire.Parse([]string{"7"}, []string{resource}); !errors.Is(err, runstore.ErrInvalid) {
			t.Errorf("resource %q: got %v, %v; want ErrInvalid", resource, p, err)
		}
	}
}

func TestParseRefusesRepeatedHeaders(t *testing.T) {
	t.Parallel()
	one, two := []string{"7"}, []string{"7", "7"}
	for _, values := range [][2][]string{{one, nil}, {nil, one}, {one, two}, {two, one}} {
		if p, err := wire.Parse(values[0], values[1]); !errors.Is(err, runstore.ErrInvalid) || errors.Is(err, wire.ErrMissing) {
			t.Errorf("%q: got %v, %v; want ErrInvalid", values, p, err)
		}
	}
}

func TestMatch(t *testing.T) {
	t.Parallel()
	p := fence.Presented{Resource: "a", Token: 7}
	if err := wire.Match(p, "a"); err != nil {
		t.Error(err)
	}
	if err := wire.Match(p, "A"); !errors.Is(err, runstore.ErrInvalid) {
		t.Errorf("got %v, want ErrInvalid", err)
	}
}
