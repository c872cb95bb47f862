// Package report shows what the conformance suite found: its guarantees by engines, as
// a text, as JSON and as a page of HTML that needs nothing else.
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
	// Command is what was typed, without secrets, and Platform where: linux/amd64.
	Command string `json:"command"`
	// Version is the program's, with its commit where that is known.
	Version  string `json:"version"`
	Platform string `json:"platform"`
	// Protocol says that the cases are those of the wire protocol, and not of the store's contract.
	Protocol bool `json:"protocol,omitempty"`
	// Pattern chose the cases; empty means all.
	Pattern string    `json:"run"`
	Began   time.Time `json:"began"`
	MS      int64     `json:"ms"`
	Summary Summary   `json:"summary"` // filled in by JSON
	Engines []Engine  `json:"engines"`
	// RPCMatrix has the methods of the wire protocol by engines; filled in by JSON.
	RPCMatrix []RPC `json:"rpcs,omitempty"`
	// NotRun names the engines that an interruption kept from being run.
	NotRun []string `json:"not_run,omitempty"`
}

// Engine is what became of one engine. Either it was there, and Report is set, or one
// of Missing and Broken tells why nothing is known of it. Broken beside a Report tells
// that the engine did not end well.
type Engine struct {
	Name string `json:"name"`
	// Started is what was started or found, as it was told.
	Started string `json:"started,omitempty"`
	// Missing tells why the engine could not be had on this machine.
	Missing string `json:"missing,omitempty"`
	// Broken tells what failed other than a case: a start, an end.
	Broken string `json:"broken,omitempty"`
	// Unproved is what such a run cannot prove; filled in by JSON.
	Unproved string              `json:"unproved,omitempty"`
	MS       int64               `json:"ms"`
	Report   *conformance.Report `json:"report,omitempty"`
}

// Summary adds the engines up.
type Summary struct {
	Engines       int `json:"engines"`
	Missing       int `json:"missing"`
	Broken        int `json:"broken"`
	Passed        int `json:"passed"`
	Failed        int `json:"failed"`
	NotApplicable int `json:"not_applicable"`
	// NotRun counts the cases of the engines that ran which an interruption cut off.
	NotRun int `json:"not_run,omitempty"`
}

func (e Engine) unproved() string {
	if e.Report == nil {
		return ""
	}
	return Unproved(*e.Report)
}

// Unproved returns what a run cannot prove, because of the engine that was started for it
// or because it was a quick one, or "".
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

// Sum adds up what became of the engines.
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

// Duration is how people read a time that was measured in milliseconds.
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
