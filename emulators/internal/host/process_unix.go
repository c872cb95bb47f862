//go:build unix

package host

import (
	"errors"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
)

// The signals of a PostgreSQL server.
var (
	SignalFast      os.Signal = syscall.SIGINT  // ends the sessions, then a clean shutdown
	SignalImmediate os.Signal = syscall.SIGQUIT // ends at once; recovers at the next start
	SignalStop      os.Signal = syscall.SIGSTOP
	SignalContinue  os.Signal = syscall.SIGCONT
)

// CanFreeze reports whether processes can be stopped on this system.
const CanFreeze = true

func ownGroup(cmd *exec.Cmd) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = true
}

// SignalAll sends a signal to all these processes and ignores those that have ended.
func SignalAll(pids []int, signal os.Signal) error {
	var failed []error
	for _, pid := range pids {
		err := syscall.Kill(pid, signal.(syscall.Signal))
		if err != nil && !errors.Is(err, syscall.ESRCH) {
			failed = append(failed, os.NewSyscallError("kill "+strconv.Itoa(pid), err))
		}
	}
	return errors.Join(failed...)
}

// DeathWatch is a shell that signals processes once this process has ended.
type DeathWatch struct {
	cmd *exec.Cmd
	end interface{ Close() error }
}

// WatchDeath starts the shell. It reads from a pipe to which nothing is ever written, and whose
// other end closes when this process ends, in whatever way.
func WatchDeath(signal string, pids ...int) (*DeathWatch, error) {
	words := []string{"read nothing; kill -" + signal}
	for _, pid := range pids {
		words = append(words, strconv.Itoa(pid))
	}
	cmd := exec.Command("/bin/sh", "-c", strings.Join(words, " "))
	ownGroup(cmd)
	end, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return &DeathWatch{cmd: cmd, end: end}, nil
}

// Stop ends the watch. It must be called when the processes have ended, because their ids will be
// reused.
func (w *DeathWatch) Stop() {
	if w == nil {
		return
	}
	_ = w.cmd.Process.Kill()
	_ = w.end.Close()
	_ = w.cmd.Wait() // its error is that it was killed
}
