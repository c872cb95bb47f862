package claim_test

import (
	"os/exec"
	"syscall"
)

// dieWithParent makes the kernel kill the process when its parent ends.
func dieWithParent(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
