package kit

import (
	"os/exec"
	"syscall"
)

// dieWithParent asks the kernel to kill the child when its parent ends. The signal ends even a
// stopped child.
func dieWithParent(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
