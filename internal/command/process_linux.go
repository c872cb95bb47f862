package command

import (
	"os/exec"
	"syscall"
)

// dieWithParent asks the kernel to kill the process when its parent ends.
func dieWithParent(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
