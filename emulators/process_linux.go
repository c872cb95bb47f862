package emulators

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// parentDeathSignal is what a process gets when its parent ends.
type parentDeathSignal syscall.Signal

const (
	// whenOrphanedKill ends a process at once.
	whenOrphanedKill = parentDeathSignal(syscall.SIGKILL)
	// whenOrphanedQuit ends a server with its children: for PostgreSQL it is the
	// immediate shutdown.
	whenOrphanedQuit = parentDeathSignal(syscall.SIGQUIT)
)

// atStart asks the kernel. Go does it after the change of user, which would undo
// it.
func (s parentDeathSignal) atStart(cmd *exec.Cmd) {
	cmd.SysProcAttr.Pdeathsig = syscall.Signal(s)
}

// afterStart has nothing left to do.
func (parentDeathSignal) afterStart(int) (*deathWatch, error) { return nil, nil }

// findsAllProcesses: processesIn misses none of a server's.
const findsAllProcesses = true

// processesIn lists the processes of PostgreSQL, none of them a zombie, whose
// working directory is dir. A server and all its children work in their data
// directory, and the children can be found there after the server itself has gone.
func processesIn(dir string) []int {
	entries, _ := filepath.Glob("/proc/[0-9]*") // a constant pattern
	var pids []int
	for _, entry := range entries {
		// It fails for processes of others, and for those that have ended.
		if cwd, err := os.Readlink(entry + "/cwd"); err != nil || cwd != dir {
			continue
		}
		// Somebody's shell may be there too.
		name, err := os.ReadFile(entry + "/comm")
		if err != nil || !slices.Contains([]string{"postgres", "postmaster", "initdb"}, strings.TrimSpace(string(name))) {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(entry)); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// isStopped tells whether a process is stopped, or gone.
func isStopped(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return true
	}
	// The name, in parentheses, may hold anything; the state follows it.
	_, rest, _ := bytes.Cut(stat[max(0, bytes.LastIndexByte(stat, ')')):], []byte(" "))
	return len(rest) > 0 && bytes.IndexByte([]byte("TtZX"), rest[0]) >= 0
}
