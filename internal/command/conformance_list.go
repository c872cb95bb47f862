package command

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"

	"github.com/spf13/cobra"

	"github.com/tapestore/tapestore/conformance"
	"github.com/tapestore/tapestore/conformance/protocol"
	"github.com/tapestore/tapestore/conformance/version"
	"github.com/tapestore/tapestore/internal/report"
	"github.com/tapestore/tapestore/internal/wrap"
)

// caseList is the output of --list. Its JSON form is stable: fields are added, and never change
// their meaning.
type caseList struct {
	// Suite is the version of this module, with its commit if that is known.
	Suite      string      `json:"suite"`
	Guarantees []caseGroup `json:"guarantees"`
}

// caseGroup holds the cases of one guarantee, or of one part of the protocol.
type caseGroup struct {
	ID    string       `json:"id"`
	Title string       `json:"title"`
	Cases []listedCase `json:"cases"`
}

type listedCase struct {
	Name  string       `json:"name"`
	Doc   string       `json:"doc"`
	Needs []listedNeed `json:"needs,omitempty"`
}

type listedNeed struct {
	Name  string `json:"name"`
	About string `json:"about"`
}

// add appends a case to its group; the cases of a group are consecutive.
func (l *caseList) add(group string, c listedCase) {
	if n := len(l.Guarantees); n == 0 || l.Guarantees[n-1].ID != group {
		l.Guarantees = append(l.Guarantees, caseGroup{ID: group, Title: report.Title(group)})
	}
	last := &l.Guarantees[len(l.Guarantees)-1]
	last.Cases = append(last.Cases, c)
}

// storeCases lists the cases of the store's contract whose guarantee/name matches.
func storeCases(pattern *regexp.Regexp) (l caseList) {
	for _, c := range conformance.Cases() {
		if !pattern.MatchString(c.Guarantee + "/" + c.Name) {
			continue
		}
		listed := listedCase{Name: c.Name, Doc: c.Doc}
		for _, n := range c.Needs {
			listed.Needs = append(listed.Needs, listedNeed{n.String(), n.About()})
		}
		l.add(c.Guarantee, listed)
	}
	return l
}

// protocolCases lists the cases of the wire protocol whose ID matches.
func protocolCases(pattern *regexp.Regexp) (l caseList) {
	for _, c := range protocol.Cases() {
		if !pattern.MatchString(c.ID()) {
			continue
		}
		listed := listedCase{Name: c.ID()[len(c.Group)+1:], Doc: c.Doc}
		for _, n := range c.Needs {
			listed.Needs = append(listed.Needs, listedNeed{n.String(), n.About()})
		}
		l.add(c.Group, listed)
	}
	return l
}

// listCases prints descriptions of the cases and runs none.
func listCases(cmd *cobra.Command, given suiteFlags) error {
	if given.all || given.engine != "" || given.store != "" || given.address != "" || given.probes != "" || given.full || given.gallery || cmd.Flags().Changed("fence") {
		return errors.New("--list runs nothing; it goes with --protocol, --run and --format only")
	}
	pattern, err := regexp.Compile(given.run)
	if err != nil {
		return fmt.Errorf("--run is no regular expression: %w", err)
	}
	cases := storeCases
	if given.protocol {
		cases = protocolCases
	}
	l := cases(pattern)
	l.Suite = version.String()
	if len(l.Guarantees) == 0 {
		return fmt.Errorf("--run %q matches no case", pattern)
	}
	switch given.format {
	case "text":
		return l.text(cmd.OutOrStdout())
	case "json":
		enc := json.NewEncoder(cmd.OutOrStdout())
		enc.SetIndent("", "  ")
		enc.SetEscapeHTML(false)
		return enc.Encode(l)
	default:
		return fmt.Errorf("--format is %q; a list is text or json", given.format)
	}
}

func (l caseList) text(w io.Writer) error {
	n := 0
	for _, g := range l.Guarantees {
		fmt.Fprintf(w, "%s %s\n\n", g.ID, g.Title)
		for _, c := range g.Cases {
			fmt.Fprintf(w, "  %s\n%s\n", c.Name, wrap.Text(c.Doc, 100, "    "))
			for _, need := range c.Needs {
				fmt.Fprintln(w, wrap.Text("needs "+need.Name+": "+need.About, 100, "    "))
			}
			fmt.Fprintln(w)
		}
		n += len(g.Cases)
	}
	_, err := fmt.Fprintf(w, "%s; suite of tapestore %s\n", report.Cases(n), l.Suite)
	return err
}
