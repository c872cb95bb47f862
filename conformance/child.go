package conformance

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
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// childVariable is the environment variable that marks a process as the child of a crash case. Its
// value is a childTask in JSON.
const childVariable = "TAPESTORE_CONFORMANCE_CHILD"

// childTask is the work of a child process: it opens the store at URL and plays Role until it is
// killed or its parent ends.
type childTask struct {
	URL   string
	Role  string
	Round int
}

// role is what a child process does. It reads its parent's commands from in and reports line by
// line on out.
type role func(ctx context.Context, s runstore.RunStore, round int, in *bufio.Scanner, out *report) error

// report writes lines to the parent, each in one Write.
type report struct{ w io.Writer }

func (r *report) line(format string, args ...any) error {
	_, err := fmt.Fprintf(r.w, format+"\n", args...)
	return err
}

// runChild runs the task of a child process and then exits, if a crash case started this process as
// its child; otherwise it returns at once. roles holds what a child can do, by name.
func runChild(roles map[string]role) {
	text := os.Getenv(childVariable)
	if text == "" {
		return
	}
	out := &report{os.Stdout}
	if err := runChildTask(text, roles, out); err != nil {
		_ = out.line("error %q", err.Error()) // the parent may be gone
		os.Exit(1)
	}
	os.Exit(0)
}

// runChildTask runs the childTask that text holds as JSON, and reports on out.
func runChildTask(text string, roles map[string]role, out *report) error {
	var e childTask
	if err := json.Unmarshal([]byte(text), &e); err != nil {
		return err
	}
	do := roles[e.Role]
	if do == nil {
		return fmt.Errorf("unknown role %q", e.Role)
	}
	ctx := context.Background()
	s, err := runstore.Open(ctx, e.URL)
	if err != nil {
		return err
	}
	return do(ctx, s, e.Round, bufio.NewScanner(os.Stdin), out)
}

// child is a child process of a crash case, as its parent sees it.
type child struct {
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines *bufio.Scanner
}

// startChild starts this program again as a child with task e. The child is killed when the case
// ends, or when the parent ends for any reason.
func startChild(t T, e childTask) *child {
	t.Helper()
	text, err := json.Marshal(e)
	if err != nil {
		t.Fatalf("task: %v", err)
	}
	program, err := os.Executable()
	if err != nil {
		t.Fatalf("the path of this program: %v", err)
	}
	args := os.Args[1:]
	if testing.Testing() {
		// Select only the test that runs the suite; the process becomes the child before any case
		// runs.
		top, _, _ := strings.Cut(t.Name(), "/")
		if !strings.HasPrefix(top, "Test") {
			t.Fatalf("%q is not below a test: inside go test, a case that starts processes needs Run", t.Name())
		}
		args = []string{"-test.run=^" + top + "$", "-test.count=1"}
	}
	c := &child{cmd: exec.Command(program, args...)}
	c.cmd.Env = append(os.Environ(), childVariable+"="+string(text))
	c.cmd.Stderr = os.Stderr
	dieWithParent(c.cmd)
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		t.Fatalf("child: %v", err)
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		t.Fatalf("child: %v", err)
	}
	if err := c.cmd.Start(); err != nil {
		t.Fatalf("child: %v", err)
	}
	c.lines = bufio.NewScanner(out)
	// A child that hangs must not hang the case: killing it ends its output.
	bound := time.AfterFunc(caseTimeout, func() { _ = c.cmd.Process.Kill() })
	t.Cleanup(func() {
		bound.Stop()
		c.kill()
	})
	return c
}

// kill kills the child and waits for its exit.
func (c *child) kill() {
	_ = c.cmd.Process.Kill() // it may have ended
	_ = c.cmd.Wait()
}

// next returns the child's next line of output; ok is false after the last line.
func (c *child) next() (line string, ok bool) {
	ok = c.lines.Scan()
	return c.lines.Text(), ok
}
