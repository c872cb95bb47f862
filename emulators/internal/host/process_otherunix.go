//go:build unix && !linux

package host

import (
	"os/exec"
	"strconv"
	"strings"
)

// ParentDeathSignal is the signal that a process gets when its parent ends.
type ParentDeathSignal string

const (
	// WhenOrphanedKill ends a process at once.
	WhenOrphanedKill ParentDeathSignal = "KILL"
	// WhenOrphanedQuit ends a server with its children: for PostgreSQL it is the
	// immediate shutdown.
	WhenOrphanedQuit ParentDeathSignal = "QUIT"
)

// atStart does nothing: these kernels have no such setting.
func (ParentDeathSignal) atStart(*exec.Cmd) {}

// afterStart starts a shell that watches for the end of this process.
func (s ParentDeathSignal) afterStart(pid int) (*DeathWatch, error) {
	return WatchDeath(string(s), pid)
}

// FindsAllProcesses is false: ProcessesIn misses children whose server has ended.
const FindsAllProcesses = false

// ProcessesIn returns the server whose command line names dir as its data directory, and its
// children. It does not find children that have outlived their server.
func ProcessesIn(dir string) []int {
	out, err := exec.Command("ps", "-axww", "-o", "pid=,ppid=,stat=,command=").Output()
	if err != nil {
		return nil
	}
	parents := map[int]int{}
	var pids []int
	server := 0
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		if len(fields) < 4 || strings.HasPrefix(fields[2], "Z") {
			continue
		}
		pid, _ := strconv.Atoi(fields[0])
		parents[pid], _ = strconv.Atoi(fields[1])
		if strings.Contains(line, "postgres") && strings.Contains(line, "-D "+dir+" ") {
			server = pid
			pids = append(pids, pid)
		}
	}
	for pid, parent := range parents {
		if server != 0 && parent == server {
			pids = append(pids, pid)
		}
	}
	return pids
}

// IsStopped reports whether a process is stopped, or gone.
func IsStopped(pid int) bool {
	out, err := exec.Command("ps", "-o", "stat=", "-p", strconv.Itoa(pid)).Output()
	return err != nil || strings.ContainsAny(string(out)[:min(1, len(out))], "TZ")
}
