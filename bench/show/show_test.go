package show

import (
	"bytes"
	"encoding/xml"
	"errors"
	"html"
	"io"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/tapestore/tapestore/bench"
)

func pageOf(t *testing.T, r bench.Report) string {
	t.Helper()
	var b bytes.Buffer
	if err := HTML(&b, r); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func textOf(t *testing.T, r bench.Report) string {
	t.Helper()
	var b bytes.Buffer
	if err := Text(&b, r); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// TestEveryResultIsShown checks that every result has a row in a table of the page, and that every
// figure is in the text.
func TestEveryResultIsShown(t *testing.T) {
	t.Parallel()
	r := sampleReport()
	page, text := pageOf(t, r), textOf(t, r)
	if got := strings.Count(page, `<th scope="row">`) - len(newView(r).Measured()); got != len(r.Results) {
		t.Errorf("the page has %d rows of figures, want one for each of %d results", got, len(r.Results))
	}
	for _, result := range r.Results {
		for _, m := range result.Metrics {
			if want := `<td class="n">` + number(m.Value()); !strings.Contains(page, want) {
				t.Errorf("page: no cell %s of %s %s %s", want, result.System, result.Side, m.Name)
			}
			if want := number(m.Value()); !strings.Contains(text, want) {
				t.Errorf("text: no figure %s of %s %s %s", want, result.System, result.Side, m.Name)
			}
		}
	}
	for _, want := range []string{"furlongs", "oddity"} { // from a part that no plot names
		if !strings.Contains(page, want) || !strings.Contains(text, want) {
			t.Errorf("%q is not in both forms", want)
		}
	}
}

// TestPageIsSelfContained checks that the report's text is escaped, that the page loads nothing,
// and that it is well-formed.
func TestPageIsSelfContained(t *testing.T) {
	t.Parallel()
	page := pageOf(t, sampleReport())
	for _, bad := range []string{"<script", "<b>here", "http:", "https:", "url(", "@import", "ZgotmplZ", "NaN", "Inf"} {
		if strings.Contains(page, bad) {
			t.Errorf("the page has %q", bad)
		}
	}
	for _, want := range []string{"4,210 are stored &lt;script&gt;", "no initdb &lt;b&gt;here&lt;/b&gt;", "prefers-color-scheme: dark", "Example CPU @ 2.60GHz",
		"tapestore bench --all --format html", "a journal of 100000 events was left out", "peers are measured by another command", "11 min 5 s"} {
		if !strings.Contains(page, want) && !strings.Contains(html.UnescapeString(page), want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	for rest := page; ; {
		_, after, ok := strings.Cut(rest, "<svg")
		if !ok {
			break
		}
		svg, then, ok := strings.Cut(after, "</svg>")
		if !ok {
			t.Fatal("a drawing has no end")
		}
		rest = then
		d := xml.NewDecoder(strings.NewReader("<svg" + svg + "</svg>"))
		for {
			if _, err := d.Token(); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("a drawing is not well-formed: %v: %s", err, svg)
			}
		}
	}
}

// TestFaultsAndMissing checks that faults and missing engines are in both forms, and determine the
// verdict.
func TestFaultsAndMissing(t *testing.T) {
	t.Parallel()
	r := sampleReport()
	text := textOf(t, r)
	for _, want := range []string{"1 fault", "FAULT sqlite: reading back: 4,211", "alloydb: missing: no initdb", "1 missing", "note spanner:"} {
		if !strings.Contains(text, want) {
			t.Errorf("the text lacks %q", want)
		}
	}
	if got := newView(r).Verdict(); got != "failed" {
		t.Errorf("the verdict with a fault is %s", got)
	}
	r.Faults = nil
	if got := newView(r).Verdict(); got != "incomplete" {
		t.Errorf("the verdict with a missing engine is %s", got)
	}
	r.Systems = slices.DeleteFunc(r.Systems, func(s bench.System) bool { return s.Missing != "" })
	if got := newView(r).Verdict(); got != "passed" {
		t.Errorf("the verdict is %s", got)
	}
}

// TestEmulatorsStandApart checks that no emulator and no store without a disk shares a panel with
// an engine, and that the figures of emulators do not stretch the axes of engines.
func TestEmulatorsStandApart(t *testing.T) {
	t.Parallel()
	v := newView(sampleReport())
	drawn := 0
	for _, p := range v.Parts {
		for _, g := range p.Groups {
			for _, f := range v.figures(g) {
				for _, panel := range f.Panels {
					drawn++
					if !slices.Contains([]string{"sqlite", "postgres"}, panel.Name) || len(panel.Marks) > 0 {
						t.Errorf("%s: %s %v stands among the engines", f.Title, panel.Name, panel.Marks)
					}
				}
				for _, panel := range f.Apart {
					if !slices.Contains([]string{"memory", "bigtable", "spanner"}, panel.Name) || len(panel.Marks) == 0 {
						t.Errorf("%s: %s %v stands apart", f.Title, panel.Name, panel.Marks)
					}
				}
			}
		}
	}
	if drawn == 0 {
		t.Error("nothing is drawn")
	}
}

// TestLines checks that a line chart has labelled axes, all sides of its engine and the peers that
// took turns with it.
func TestLines(t *testing.T) {
	t.Parallel()
	v := newView(sampleReport())
	g := v.part("cas").Groups[0]
	f := v.figures(g)[0]
	i := slices.IndexFunc(f.Panels, func(p panel) bool { return p.Name == "postgres" })
	if i < 0 || f.Panels[i].Lines == nil {
		t.Fatalf("no lines of postgres in %+v", f)
	}
	p := f.Panels[i]
	if p.Lines.XLabel != "contenders (log scale)" || p.Lines.YLabel != "wins/s" {
		t.Errorf("got the axes %q and %q", p.Lines.XLabel, p.Lines.YLabel)
	}
	for _, want := range []string{"15.18", "a server on this machine", "local"} {
		if !strings.Contains(p.Where, want) {
			t.Errorf("the panel's label %q lacks %q", p.Where, want)
		}
	}
	var labels []string
	for _, s := range p.Lines.Series {
		labels = append(labels, s.Label)
		if want := map[bool]int{true: 3, false: 7}[s.Peer]; len(s.Dots) != want || len(strings.Fields(s.Line)) != want || len(strings.Fields(s.Band)) != 2*want {
			t.Errorf("%s: got %d dots, line %q and band %q, want %d settings", s.Label, len(s.Dots), s.Line, s.Band, want)
		}
	}
	if want := []string{"optimistic loop", "keeper, back-off", "keeper, hints", "river · optimistic loop", "advisory lock · optimistic loop"}; !slices.Equal(labels, want) {
		t.Errorf("got the series %q, want %q", labels, want)
	}
}

// TestBars checks that the whisker of a bar contains its median, and that a ratio has a line at 1.
func TestBars(t *testing.T) {
	t.Parallel()
	v := newView(sampleReport())
	f := v.figures(v.part("commit").Groups[0])[0]
	if !strings.HasSuffix(f.Title, "of hand-written") || len(f.Panels) != 2 || f.Panels[0].Bars == nil {
		t.Fatalf("got %+v, want bars of the ratio", f)
	}
	b := f.Panels[0].Bars
	if b.One == nil || *b.One <= 0 || *b.One > 100 || len(b.Rows) != 8 {
		t.Errorf("got the line %v and %d rows, want a line and 8 rows", b.One, len(b.Rows))
	}
	for _, row := range b.Rows {
		if row.From > row.At || row.At > row.To || row.Value == "" || row.Setting == "" {
			t.Errorf("got the row %+v", row)
		}
	}
}

func TestPromises(t *testing.T) {
	t.Parallel()
	stored := make(map[string]bool)
	for _, p := range newView(sampleReport()).Promises() {
		if len(p.Late) != 1 {
			t.Errorf("%s has %d late writes, want 1", p.Name, len(p.Late))
			continue
		}
		stored[p.Name] = p.Late[0].Stored
	}
	if !stored["river"] || stored["postgres"] {
		t.Errorf("got the late writes %v, want that of river stored and that of postgres refused", stored)
	}
}

func TestJSON(t *testing.T) {
	t.Parallel()
	r := sampleReport()
	var b bytes.Buffer
	if err := JSON(&b, r); err != nil {
		t.Fatal(err)
	}
	back, err := ReadJSON(bytes.NewReader(b.Bytes()))
	if err != nil {
		t.Fatal(err)
	}
	if before, after := pageOf(t, r), pageOf(t, back); before != after {
		t.Error("the page of a report differs once it was written and read")
	}
	for text, want := range map[string]string{
		`{"Format": 99}`: "format 99, and this program reads up to 1", `{"Format": 1, "Results": 3}`: "cannot be read",
		`{}`: "no Format", `no`: "no report", ``: "no report",
	} {
		if _, err := ReadJSON(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", text, err, want)
		}
	}
}

// TestNoNumbers checks that samples that are NaN or infinite reach neither the JSON nor the axes.
func TestNoNumbers(t *testing.T) {
	t.Parallel()
	r := bench.Report{Format: bench.Format, Results: []bench.Result{{Part: "x", System: "s", Metrics: []bench.Metric{
		{Name: bench.Rate, Samples: []float64{math.NaN(), math.Inf(1), 7}}, {Name: "none", Samples: []float64{math.NaN()}},
	}}}}
	var b bytes.Buffer
	if err := JSON(&b, r); err != nil {
		t.Fatal(err)
	}
	page := pageOf(t, r)
	if !strings.Contains(page, "2 samples of rate left out") || !strings.Contains(page, `<td class="n">7.00`) {
		t.Error("the page lacks the figure, or the note")
	}
	if len(r.Results[0].Metrics[0].Samples) != 3 {
		t.Error("the caller's report was changed")
	}
	empty := pageOf(t, bench.Report{Format: bench.Format})
	if !strings.Contains(empty, "nothing was measured") {
		t.Error("the page of an empty report does not say so")
	}
}

func TestNumbers(t *testing.T) {
	t.Parallel()
	for v, want := range map[float64]string{0: "0", 1234567: "1,234,567", -1234: "-1,234", 99.97: "100", 42.14: "42.1", 9.996: "10.0", 1.234: "1.23", 0.01234: "0.0123", 999.6: "1,000"} {
		if got := number(v); got != want {
			t.Errorf("%v: got %s, want %s", v, got, want)
		}
	}
	if got := setting(map[string]string{"writers": "1", "payload": "10000", "id": "yes"}); got != "id: yes, 10,000 payload, 1 writer" {
		t.Errorf("got %q", got)
	}
}
