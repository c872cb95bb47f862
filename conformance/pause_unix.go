//go:build unix

package conformance

import (
	"os"
	"syscall"
)

// canPause tells whether a process can be stopped in the middle of what it does.
const canPause = true

func pauseProcess(p *os.Process) error  { return p.Signal(syscall.SIGSTOP) }
func resumeProcess(p *os.Process) error { return p.Signal(syscall.SIGCONT) }
