// Package childprocess starts a test program again as its own child processes, for tests that kill or
// stop a process. A child dies with its parent.
package childprocess

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// variable holds the arguments of a child, as JSON, in its environment.
const variable = "TAPESTORE_CHILD_PROCESS"

// Main runs child and exits if this process was started by [Start]; else it runs the tests. TestMain
// calls it.
func Main(m *testing.M, child func(args []string) error) {
	text := os.Getenv(variable)
	if text == "" {
		os.Exit(m.Run())
	}
	var args []string
	err := json.Unmarshal([]byte(text), &args)
	if err == nil {
		err = child(args)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// UntilStopped returns the context of a child, which ends when the parent closes the child's standard
// input or is gone.
func UntilStopped() context.Context {
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		stop()
	}()
	return ctx
}

// Process is a child, as its parent sees it.
type Process struct {
	Cmd   *exec.Cmd
	In    io.WriteCloser // the child's standard input
	Lines <-chan string  // what the child prints, by lines; closed when the child has ended
}

// Start starts a child with the arguments and, besides this process's environment, env. The child is
// killed when the test ends.
func Start(t testing.TB, env []string, args ...string) *Process {
	t.Helper()
	text, err := json.Marshal(args)
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program)
	cmd.Env = append(append(os.Environ(), env...), variable+"="+string(text))
	cmd.Stderr = os.Stderr
	DieWithParent(cmd)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := make(chan string, 1000)
	go func() {
		defer close(lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			lines <- s.Text()
		}
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // if it has ended already, that is well
		_ = cmd.Wait()
	})
	return &Process{Cmd: cmd, In: in, Lines: lines}
}

// Next returns the next line that begins with a word, and fails the test if the child ends before.
func (p *Process) Next(t testing.TB, word string) string {
	t.Helper()
	for line := range p.Lines {
		if strings.HasPrefix(line, word) {
			return line
		}
	}
	t.Fatalf("the process ended before it printed %q", word)
	return ""
}
