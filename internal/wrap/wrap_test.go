package wrap

import "testing"

func TestText(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		text   string
		width  int
		indent string
		want   string
	}{
		{"", 10, "  ", ""},
		{"one two\n three", 10, "", "one two\nthree"},
		{"one two three", 9, "  ", "  one two\n  three"},
		{"a word-that-is-longer b", 6, " ", " a\n word-that-is-longer\n b"},
	} {
		if got := Text(c.text, c.width, c.indent); got != c.want {
			t.Errorf("Text(%q, %d, %q) = %q, want %q", c.text, c.width, c.indent, got, c.want)
		}
	}
}
