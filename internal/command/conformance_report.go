package command

import (
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"strings"
	"time"

	"github.com/tapestore/tapestore/conformance"
	"github.com/tapestore/tapestore/conformance/version"
	"github.com/tapestore/tapestore/internal/report"
	"github.com/tapestore/tapestore/internal/wrap"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tape"
)

// formats are the functions that render results, by name: for one engine and for several.
var formats = map[string]struct {
	one, many func(io.Writer, report.Run) error
}{
	"text": {single(reportText), report.Text},
	"json": {single(reportJSON), report.JSON},
	"html": {report.HTML, report.HTML},
}

func single(show func(io.Writer, conformance.Report) error) func(io.Writer, report.Run) error {
	return func(w io.Writer, run report.Run) error { return show(w, *run.Engines[0].Report) }
}

// newRun returns a run that begins now.
func newRun(given suiteFlags) report.Run {
	return report.Run{
		Command:  given.commandLine(),
		Version:  version.String(),
		Platform: platform(),
		Protocol: given.protocol,
		Pattern:  given.run,
		Began:    time.Now(),
	}
}

// commandLine returns a shell command for the same run, without secrets.
func (given suiteFlags) commandLine() string {
	words := []string{"tapestore", "conformance"}
	if given.protocol {
		words = append(words, "--protocol")
	}
	switch {
	case given.address != "":
		words = append(words, shellWord(given.address))
		if given.probes != "" {
			words = append(words, "--probes", shellWord(given.probes))
		}
	case given.all:
		words = append(words, "--all")
	case given.engine != "":
		words = append(words, "--engine", given.engine)
	default:
		words = append(words, "--store", shellWord(shownURL(given.store)))
	}
	if given.fence != "" && given.fence != tape.FencePresented.String() {
		words = append(words, "--fence", given.fence)
	}
	if given.full {
		words = append(words, "--full")
	}
	if given.run != "" {
		words = append(words, "--run", shellWord(given.run))
	}
	if given.format != "text" {
		words = append(words, "--format", given.format)
	}
	return strings.Join(words, " ")
}

// shownURL returns a store URL without secrets; … stands for its parameters.
func shownURL(given string) string {
	address, err := storeURL(given)
	if err != nil {
		return "URL"
	}
	u, err := runstore.ParseURL(address)
	if err != nil {
		return "URL"
	}
	if len(u.Params) > 0 {
		return u.String() + "?…"
	}
	return u.String()
}

// harmless matches words that need no quoting in a shell.
var harmless = regexp.MustCompile(`^[\w@%+=:,./-]+$`)

func shellWord(s string) string {
	if harmless.MatchString(s) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

func reportJSON(w io.Writer, r conformance.Report) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(r)
}

func reportText(w io.Writer, r conformance.Report) error {
	fmt.Fprintf(w, "%s %s (%s), capabilities: %s\n", r.Engine, r.Version, r.Tier, strings.Join(r.Capabilities, ", "))
	for _, g := range r.Guarantees {
		fmt.Fprintf(w, "\n%s %s\n", g.ID, report.Title(g.ID))
		for _, c := range g.Cases {
			mark := map[conformance.Status]string{
				conformance.Passed: "passed", conformance.Failed: "FAILED", conformance.NotApplicable: "not applicable",
			}[c.Status]
			fmt.Fprintf(w, "  %-14s %-70s %6d ms\n", mark, c.Name, c.MS)
			if len(c.LeftOut) > 0 {
				fmt.Fprintf(w, "  %14s reduced: %s\n", "", strings.Join(c.LeftOut, "; "))
			}
			if c.Reason != "" {
				fmt.Fprintf(w, "  %14s %s\n", "", strings.ReplaceAll(c.Reason, "\n", "\n"+strings.Repeat(" ", 17)))
			}
			if c.Doc != "" {
				fmt.Fprintln(w, wrap.Text("about the case: "+c.Doc, 100, strings.Repeat(" ", 17)))
			}
		}
	}
	if text := report.Unproved(r); text != "" {
		fmt.Fprintf(w, "\nWhat a local run cannot prove\n%s\n", wrap.Text(text, 96, "  "))
	}
	cut := ""
	if n := r.Summary.NotRun; n > 0 {
		cut = fmt.Sprintf(", %d not run: interrupted", n)
	}
	_, err := fmt.Fprintf(w, "\nsuite of tapestore %s\n%d passed, %d failed, %d not applicable%s\n", r.Suite,
		r.Summary.Passed, r.Summary.Failed, r.Summary.NotApplicable, cut)
	return err
}
