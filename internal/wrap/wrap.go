// Package wrap breaks texts into lines for a terminal.
package wrap

import "strings"

// Text breaks text into lines of at most width bytes, each prefixed by indent. A longer word gets a
// line of its own.
func Text(text string, width int, indent string) string {
	var b strings.Builder
	column := 0
	for _, word := range strings.Fields(text) {
		switch {
		case column == 0:
			b.WriteString(indent)
			column = len(indent)
		case column+1+len(word) > width:
			b.WriteString("\n" + indent)
			column = len(indent)
		default:
			b.WriteByte(' ')
			column++
		}
		b.WriteString(word)
		column += len(word)
	}
	return b.String()
}
