package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
)

// report is one line that the bank or a worker writes to its standard output for the demo to read.
type report struct {
	// Kind is one of the constants below; empty for a text that is only printed.
	Kind    string `json:"kind,omitempty"`
	Text    string `json:"text,omitempty"`
	Address string `json:"address,omitempty"` // with listening
	Run     string `json:"run,omitempty"`     // with holding
	Key     string `json:"key,omitempty"`     // an idempotency key with held and waiting, a call with tried
	Answer  string `json:"answer,omitempty"`  // with tried
}

// The kinds of reports that the demo waits for.
const (
	listening = "listening" // the server or the bank accepts calls
	holding   = "holding"   // a worker was granted the lease
	held      = "held"      // the bank has applied an operation and withholds its reply
	waiting   = "waiting"   // a worker has recorded an effect and waits for a line of input
	tried     = "tried"     // a fenced worker tried a write
)

// The exit statuses of the bank and the workers.
const (
	exitDone     = 0
	exitFailed   = 1
	exitLost     = 3 // a worker has lost its lease, and stopped
	exitOrphaned = 4 // the demo is gone
)

// sendReport writes a report in one write. It fails only if the demo is gone, and then the end of
// the standard input ends this process.
func sendReport(r report) { _, _ = os.Stdout.WriteString(encode(r) + "\n") }

func say(format string, args ...any) { sendReport(report{Text: fmt.Sprintf(format, args...)}) }

// commands returns the lines of the standard input. The end of the input means that the demo is
// gone, and ends this process too.
func commands() <-chan string {
	lines := make(chan string, 1) // buffered: an unread line must not delay the detection of the end
	go func() {
		for in := bufio.NewScanner(os.Stdin); in.Scan(); {
			lines <- in.Text()
		}
		os.Exit(exitOrphaned)
	}()
	return lines
}

// process is a process of the demo.
type process struct {
	name    string
	cmd     *exec.Cmd
	stdin   io.WriteCloser
	reports chan report // closed when the process has ended
	errors  *lastLines
}

// starter returns the queue of a thread that starts all children. On Linux a child gets its death
// signal when the thread that started it ends, so this thread never ends.
var starter = sync.OnceValue(func() chan<- func() {
	work := make(chan func())
	go func() {
		runtime.LockOSThread()
		for f := range work {
			f()
		}
	}()
	return work
})

// start starts a program, prints its reports, and passes each line of its standard error to onLine,
// if that is not nil.
func (s *environment) start(name string, onLine func(p *process, line string), program string, args ...string) (*process, error) {
	p := &process{name: name, cmd: exec.Command(program, args...), reports: make(chan report, 1000)}
	p.errors = &lastLines{onLine: func(line string) {
		if onLine != nil {
			onLine(p, line)
		}
	}}
	p.cmd.SysProcAttr, p.cmd.Stderr = childAttributes(), p.errors
	var err error
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	started := make(chan error)
	starter() <- func() { started <- p.cmd.Start() }
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	s.processes = append(s.processes, p)
	go func() {
		defer close(p.reports)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			var r report
			if json.Unmarshal(lines.Bytes(), &r) != nil {
				r = report{Text: lines.Text()} // not a report; perhaps a library's output
			}
			if r.Text != "" {
				s.print(name, r.Text)
			}
			p.reports <- r
		}
		_ = p.cmd.Wait() // the result is in ProcessState
	}()
	return p, nil
}

// await returns the next report of a kind and drops those before it.
func (p *process) await(ctx context.Context, kind string) (report, error) {
	for {
		select {
		case r, open := <-p.reports:
			switch {
			case !open:
				return r, fmt.Errorf("%s ended before it was %s: %v%s", p.name, kind, p.cmd.ProcessState, p.errors)
			case r.Kind == kind:
				return r, nil
			}
		case <-ctx.Done():
			return report{}, fmt.Errorf("%s was not %s in time%s", p.name, kind, p.errors)
		}
	}
}

// wait waits until the process has ended and returns its remaining reports.
func (p *process) wait(ctx context.Context) (all []report, err error) {
	for {
		select {
		case r, open := <-p.reports:
			if !open {
				return all, nil
			}
			all = append(all, r)
		case <-ctx.Done():
			return all, fmt.Errorf("%s did not end in time%s", p.name, p.errors)
		}
	}
}

// proceed writes a line to a worker that waits for one.
func (p *process) proceed() error {
	_, err := fmt.Fprintln(p.stdin, "go")
	return err
}

// kill kills the process, stopped or not, and waits for its end.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // fails if the process has ended already
	for range p.reports {
	}
}

// lastLines keeps the last 20 lines of a process's standard error for error messages.
type lastLines struct {
	onLine func(string)

	mu    sync.Mutex
	lines []string
	part  []byte // an incomplete line
}

func (l *lastLines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.part = append(l.part, b...)
	for {
		line, rest, whole := bytes.Cut(l.part, []byte("\n"))
		if !whole {
			return len(b), nil
		}
		l.lines, l.part = append(l.lines, string(line)), bytes.Clone(rest)
		l.lines = l.lines[max(0, len(l.lines)-20):]
		l.onLine(string(line))
	}
}

// String returns the lines as the end of an error message.
func (l *lastLines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.lines) == 0 {
		return ""
	}
	return "; its last lines:\n\t" + strings.Join(l.lines, "\n\t")
}
