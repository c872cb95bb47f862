package main

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"time"
)

// measureVariable names the file to which a test binary's CPU time is appended. If it is set, this
// program acts as go test's -exec: it runs the binary and measures it.
const measureVariable = "TESTRUN_MEASURE"

// labelVariable names the label of the group that a test binary belongs to.
const labelVariable = "TESTRUN_LABEL"

// rareGC makes the compiler collect garbage rarely, which saves a fifth of its CPU time. The tests run
// without it, because some of them measure memory.
const rareGC = "GOGC=400"

// measure runs a command, appends its CPU time to the file at path and returns its exit status. The
// time includes servers that the command started and waited for.
func measure(path string, args []string) (status int) {
	runtime.LockOSThread() // see dieWithParent
	test := exec.Command(args[0], args[1:]...)
	test.Stdin, test.Stdout, test.Stderr = os.Stdin, os.Stdout, os.Stderr
	test.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return v == rareGC })
	test.SysProcAttr = dieWithParent()
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, forwarded...)
	defer close(signals)
	defer signal.Stop(signals)
	if err := test.Start(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	go func() {
		for s := range signals {
			_ = test.Process.Signal(s) // fails if the test has ended
		}
	}()
	err := test.Wait()
	cpu := test.ProcessState.UserTime() + test.ProcessState.SystemTime()
	directory, _ := os.Getwd()
	directory = labelled(directory, os.Getenv(labelVariable))
	if err := record(path, fmt.Sprintf("%s\t%d\n", directory, cpu/time.Millisecond)); err != nil {
		fmt.Fprintln(os.Stderr, "testrun: CPU time of", filepath.Base(directory), "is not recorded:", err)
	}
	if err != nil {
		return max(test.ProcessState.ExitCode(), 1)
	}
	return 0
}

// record appends a line in one write, so that lines of several processes do not mix.
func record(path, line string) error {
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	if _, err := f.WriteString(line); err != nil {
		_ = f.Close()
		return err
	}
	return f.Close()
}
