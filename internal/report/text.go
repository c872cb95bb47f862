package report

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"unicode"

	"github.com/tapestore/tapestore/internal/wrap"
)

// Text writes the run for a terminal.
func Text(w io.Writer, r Run) error {
	m := newMatrix(r)
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n%s, in %s on %s.\ntapestore %s on %s\n\n", plain(m.Result()), m.Counts(), Duration(m.MS), m.Began.UTC().Format("2006-01-02 15:04 UTC"),
		plain(cmp.Or(m.Version, "of unknown version")), plain(m.Platform))
	m.lines(&b, "passed/failed/not applicable", m.Rows, func(r row) string { return fmt.Sprintf("%-3s %s", r.ID, r.Name) }, cell.text)
	m.textRPCs(&b)
	m.textFailures(&b)
	m.textExempt(&b)
	m.textEngines(&b)
	_, err := io.WriteString(w, b.String())
	return err
}

// lines writes a line for each row, the last for all cases, and a column for each engine.
func (m *matrix) lines(b *strings.Builder, title string, rows []row, name func(row) string, text func(cell) string) {
	tw := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	line := func(first string, cell func(engine int) string) {
		cells := []string{first}
		for i := range m.Columns {
			cells = append(cells, cell(i))
		}
		fmt.Fprintln(tw, strings.Join(cells, "\t"))
	}
	line(title, func(i int) string { return plain(m.Columns[i].Name) })
	line("", func(i int) string { return plain(m.Columns[i].Where()) })
	for _, r := range rows {
		line(plain(name(r)), func(i int) string { return text(r.Cells[i]) })
	}
	line("all", func(i int) string { return m.Total[i].text() })
	_ = tw.Flush() // a strings.Builder never fails
}

// text returns 17/1/2, with a word if the result is not a plain pass.
func (c cell) text() string {
	if c.None() {
		return cmp.Or(c.Absent, "none")
	}
	text := fmt.Sprintf("%d/%d/%d", c.Passed, c.Failed, c.NotApplicable)
	if c.Failed > 0 {
		text += " FAILED"
	}
	return text
}

func (m *matrix) textFailures(b *strings.Builder) {
	if len(m.Failures) > 0 {
		b.WriteString("\nFailed\n")
	}
	for _, f := range m.Failures {
		fmt.Fprintf(b, "  %s on %s\n", plain(f.Case), plain(f.Engine))
		for line := range strings.Lines(f.Reason) {
			fmt.Fprintf(b, "    %s\n", plain(strings.TrimRight(line, "\r\n")))
		}
		if f.Doc != "" {
			fmt.Fprintf(b, "%s\n", wrap.Text("about the case: "+plain(f.Doc), 100, "    "))
		}
	}
}

func (m *matrix) textExempt(b *strings.Builder) {
	if len(m.Exempt) > 0 {
		b.WriteString("\nNot applicable\n")
	}
	for _, e := range m.Exempt {
		fmt.Fprintf(b, "  %s\n", plain(e.Reason))
		for _, g := range e.Groups {
			fmt.Fprintf(b, "%s\n", wrap.Text(plain(strings.Join(g.Engines, ", ")+": "+strings.Join(g.Cases, ", ")), 96, "    "))
		}
	}
}

func (m *matrix) textEngines(b *strings.Builder) {
	b.WriteString("\nEngines\n")
	for _, c := range m.Columns {
		if r := c.Report; r != nil {
			fmt.Fprintf(b, "  %s: %s (%s), in %s\n", plain(c.Name), plain(r.Version), plain(r.Tier), Duration(c.MS))
			if c.Started != "" {
				fmt.Fprintf(b, "    started: %s\n", plain(c.Started))
			}
			fmt.Fprintf(b, "    capabilities: %s\n", plain(cmp.Or(strings.Join(r.Capabilities, ", "), "none")))
		}
		for _, why := range []struct{ what, reason string }{{"missing", c.Missing}, {"broken", c.Broken}} {
			if why.reason != "" {
				fmt.Fprintf(b, "  %s: %s: %s\n", plain(c.Name), why.what, plain(why.reason))
			}
		}
	}
	var unproved strings.Builder
	for _, c := range m.Columns {
		if text := c.unproved(); text != "" {
			fmt.Fprintf(&unproved, "%s\n", wrap.Text(plain(c.Name)+": "+text, 96, "  "))
		}
	}
	if unproved.Len() > 0 {
		fmt.Fprintf(b, "\nWhat a local run cannot prove\n%s", unproved.String())
	}
}

// plain returns a text on one line, without terminal control sequences.
func plain(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, s)
}
