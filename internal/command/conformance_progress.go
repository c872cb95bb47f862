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

// progress shows on standard error how many cases are done: as a counter in place on a terminal,
// elsewhere in a line after each quarter. With --all it also prints a line when an engine has
// started and one when it is done.
type progress struct {
	w              io.Writer
	terminal       bool
	engines, cases int // total numbers; engines is 0 without --all

	mu       sync.Mutex
	name     string
	at       int // number of the current engine
	finished int // its finished cases
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

// done counts a finished case.
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

// fewest is the smallest number of cases for which a line is printed.
const fewest = 5

// wipe removes the counter from a terminal before other output.
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

// line prints a line in place of the counter.
func (p *progress) line(format string, args ...any) {
	p.wipe()
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Fprintf(p.w, "[%d/%d] "+format+"\n", append([]any{p.at, p.engines}, args...)...)
}

// counted returns a harness that calls done after each case.
func counted(h conformance.Harness, done func()) conformance.Harness {
	note := func(t conformance.T) {
		if t.Name() != "describe" { // "describe" only reads the store's description
			t.Cleanup(done)
		}
	}
	if make := h.New; make != nil {
		h.New = func(t conformance.T) conformance.Instance {
			note(t)
			return make(t)
		}
	}
	if make := h.NewOvertaking; make != nil {
		h.NewOvertaking = func(t conformance.T) conformance.Instance {
			note(t)
			return make(t)
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
