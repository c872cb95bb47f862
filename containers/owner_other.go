//go:build !linux

package containers

import (
	"errors"
	"os"
	"runtime"
	"syscall"
)

// processScope names this machine.
func processScope() (string, error) { return os.Hostname() }

// processBegan cannot tell when a process began, only whether it is there.
func processBegan(pid int) (began string, alive bool) {
	p, err := os.FindProcess(pid)
	if err != nil || runtime.GOOS == "windows" { // where finding one says it all
		return "?", err == nil
	}
	err = p.Signal(syscall.Signal(0))
	return "?", err == nil || errors.Is(err, os.ErrPermission)
}
