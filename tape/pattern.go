package tape

import (
	"strings"
)

// MaxPattern is the maximal length of a subject pattern, in bytes.
const MaxPattern = 1 << 10

// Pattern selects subjects by their segments, which '/' separates. A segment "*" matches any one
// segment; "**" as the last segment matches any number of segments, including none; every other
// segment matches itself. A pattern with "**" before its end matches nothing. The zero Pattern
// matches every subject.
type Pattern struct {
	segments []string // without a final "**"
	open     bool     // the pattern ended in "**"
	never    bool     // "**" came before the end
}

// ParsePattern parses a pattern. The empty text matches every subject.
//
// Errors: runstore.ErrInvalid for text that is not UTF-8, runstore.ErrTooLarge above [MaxPattern]
// bytes; both name the field subject_pattern.
func ParsePattern(text string) (Pattern, error) {
	const name = "subject_pattern"
	if err := checkText(field{name, text}); err != nil {
		return Pattern{}, err
	}
	if err := checkLength(name, text, MaxPattern); err != nil {
		return Pattern{}, err
	}
	if text == "" {
		return Pattern{}, nil
	}
	p := Pattern{segments: strings.Split(text, "/")}
	last := len(p.segments) - 1
	if p.segments[last] == "**" {
		p.segments, p.open = p.segments[:last], true
	}
	for _, s := range p.segments {
		p.never = p.never || s == "**"
	}
	return p, nil
}

// Match reports whether the pattern selects a subject.
func (p Pattern) Match(subject string) bool {
	if p.never {
		return false
	}
	if p.segments == nil {
		return true
	}
	rest, more := subject, true
	for _, want := range p.segments {
		if !more {
			return false
		}
		var segment string
		segment, rest, more = strings.Cut(rest, "/")
		if want != "*" && want != segment {
			return false
		}
	}
	return p.open || !more
}
