package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
)

// process is one of the cast.
type process struct {
	name  string
	cmd   *exec.Cmd
	stdin io.WriteCloser
	// reports are what it says; closed when it is gone.
	reports chan report
	errors  *lastLines
}

// starter is the thread that starts all children. On Linux a child gets its death
// signal when the thread that started it ends, so this one never does.
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

// start starts a program that reports on out. hear, if not nil, is told each line
// of its standard error.
func start(name string, out *os.File, hear func(string), program string, args ...string) (*process, error) {
	p := &process{
		name: name, cmd: exec.Command(program, args...),
		reports: make(chan report, 1000), errors: &lastLines{hear: hear},
	}
	p.cmd.SysProcAttr = childAttributes()
	p.cmd.Stdout, p.cmd.Stderr = out, p.errors
	var err error
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	started := make(chan error)
	starter() <- func() { started <- p.cmd.Start() }
	return p, <-started
}

// await returns the next report of a kind and drops those before it.
func (p *process) await(ctx context.Context, kind string) (report, error) {
	for {
		select {
		case r, open := <-p.reports:
			switch {
			case !open:
				return r, fmt.Errorf("%s ended before it was %s: %s%s", p.name, kind, p.status(), p.errors)
			case r.Kind == kind:
				return r, nil
			}
		case <-ctx.Done():
			return report{}, fmt.Errorf("%s was not %s in time%s", p.name, kind, p.errors)
		}
	}
}

// wait waits until it is gone and returns the reports until then.
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

// kill ends it, stopped or not, and waits until it is gone.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // it fails when it is gone already
	for range p.reports {
		// nobody else reads them any more
	}
}

// status tells how it ended. It must be gone.
func (p *process) status() string { return p.cmd.ProcessState.String() }

// lastLines keeps the end of a process's standard error for the case that something
// goes wrong.
type lastLines struct {
	hear func(string)

	mu    sync.Mutex
	lines []string
	part  []byte // of a line that is not complete
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
		if l.hear != nil {
			l.hear(string(line))
		}
	}
}

// String returns what there is as the end of a sentence.
func (l *lastLines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.lines) == 0 {
		return ""
	}
	return "; its last words:\n\t" + strings.Join(l.lines, "\n\t")
}
