// Package report renders the results of the conformance suite, guarantees by engines, as text, as
// JSON and as a self-contained HTML page.
package report

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/tapestore/tapestore/conformance"
	"github.com/tapestore/tapestore/conformance/engines"
)

// Run is one run of the suite on one or several engines. Its JSON form is stable:
// fields are added, and never change their meaning.
type Run struct {
	// Command is the command line, without secrets; Platform is where it ran: linux/amd64.
	Command string `json:"command"`
	// Version is the program's version, with its commit if that is known.
	Version  string `json:"version"`
	Platform string `json:"platform"`
	// Protocol reports that the cases are those of the wire protocol instead of the store's
	// contract.
	Protocol bool `json:"protocol,omitempty"`
	// Pattern selected the cases; empty means all.
	Pattern string    `json:"run"`
	Began   time.Time `json:"began"`
	MS      int64     `json:"ms"`
	Summary Summary   `json:"summary"` // set by JSON
	Engines []Engine  `json:"engines"`
	// RPCMatrix has the methods of the wire protocol by engines; set by JSON.
	RPCMatrix []RPC `json:"rpcs,omitempty"`
	// NotRun names the engines that were not run because of an interruption.
	NotRun []string `json:"not_run,omitempty"`
}

// Engine is the result of one engine. If the engine was available, Report is set; otherwise Missing
// or Broken says why there is no result. Broken together with a Report means that the engine did
// not end cleanly.
type Engine struct {
	Name string `json:"name"`
	// Started describes the engine that was started or found.
	Started string `json:"started,omitempty"`
	// Missing is why the engine is not available on this machine.
	Missing string `json:"missing,omitempty"`
	// Broken is what failed other than a case: a start or an end.
	Broken string `json:"broken,omitempty"`
	// Unproved is what such a run cannot prove; set by JSON.
	Unproved string              `json:"unproved,omitempty"`
	MS       int64               `json:"ms"`
	Report   *conformance.Report `json:"report,omitempty"`
}

// Summary sums up the engines.
type Summary struct {
	Engines       int `json:"engines"`
	Missing       int `json:"missing"`
	Broken        int `json:"broken"`
	Passed        int `json:"passed"`
	Failed        int `json:"failed"`
	NotApplicable int `json:"not_applicable"`
	// NotRun is the number of cases that an interruption cut off on engines that ran.
	NotRun int `json:"not_run,omitempty"`
}

func (e Engine) unproved() string {
	if e.Report == nil {
		return ""
	}
	return Unproved(*e.Report)
}

// Unproved returns what a run cannot prove, because of the kind of engine that was started or
// because it was a quick run; else "".
func Unproved(r conformance.Report) string {
	text := engines.Unproved(r.Engine, r.Tier)
	reduced := 0
	for _, g := range r.Guarantees {
		for _, c := range g.Cases {
			if len(c.LeftOut) > 0 {
				reduced++
			}
		}
	}
	if reduced > 0 {
		text = strings.TrimSpace(fmt.Sprintf("%s This was a quick run: on this engine %s repeated less than with --full.", text, Cases(reduced)))
	}
	return text
}

// Sum returns the summary of the engines' results.
func (r Run) Sum() Summary {
	sum := Summary{Engines: len(r.Engines)}
	for _, e := range r.Engines {
		if e.Missing != "" {
			sum.Missing++
		}
		if e.Broken != "" {
			sum.Broken++
		}
		if e.Report != nil {
			sum.Passed += e.Report.Summary.Passed
			sum.Failed += e.Report.Summary.Failed
			sum.NotApplicable += e.Report.Summary.NotApplicable
			sum.NotRun += e.Report.Summary.NotRun
		}
	}
	return sum
}

// JSON writes the run with the whole report of every engine.
func JSON(w io.Writer, r Run) error {
	r.Summary = r.Sum()
	r.Engines = append([]Engine{}, r.Engines...)
	for i := range r.Engines {
		r.Engines[i].Unproved = r.Engines[i].unproved()
	}
	r.RPCMatrix = r.rpcs()
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(r)
}

// Duration formats a time in milliseconds for people.
func Duration(ms int64) string {
	switch d := time.Duration(ms) * time.Millisecond; {
	case ms == 0:
		return "<1 ms"
	case d < 100*time.Millisecond:
		return fmt.Sprintf("%d ms", ms)
	case d < time.Minute:
		return fmt.Sprintf("%.1f s", d.Seconds())
	default:
		d = d.Round(time.Second)
		return fmt.Sprintf("%d min %02d s", d/time.Minute, d%time.Minute/time.Second)
	}
}
