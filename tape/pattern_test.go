package tape_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tape"
)

func TestPatterns(t *testing.T) {
	for _, test := range []struct {
		pattern, subject string
		want             bool
	}{
		{"", "/tape/run", true},
		{"", "", true},
		{"**", "/tape/run", true},
		{"/**", "/tape/run", true},
		{"/tape/**", "/tape", true},
		{"/tape/**", "/tape/", true},
		{"/tape/**", "/tapes", false},
		{"/tape/effect/**", "/tape/effect/confirmed/x/y", true},
		{"/tape/effect/*", "/tape/effect/confirmed/x", false},
		{"/tape/effect/*/x", "/tape/effect/confirmed/x", true},
		{"/tape/effect/*/x", "/tape/effect//x", true},
		{"/tape/effect/*/x", "/tape/effect/confirmed/x/y", false},
		{"/tape/effect/*/x", "/tape/effect/confirmed", false},
		{"/tape/Effect", "/tape/effect", false},
		{"/tape/con*", "/tape/confirmed", false},
		{"/a/*/b/**", "/a/x/b", true},
		{"/a/**/b", "/a/x/b", false},
		{"/a/**/b", "/a/**/b", false},
		{"/a/", "/a", false},
		{"/a", "/a/", false},
	} {
		p, err := tape.ParsePattern(test.pattern)
		if err != nil {
			t.Fatal(err)
		}
		if got := p.Match(test.subject); got != test.want {
			t.Errorf("pattern %q and subject %q: match is %v, want %v", test.pattern, test.subject, got, test.want)
		}
	}
	if !(tape.Pattern{}).Match("/tape/run") {
		t.Error("the zero pattern does not match every subject")
	}
}

func TestPatternsThatAreRefused(t *testing.T) {
	for text, want := range map[string]error{
		"/a/\xff": runstore.ErrInvalid,
		"/" + strings.Repeat("a", tape.MaxPattern): runstore.ErrTooLarge,
	} {
		if _, err := tape.ParsePattern(text); !errors.Is(err, want) || !strings.Contains(err.Error(), "subject_pattern") {
			t.Errorf("pattern of %d bytes: %v, want %v that names the field", len(text), err, want)
		}
	}
	if _, err := tape.ParsePattern("/" + strings.Repeat("a", tape.MaxPattern-1)); err != nil {
		t.Error(err)
	}
}
