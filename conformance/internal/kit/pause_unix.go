//go:build unix

package kit

import (
	"os"
	"syscall"
)

// CanPause reports whether this system can stop a process and resume it later.
const CanPause = true

// PauseProcess stops a process until ResumeProcess.
func PauseProcess(p *os.Process) error { return p.Signal(syscall.SIGSTOP) }

// ResumeProcess resumes a process that PauseProcess stopped.
func ResumeProcess(p *os.Process) error { return p.Signal(syscall.SIGCONT) }
