package kit

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/tapestore/tapestore/conformance/harness"
	"github.com/tapestore/tapestore/internal/childprocess"
	"github.com/tapestore/tapestore/runstore"
)

// childVariable is the environment variable that marks a process as the child of a crash case. Its
// value is a ChildTask in JSON.
const childVariable = "TAPESTORE_CONFORMANCE_CHILD"

// ChildTask is the work of a child process: it opens the store at URL and plays Role until it is
// killed or its parent ends.
type ChildTask struct {
	URL   string
	Role  string // a name in the roles of RunChild
	Round int
}

// Role is what a child process does. It reads its parent's commands from in and reports line by
// line on out.
type Role func(ctx context.Context, s runstore.RunStore, round int, in *bufio.Scanner, out *Report) error

// Report writes lines to the parent, each in one Write.
type Report struct{ w io.Writer }

// Line writes one line.
func (r *Report) Line(format string, args ...any) error {
	_, err := fmt.Fprintf(r.w, format+"\n", args...)
	return err
}

// RunChild runs the task of a child process and then exits, if a crash case started this process as
// its child; otherwise it returns at once. roles hold what a child can do, by name.
func RunChild(roles ...map[string]Role) {
	text := os.Getenv(childVariable)
	if text == "" {
		return
	}
	out := &Report{os.Stdout}
	all := map[string]Role{}
	for _, some := range roles {
		maps.Copy(all, some)
	}
	if err := runChildTask(text, all, out); err != nil {
		_ = out.Line("error %q", err.Error()) // the parent may be gone
		os.Exit(1)
	}
	os.Exit(0)
}

// runChildTask runs the ChildTask that text holds as JSON, and reports on out.
func runChildTask(text string, roles map[string]Role, out *Report) error {
	var e ChildTask
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

// Child is a child process of a crash case, as its parent sees it.
type Child struct {
	Cmd   *exec.Cmd
	In    io.WriteCloser // the child's standard input
	lines *bufio.Scanner
	kill  func() // ends the child's output
}

// StartChild starts this program again as a child with task e. The child is killed when the case
// ends, or when the parent ends for any reason.
func StartChild(t harness.T, e ChildTask) *Child {
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
	c := &Child{Cmd: exec.Command(program, args...)}
	c.Cmd.Env = append(os.Environ(), childVariable+"="+string(text))
	c.Cmd.Stderr = os.Stderr
	childprocess.DieWithParent(c.Cmd)
	if c.In, err = c.Cmd.StdinPipe(); err != nil {
		t.Fatalf("child: %v", err)
	}
	out, err := c.Cmd.StdoutPipe()
	if err != nil {
		t.Fatalf("child: %v", err)
	}
	if err := c.Cmd.Start(); err != nil {
		t.Fatalf("child: %v", err)
	}
	c.lines = bufio.NewScanner(out)
	c.kill = func() { _ = c.Cmd.Process.Kill() }
	t.Cleanup(c.Kill)
	return c
}

// Kill kills the child and waits for its exit.
func (c *Child) Kill() {
	c.kill() // it may have ended
	_ = c.Cmd.Wait()
}

// Next returns the child's next line of output; ok is false after the last line. A child that writes
// none within CaseTimeout is killed, or it would hang the case.
func (c *Child) Next() (line string, ok bool) {
	bound := time.AfterFunc(harness.CaseTimeout, c.kill)
	defer bound.Stop()
	return c.Read()
}

// Read is Next without a bound, for a caller that bounds each wait for several children. A child may
// be silent for as long as the case makes progress.
func (c *Child) Read() (line string, ok bool) {
	ok = c.lines.Scan()
	return c.lines.Text(), ok
}
