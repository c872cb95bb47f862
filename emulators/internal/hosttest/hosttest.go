// Package hosttest helps to test the packages of the engines.
package hosttest

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tapestore/tapestore/emulators"
	"github.com/tapestore/tapestore/emulators/internal/host"
)

// Hang (5 min) ends the wait of a test that would otherwise hang. It says nothing about speed.
const Hang = 5 * time.Minute

// Machine returns a machine that has nothing but these variables and directories.
func Machine(variables map[string]string, directories ...string) *host.Machine {
	return &host.Machine{
		Getenv:      func(name string) string { return variables[name] },
		Directories: directories,
		Containers:  func(string) host.ContainerStart { return nil },
	}
}

// Programs makes a directory with programs that do nothing.
func Programs(t *testing.T, dir string, names ...string) string {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		WriteScript(t, dir, name, "")
	}
	return dir
}

// WriteScript makes a program that does what a shell script says.
func WriteScript(t *testing.T, dir, name, script string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, host.ExecutableName(name)), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
}

// Contains reports whether there is an error with a text.
func Contains(err error, text string) bool {
	return err != nil && strings.Contains(err.Error(), text)
}

// WaitFor waits until something holds, for as long as a slow machine may need.
func WaitFor(t *testing.T, what string, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(Hang)
	for !holds() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("after %v still not: %s", Hang, what)
		}
	}
}

// AwaitFault waits until a fault was applied to n RPCs.
func AwaitFault(t *testing.T, f emulators.Fault, n int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), Hang)
	defer cancel()
	if err := f.Await(ctx, n); err != nil {
		t.Fatalf("the fault was met %d times, want %d: %v", f.Count(), n, err)
	}
}

// Finding picks one of the findings.
func Finding(t *testing.T, findings []emulators.Finding, engine, tier string) emulators.Finding {
	t.Helper()
	for _, f := range findings {
		if f.Engine == engine && f.Tier == tier {
			return f
		}
	}
	t.Fatalf("no finding on %s (%s) among %v", engine, tier, findings)
	return emulators.Finding{}
}

// CheckMissing checks findings on a machine that has nothing. Of each wanted one, Problem and
// Install are parts of the finding's.
func CheckMissing(t *testing.T, findings, want []emulators.Finding) {
	t.Helper()
	for _, w := range want {
		f := Finding(t, findings, w.Engine, w.Tier)
		if f.Found || !strings.Contains(f.Problem, w.Problem) || !strings.Contains(f.Install, w.Install) {
			t.Errorf("%s (%s): %+v, want %q and %q", w.Engine, w.Tier, f, w.Problem, w.Install)
		}
		if text := f.String(); !strings.Contains(text, "not found") || !strings.Contains(text, w.Install) {
			t.Errorf("says %q", text)
		}
	}
}

// OwnerVariable makes a test program the owner of a server, for a test that kills it; its value
// says what it does with the server.
const OwnerVariable = "EMULATORS_TEST_OWNER"

// Main runs the tests of a package and returns the exit code. In a process with OwnerVariable it
// calls own instead, which starts a server, prints its process and directory, and waits to be
// killed; at the latest it goes when its parent does.
func Main(m *testing.M, own func(role string) error) (code int) {
	role := os.Getenv(OwnerVariable)
	if role == "" {
		return m.Run()
	}
	if err := own(role); err != nil {
		fmt.Println("error", err)
		return 1
	}
	return 0
}

// KilledOwner starts an owner in a process of its own, kills it with SIGKILL, and returns the
// server's process and directory.
func KilledOwner(t *testing.T, role string) (pid int, dir string) {
	t.Helper()
	owner := exec.CommandContext(t.Context(), os.Args[0])
	owner.Env = append(os.Environ(), OwnerVariable+"="+role)
	if _, err := owner.StdinPipe(); err != nil { // left open: its end would be an order to go
		t.Fatal(err)
	}
	out, err := owner.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := owner.Start(); err != nil {
		t.Fatal(err)
	}
	line, _ := bufio.NewReader(out).ReadString('\n') // the line is checked below
	_ = owner.Process.Kill()
	_ = owner.Wait()
	number, dir, ok := strings.Cut(strings.TrimSpace(line), " ")
	if pid, err = strconv.Atoi(number); err != nil || !ok {
		t.Fatalf("the owner said %q", line)
	}
	return pid, dir
}
