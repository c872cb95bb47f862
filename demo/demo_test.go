package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// asDemo is the first argument of a test binary that is to be the demo itself.
const asDemo = "demo"

// TestMain lets the demo start this binary in its roles, and the tests start it as
// the demo.
func TestMain(m *testing.M) {
	roles["racer"] = runRacer
	if len(os.Args) > 1 {
		switch {
		case os.Args[1] == asDemo:
			os.Exit(run(os.Args[2:]))
		case roles[os.Args[1]] != nil:
			os.Exit(run(os.Args[1:]))
		}
	}
	status := m.Run()
	if command.dir != "" {
		_ = os.RemoveAll(command.dir)
	}
	os.Exit(status)
}

// command is the tapestore command, built once for all tests.
var command struct {
	sync.Once
	dir, path string
	err       error
}

func tapestore(t *testing.T) string {
	t.Helper()
	command.Do(func() {
		if command.dir, command.err = os.MkdirTemp("", "tapestore-demo-test-"); command.err == nil {
			command.path = filepath.Join(command.dir, "tapestore")
			command.err = build(context.Background(), command.path)
		}
	})
	if command.err != nil {
		t.Fatal(command.err)
	}
	return command.path
}

func testOptions(t *testing.T) options {
	// 10 s: on a busy machine a grant and the start of its work may take several seconds. The demo waits for
	// three TTLs.
	return options{ttl: 10 * time.Second, limit: 5 * time.Minute, tapestore: tapestore(t)}
}

// The main job, from end to end: a client in another process drives a run on a SQLite
// file and is killed, another is paused beyond its lease, and a third finishes the
// run, with nothing done twice.
func TestDemo(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if err := demo(t.Context(), &out, testOptions(t)); err != nil {
		t.Fatalf("%v\n%s", err, &out)
	}
	for _, want := range []string{
		"worker-1 is killed", "the run under token 2", "knows the key", "reads decision 0", "worker-2 is stopped",
		"the run under token 3", "worker-2 is woken", "tries EndRun: FENCED", "lease lost", "(in flight at the kill)", "checks passed",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the output does not say %q", want)
		}
	}
	for _, not := range []string{"FAILED", "accepted"} {
		if strings.Contains(out.String(), not) {
			t.Errorf("the output says %q", not)
		}
	}
	if t.Failed() {
		t.Log(out.String())
	}
}

// A bank without idempotency keys pays twice, and the checks notice.
func TestForgetfulBank(t *testing.T) {
	t.Parallel()
	opts := testOptions(t)
	opts.ignoreKeys = true
	var out bytes.Buffer
	err := demo(t.Context(), &out, opts)
	if err == nil || !strings.Contains(err.Error(), "1 of 7 checks failed") ||
		!strings.Contains(out.String(), "FAILED  the bank applied each effect once") || !strings.Contains(out.String(), "Applied:2") {
		t.Errorf("error %v, printed:\n%s", err, &out)
	}
}

// A server that does not serve ends the demo with what the server said.
func TestDemoTellsWhyItFailed(t *testing.T) {
	t.Parallel()
	opts := testOptions(t)
	other, err := exec.LookPath("go") // a program that knows no command "serve"
	if err != nil {
		t.Fatal(err)
	}
	opts.tapestore = other
	err = demo(t.Context(), &bytes.Buffer{}, opts)
	if err == nil || !strings.Contains(err.Error(), "server ended") || !strings.Contains(err.Error(), "unknown command") {
		t.Errorf("error %v, want one that says that the server ended, and why", err)
	}
	opts = testOptions(t)
	opts.tapestore = filepath.Join(t.TempDir(), "missing")
	if err := demo(t.Context(), &bytes.Buffer{}, opts); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("error %v, want %v", err, os.ErrNotExist)
	}
	opts = testOptions(t)
	opts.limit = 300 * time.Millisecond
	if err := demo(t.Context(), &bytes.Buffer{}, opts); err == nil || !strings.Contains(err.Error(), "not over after 300ms") {
		t.Errorf("error %v, want one that says that time is up", err)
	}
}

func TestArguments(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"extra"}, {"-ttl", "0s"}, {"-ttl", "-2s"}, {"-no-such-flag"}} {
		if status := run(args); status != 2 {
			t.Errorf("exit status %d for %q, want 2", status, args)
		}
	}
}
