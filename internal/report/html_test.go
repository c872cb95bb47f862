package report

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/tapestore/tapestore/conformance"
)

// element is one of a page, with what is in it.
type element struct {
	name  string
	attrs map[string]string
	text  string // its own and that of its children
}

// parse reads a page and fails the test when its elements do not close.
func parse(t *testing.T, r Run) []*element {
	t.Helper()
	var page bytes.Buffer
	if err := HTML(&page, r); err != nil {
		t.Fatal(err)
	}
	dec := xml.NewDecoder(&page)
	dec.Strict, dec.AutoClose, dec.Entity = false, xml.HTMLAutoClose, xml.HTMLEntity
	var all, open []*element
	for {
		token, err := dec.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		switch token := token.(type) {
		case xml.StartElement:
			e := &element{name: token.Name.Local, attrs: map[string]string{}}
			for _, a := range token.Attr {
				e.attrs[a.Name.Local] = a.Value
			}
			all, open = append(all, e), append(open, e)
		case xml.CharData:
			for _, e := range open {
				e.text += string(token)
			}
		case xml.EndElement:
			last := len(open) - 1
			if open[last].name != token.Name.Local {
				t.Fatalf("%s is closed by %s", open[last].name, token.Name.Local)
			}
			open = open[:last]
		}
	}
	return all
}

func named(all []*element, name string) (found []*element) {
	for _, e := range all {
		if e.name == name {
			found = append(found, e)
		}
	}
	return found
}

func texts(all []*element) (found []string) {
	for _, e := range all {
		found = append(found, strings.Join(strings.Fields(e.text), " "))
	}
	return found
}

// elements are all that the page is made of: none of them loads or runs anything.
var elements = strings.Fields(`html head meta title style body header main section article h1 h2 h3 p span i a code pre time
	table thead tbody tfoot tr th td dl dt dd ul li details summary div`)

// wellFormed checks what holds of every page: no element but the known ones, every link
// leads to one place on the page itself, every heading of a table says of what.
func wellFormed(t *testing.T, all []*element) {
	t.Helper()
	var places []string
	for _, e := range all {
		if !slices.Contains(elements, e.name) {
			t.Errorf("there is an element %s: %q", e.name, e.text)
		}
		if id := e.attrs["id"]; id != "" {
			if slices.Contains(places, id) {
				t.Errorf("the id %q is there twice", id)
			}
			places = append(places, id)
		}
		if e.name == "th" && e.attrs["scope"] == "" {
			t.Errorf("the heading %q has no scope", e.text)
		}
		for key := range e.attrs {
			if key == "src" || key == "srcset" || strings.HasPrefix(key, "on") {
				t.Errorf("%s has %s", e.name, key)
			}
		}
	}
	for _, e := range named(all, "a") {
		place, ok := strings.CutPrefix(e.attrs["href"], "#")
		if place, err := url.PathUnescape(place); !ok || err != nil || !slices.Contains(places, place) {
			t.Errorf("a link leads to %q", e.attrs["href"])
		}
	}
	for _, e := range named(all, "style") {
		if strings.Contains(e.text, "url(") || strings.Contains(e.text, "@import") {
			t.Error("the style loads something")
		}
	}
}

func TestHTML(t *testing.T) {
	t.Parallel()
	all := parse(t, mixed())
	wellFormed(t, all)
	// Counts are told in words and signs, not in colours alone.
	got := texts(named(all, "tr"))[:4]
	want := []string{
		"Guaranteememory in memorysqlite embeddedbigtable emulatedalloydb did not startspanner missing",
		"I1 Exclusiveat most one live grant of a run's lease, on the store clock✓ 2 passed✓ 1 passed✗ 1 failed✓ 2 passednot runmissing",
		"I8 Exactly once under retrya batch repeated with its id gets the first result○ 3 n/a✓ 1 passed○ 2 n/a✓ 1 passed○ 2 n/anot runmissing",
		"All✓ 2 passed○ 3 n/a✓ 2 passed✗ 1 failed○ 2 n/a✓ 3 passed○ 2 n/anot runmissing",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	page := strings.Join(texts(named(all, "body")), " ")
	for _, want := range []string{
		"One of the 3 engines that ran does not keep", "7 cases passed, 1 failed, 7 not applicable", "4 March 2026, 05:06 UTC, in 1 min 01 s, on linux/amd64, by tapestore v0.1.0, commit abc.",
		"I1/two-losers on sqlite got 2 winners, want 1 Eight handles ask for one lease;", "engine not found: no emulator, <b>none</b>", "listen: address in use",
		"memory, sqlite and bigtable: 1 case I8/late-copy", "sqliteProcesses are killed, machines are not.", "emulated: a stand-in",
		"two-losers✓ passed in 0.7 s✗ failed✓ passed in 0.7 snot runnot run", "tapestore conformance --all", "EpochManager, Notifier",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("no %q in\n%s", want, page)
		}
	}
}

func TestHTMLOfOneEngine(t *testing.T) {
	t.Parallel()
	one := engine("postgres", "service", "I1/one-winner")
	one.Started = ""
	all := parse(t, run(one))
	wellFormed(t, all)
	page := strings.Join(texts(named(all, "body")), " ")
	for _, want := range []string{"postgres keeps the contract.", "Every case applies", "a server that was running already"} {
		if !strings.Contains(page, want) {
			t.Errorf("no %q in\n%s", want, page)
		}
	}
	if strings.Contains(page, "cannot prove") || strings.Contains(page, "What failed") || strings.Contains(page, "Started") {
		t.Errorf("more than there is:\n%s", page)
	}
}

// Whatever engines, cases and their reasons say is text, on a page and on a terminal.
func TestHostileTexts(t *testing.T) {
	t.Parallel()
	const evil = "\x1b[2J\"'><script>alert(1)</script><img src=x onerror=alert(1)>{{.}}`</style>&amp;"
	bad := engine(evil, evil, "I1/"+evil+" failed: "+evil, "I1/b n/a: "+evil, evil+"/c")
	bad.Report.Guarantees[0].Cases[0].Doc = evil
	bad.Report.Version, bad.Report.Capabilities = evil, []string{evil}
	bad.Started = evil
	r := run(bad, Engine{Name: evil, Missing: evil}, Engine{Name: evil, Broken: evil})
	r.Command, r.Pattern, r.Platform = evil, evil, evil
	all := parse(t, r)
	for _, e := range all {
		if e.name == "script" || e.name == "img" || e.attrs["onerror"] != "" {
			t.Errorf("there is an element %s %v", e.name, e.attrs)
		}
	}
	if page := named(all, "body"); strings.Count(page[0].text, "<script>alert(1)</script>") < 10 {
		t.Errorf("the texts are not there:\n%s", page[0].text)
	}
	var out bytes.Buffer
	if err := Text(&out, r); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(out.String(), "\x1b") {
		t.Errorf("a control character got out:\n%q", out.String())
	}
}

// A page of the suite's own size: every cell of the matrix leads to its cases.
func TestHTMLOfTheWholeSuite(t *testing.T) {
	t.Parallel()
	var cases []string
	for _, c := range conformance.Cases() {
		cases = append(cases, c.Guarantee+"/"+c.Name)
	}
	all := parse(t, run(engine("memory", "embedded", cases...), engine("sqlite", "embedded", cases...), missing))
	wellFormed(t, all)
	if got, want := len(named(all, "details")), len(conformance.Guarantees()); got != want {
		t.Errorf("got %d groups of cases, want %d", got, want)
	}
	links := 0
	for _, e := range named(all, "a") {
		if strings.HasSuffix(e.attrs["href"], "-engine-1") && strings.HasPrefix(e.attrs["href"], "#I") {
			links++
		}
	}
	if want := len(conformance.Guarantees()); links != want {
		t.Errorf("%d cells lead to cases of an engine, want %d", links, want)
	}
}
