//go:build unix

package conformance

import (
	"os"
	"syscall"
)

// canPause reports whether this system can stop a process and resume it later.
const canPause = true

func pauseProcess(p *os.Process) error  { return p.Signal(syscall.SIGSTOP) }
func resumeProcess(p *os.Process) error { return p.Signal(syscall.SIGCONT) }
