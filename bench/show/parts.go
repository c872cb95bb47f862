package show

import (
	"fmt"
	"io"
	"strings"

	"github.com/tapestore/tapestore/bench"
)

// Parts writes a description of each part of the benchmark.
func Parts(w io.Writer, parts []bench.Part) error {
	var b strings.Builder
	for i, p := range parts {
		if i > 0 {
			b.WriteString("\n")
		}
		fmt.Fprintf(&b, "%s: %s\n%s\n", p.Name, p.Title, wrap(p.Doc, "  "))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// textWidth is the width of prose on a terminal, in columns.
const textWidth = 96

// wrap breaks a text into lines that each begin with indent.
func wrap(text, indent string) string {
	var lines []string
	line := indent
	for _, word := range strings.Fields(text) {
		if len(line)+1+len(word) > textWidth && line != indent {
			lines = append(lines, line)
			line = indent
		}
		if line != indent {
			line += " "
		}
		line += word
	}
	return strings.Join(append(lines, line), "\n")
}
