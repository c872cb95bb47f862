package command

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"sync"

	"github.com/tapestore/tapestore/conformance"
	"github.com/tapestore/tapestore/internal/report"
)

// progress shows on standard error how far the suite has come: how many cases are done,
// counted in place on a terminal and in a line after each quarter elsewhere. With --all
// there is also a line when an engine was started and one when it is done.
type progress struct {
	w              io.Writer
	terminal       bool
	engines, cases int // how many there are; no engines without --all

	mu       sync.Mutex
	name     string
	at       int // which engine it is
	finished int // its cases
}

func newProgress(w io.Writer, cases int) *progress {
	p := &progress{w: w, cases: cases}
	if f, ok := w.(*os.File); ok {
		info, err := f.Stat()
		p.terminal = err == nil && info.Mode()&os.ModeCharDevice != 0
	}
	return p
}

func (p *progress) begin(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.at++
	p.name, p.finished = name, 0
}

func (p *progress) started(about string) {
	p.line("%s: %s", cmp.Or(about, p.name), report.Cases(p.cases))
}

// done notes that a case is over.
func (p *progress) done() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.finished++
	count := fmt.Sprintf("%d of %d cases", p.finished, p.cases)
	if p.engines > 0 {
		count = fmt.Sprintf("[%d/%d] %s: %s", p.at, p.engines, p.name, count)
	}
	switch quarter := (p.cases + 3) / 4; {
	case p.terminal:
		fmt.Fprint(p.w, "\r"+count)
	case quarter >= fewest && p.finished%quarter == 0 && p.finished < p.cases:
		fmt.Fprintln(p.w, count)
	}
}

// fewest is for how many cases a line is worth while.
const fewest = 5

// wipe removes the count from a terminal, for what is printed next.
func (p *progress) wipe() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.terminal {
		fmt.Fprint(p.w, "\r\x1b[K")
	}
}

func (p *progress) end(e report.Engine) {
	switch {
	case e.Missing != "":
		p.line("%s is missing: %s", e.Name, e.Missing)
	case e.Report != nil:
		sum := e.Report.Summary
		p.line("%s: %d passed, %d failed, %d not applicable, in %s", e.Name, sum.Passed, sum.Failed, sum.NotApplicable, report.Duration(e.MS))
	}
	if e.Broken != "" {
		p.line("%s: %s", e.Name, e.Broken)
	}
}

// line tells something in a line of its own, in place of the count of cases.
func (p *progress) line(format string, args ...any) {
	p.wipe()
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Fprintf(p.w, "[%d/%d] "+format+"\n", append([]any{p.at, p.engines}, args...)...)
}

// counted is a harness that tells when a case is over.
func counted(h conformance.Harness, done func()) conformance.Harness {
	note := func(t conformance.T) {
		if t.Name() != "describe" { // which asks a store what it is
			t.Cleanup(done)
		}
	}
	for _, f := range []*func(conformance.T) conformance.Instance{&h.New, &h.NewUsed, &h.NewOvertaking} {
		if make := *f; make != nil {
			*f = func(t conformance.T) conformance.Instance {
				note(t)
				return make(t)
			}
		}
	}
	if make := h.NewServed; make != nil {
		h.NewServed = func(t conformance.T) (conformance.Instance, conformance.Server) {
			note(t)
			return make(t)
		}
	}
	return h
}
