package report

import (
	"bytes"
	"embed"
	"html/template"
	"io"
	"strings"
	"time"
	"unicode"

	"github.com/tapestore/tapestore/conformance"
	"github.com/tapestore/tapestore/emulators"
)

//go:embed page.html page.css
var files embed.FS

var page = template.Must(template.New("page.html").Funcs(template.FuncMap{
	"cases":    Cases,
	"date":     func(t time.Time) string { return t.UTC().Format("2 January 2006, 15:04 UTC") },
	"duration": Duration,
	"list":     list,
	"prose":    prose,
	"rfc":      func(t time.Time) string { return t.UTC().Format(time.RFC3339) },
	"tier":     tier,
}).ParseFS(files, "page.html", "page.css"))

// HTML writes the run as one page, without scripts and external resources. Text from cases and
// engines is escaped.
func HTML(w io.Writer, r Run) error {
	var b bytes.Buffer // so that a partial page is never written
	if err := page.Execute(&b, newMatrix(r)); err != nil {
		return err
	}
	_, err := w.Write(bytes.Map(printable, b.Bytes()))
	return err
}

// printable replaces control characters, which a page must not contain, by spaces.
func printable(r rune) rune {
	if unicode.IsControl(r) && r != '\n' && r != '\t' {
		return ' '
	}
	return r
}

// State returns the cell's state in one word.
func (c cell) State() string {
	switch {
	case c.Failed > 0:
		return "failed"
	case c.Passed > 0:
		return "passed"
	case c.NotApplicable > 0:
		return "exempt"
	default:
		return "absent"
	}
}

// limits is what a run cannot prove on an engine.
type limits struct{ Engine, Text string }

// Unproved lists what the run cannot prove.
func (m *matrix) Unproved() (all []limits) {
	for _, c := range m.Columns {
		if text := c.unproved(); text != "" {
			all = append(all, limits{c.Name, text})
		}
	}
	return all
}

// tier describes in a few words where an engine was running.
func tier(r *conformance.Report) string {
	switch {
	case r.Engine == "memory":
		return "in memory, in the command's own process"
	case r.Tier == "embedded":
		return "embedded: in the command's own process"
	case r.Tier == emulators.TierLocal:
		return "local: a private server of this machine's programs"
	case r.Tier == emulators.TierEmulator:
		return "emulated: a stand-in for the service"
	case r.Tier == emulators.TierContainer:
		return "in a container on this machine"
	case r.Tier == emulators.TierService:
		return "a server that was running already"
	default:
		return r.Tier
	}
}

// piece is a part of a text, either code or prose.
type piece struct {
	Text string
	Code bool
}

// prose splits a text at its `code` parts.
func prose(text string) (pieces []piece) {
	for i, part := range strings.Split(text, "`") {
		if part != "" {
			pieces = append(pieces, piece{part, i%2 == 1})
		}
	}
	return pieces
}
