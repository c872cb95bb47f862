//go:build !linux

package containers

import (
	"errors"
	"os"
	"runtime"
	"syscall"
)

// processScope identifies this machine.
func processScope() (string, error) { return os.Hostname() }

// processBegan reports only whether a process exists; its start time is not known here.
func processBegan(pid int) (began string, alive bool) {
	p, err := os.FindProcess(pid)
	if err != nil || runtime.GOOS == "windows" { // on Windows FindProcess already fails for a process that is gone
		return "?", err == nil
	}
	err = p.Signal(syscall.Signal(0))
	return "?", err == nil || errors.Is(err, os.ErrPermission)
}
