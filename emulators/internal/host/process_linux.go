package host

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

// ParentDeathSignal is what a process gets when its parent ends.
type ParentDeathSignal syscall.Signal

const (
	// WhenOrphanedKill ends a process at once.
	WhenOrphanedKill = ParentDeathSignal(syscall.SIGKILL)
	// WhenOrphanedQuit ends a server with its children: for PostgreSQL it is the
	// immediate shutdown.
	WhenOrphanedQuit = ParentDeathSignal(syscall.SIGQUIT)
)

// atStart sets the signal that the kernel sends at the parent's death. Go sets it after the change
// of user, which would clear it.
func (s ParentDeathSignal) atStart(cmd *exec.Cmd) {
	cmd.SysProcAttr.Pdeathsig = syscall.Signal(s)
}

// afterStart does nothing: atStart has set the signal.
func (ParentDeathSignal) afterStart(int) (*DeathWatch, error) { return nil, nil }

// FindsAllProcesses reports whether ProcessesIn returns all processes of a server.
const FindsAllProcesses = true

// ProcessesIn returns the processes of PostgreSQL, without zombies, whose working directory is dir.
// A server and all its children work in their data directory, so the children are found there even
// after the server itself has ended.
func ProcessesIn(dir string) []int {
	entries, _ := filepath.Glob("/proc/[0-9]*") // a constant pattern
	var pids []int
	for _, entry := range entries {
		// Readlink fails for processes of other users and for ended ones.
		if cwd, err := os.Readlink(entry + "/cwd"); err != nil || cwd != dir {
			continue
		}
		// A user's shell may have this working directory too.
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

// IsStopped reports whether a process is stopped, or gone.
func IsStopped(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return true
	}
	// The name, in parentheses, may hold anything; the state follows it.
	_, rest, _ := bytes.Cut(stat[max(0, bytes.LastIndexByte(stat, ')')):], []byte(" "))
	return len(rest) > 0 && bytes.IndexByte([]byte("TtZX"), rest[0]) >= 0
}
