package command

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/tapestore/tapestore/conformance"
	"github.com/tapestore/tapestore/conformance/engines"
)

// reports are the formats of a report, by name.
var reports = map[string]func(io.Writer, conformance.Report) error{"text": reportText, "json": reportJSON}

func reportJSON(w io.Writer, r conformance.Report) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(r)
}

func reportText(w io.Writer, r conformance.Report) error {
	fmt.Fprintf(w, "%s %s (%s), capabilities: %s\n", r.Engine, r.Version, r.Tier, strings.Join(r.Capabilities, ", "))
	for _, g := range r.Guarantees {
		fmt.Fprintf(w, "\n%s %s\n", g.ID, conformance.Title(g.ID))
		for _, c := range g.Cases {
			mark := map[conformance.Status]string{
				conformance.Passed: "passed", conformance.Failed: "FAILED", conformance.NotApplicable: "not applicable",
			}[c.Status]
			fmt.Fprintf(w, "  %-14s %-70s %6d ms\n", mark, c.Name, c.MS)
			if c.Reason != "" {
				fmt.Fprintf(w, "  %14s %s\n", "", strings.ReplaceAll(c.Reason, "\n", "\n"+strings.Repeat(" ", 17)))
			}
		}
	}
	if text := engines.Unproved(r.Engine, r.Tier); text != "" {
		fmt.Fprintf(w, "\nWhat a local run cannot prove\n%s\n", wrap(text, 96, "  "))
	}
	_, err := fmt.Fprintf(w, "\n%d passed, %d failed, %d not applicable\n", r.Summary.Passed, r.Summary.Failed, r.Summary.NotApplicable)
	return err
}

// wrap breaks a text into lines of at most so many bytes, each after indent. Longer
// words stand alone.
func wrap(text string, width int, indent string) string {
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
