package show

import (
	"bytes"
	"cmp"
	"embed"
	"html/template"
	"io"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/tapestore/tapestore/bench"
)

//go:embed page.html chart.html page.css
var files embed.FS

var page = template.Must(template.New("page.html").Funcs(template.FuncMap{
	"count":    count,
	"date":     date,
	"duration": duration,
	"memory":   memory,
	"number":   number,
	"or":       func(a, b string) string { return cmp.Or(a, b) },
	"percent":  percent,
	"rfc":      func(t time.Time) string { return t.UTC().Format(time.RFC3339) },
	"where":    where,
}).ParseFS(files, "page.html", "chart.html", "page.css"))

// HTML writes the report as one page without scripts and without external resources. All text of
// the report is escaped.
func HTML(w io.Writer, r bench.Report) error {
	v := newView(r)
	var b bytes.Buffer // so that a page is written completely or not at all
	if err := page.Execute(&b, v); err != nil {
		return err
	}
	_, err := w.Write(bytes.Map(printable, b.Bytes()))
	return err
}

// printable replaces characters that a page may not contain.
func printable(r rune) rune {
	if unicode.IsControl(r) && r != '\n' && r != '\t' {
		return ' '
	}
	return r
}

// Verdict returns the class of the result: passed, failed or incomplete.
func (v *view) Verdict() string {
	switch {
	case len(v.Faults) > 0:
		return "failed"
	case len(v.Missing()) > 0 || len(v.Results) == 0 || v.Scale == bench.Smoke().Name:
		return "incomplete"
	default:
		return "passed"
	}
}

// Section is a part with its figures and tables on the page.
type Section struct {
	part
	Blocks []Block
}

// Block is a group with its figures and its table.
type Block struct {
	Name    string
	Figures []figure
	Table   table
}

// Sections returns the parts of the page.
func (v *view) Sections() (all []Section) {
	for _, p := range v.Parts {
		s := Section{part: p}
		for _, g := range p.Groups {
			s.Blocks = append(s.Blocks, Block{g.Name, v.figures(g), v.table(g)})
		}
		all = append(all, s)
	}
	return all
}

// table has a row for each result of a group, and a column for each metric.
type table struct {
	Params   []string
	Columns  []column
	Rows     []row
	Verified bool // some row describes what was read back
}

type row struct {
	System, Side string
	Apart        bool
	Params       []string
	Cells        []cell
	Verified     string
}

type cell struct{ Value, Range string }

func (v *view) table(g group) table {
	t := table{Columns: g.columns()}
	names := make(map[string]bool)
	for _, r := range g.Results {
		for name := range r.Params {
			names[name] = true
		}
	}
	for name := range names {
		t.Params = append(t.Params, name)
	}
	slices.Sort(t.Params)
	for _, result := range v.sorted(g.Results) {
		r := row{System: result.System, Side: result.Side, Apart: v.apart(result.System), Verified: result.Verified}
		t.Verified = t.Verified || r.Verified != ""
		for _, name := range t.Params {
			r.Params = append(r.Params, result.Params[name])
		}
		for _, c := range t.Columns {
			m, ok := c.of(result)
			switch {
			case !ok:
				r.Cells = append(r.Cells, cell{})
			case slices.Min(m.Samples) == slices.Max(m.Samples):
				r.Cells = append(r.Cells, cell{Value: number(m.Value())})
			default:
				r.Cells = append(r.Cells, cell{number(m.Value()), number(slices.Min(m.Samples)) + " – " + number(slices.Max(m.Samples))})
			}
		}
		t.Rows = append(t.Rows, r)
	}
	return t
}

// Promise is what a system guarantees, and what the part "pause" found.
type Promise struct {
	bench.System
	Marks []string
	Late  []Late
}

// Late is the outcome of a late write by a holder that was paused beyond its lease.
type Late struct {
	Side   string
	Stored bool
	Detail string
}

// Promises returns a row for each measured system: stores and their peers side by side.
func (v *view) Promises() (all []Promise) {
	for _, s := range v.Measured() {
		p := Promise{System: s, Marks: marks(s)}
		for _, r := range v.Results {
			if r.Part != pausePart || r.System != s.Name {
				continue
			}
			for _, m := range r.Metrics {
				if strings.Contains(m.Name, "stored") && len(m.Samples) > 0 {
					p.Late = append(p.Late, Late{cmp.Or(r.Side, s.Name), slices.Max(m.Samples) > 0, r.Verified})
					break
				}
			}
		}
		all = append(all, p)
	}
	return all
}

// pausePart is the part that pauses a holder beyond its lease. Its metric with "stored" in its name
// counts the late writes that a store kept.
const pausePart = "pause"
