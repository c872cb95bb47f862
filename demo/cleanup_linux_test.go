package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// However the demo ends, in the middle of the story and with a stopped worker, none
// of its processes is left; and no file, if it could do anything about it.
func TestNothingIsLeft(t *testing.T) {
	t.Parallel()
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGKILL} {
		t.Run(sig.String(), func(t *testing.T) {
			t.Parallel()
			tapestore := tapestore(t)
			files := t.TempDir()
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, os.Args[0], asDemo, "-tapestore", tapestore, "-ttl", "10s", "-timeout", "5m")
			cmd.Env = append(os.Environ(), "TMPDIR="+files)
			cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			lines := bufio.NewScanner(out)
			for lines.Scan() && !strings.Contains(lines.Text(), "worker-2 is stopped") {
			}
			processes := children(t, cmd.Process.Pid)
			if len(processes) < 3 { // server, bank and worker-2
				t.Errorf("the demo has the processes %v, want three at least", processes)
			}
			if err := cmd.Process.Signal(sig); err != nil {
				t.Fatal(err)
			}
			_, _ = io.Copy(io.Discard, out)
			err = cmd.Wait()
			if sig != syscall.SIGKILL {
				var exit *exec.ExitError
				if !errors.As(err, &exit) || exit.ExitCode() != 130 {
					t.Errorf("the demo ended with %v, want exit status 130", err)
				}
				if left, _ := filepath.Glob(files + "/*"); len(left) > 0 {
					t.Errorf("%v are left", left)
				}
			}
			awaitGone(ctx, t, processes)
		})
	}
}

// children returns the processes that a process has started.
func children(t *testing.T, parent int) (pids []string) {
	t.Helper()
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range stats {
		stat, err := os.ReadFile(path)
		if err != nil {
			continue // gone meanwhile
		}
		// pid (name) state parent…, where the name may hold anything.
		text := string(stat)
		fields := strings.Fields(text[strings.LastIndex(text, ")")+1:])
		if len(fields) > 1 && fields[1] == fmt.Sprint(parent) {
			pids = append(pids, filepath.Base(filepath.Dir(path)))
		}
	}
	return pids
}

// awaitGone waits until processes have ended. One that waits for its new parent to
// take note of that has.
func awaitGone(ctx context.Context, t *testing.T, pids []string) {
	t.Helper()
	poll := time.NewTicker(10 * time.Millisecond)
	defer poll.Stop()
	for _, pid := range pids {
		for {
			stat, err := os.ReadFile("/proc/" + pid + "/stat")
			text := string(stat)
			if err != nil || strings.HasPrefix(text[strings.LastIndex(text, ")")+1:], " Z") {
				break
			}
			select {
			case <-poll.C:
			case <-ctx.Done():
				t.Fatalf("process %s is left: %s", pid, text)
			}
		}
	}
}
