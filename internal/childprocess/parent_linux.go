package childprocess

import (
	"os/exec"
	"syscall"
)

// DieWithParent makes the kernel kill the child when its parent ends. The signal ends even a stopped
// child.
func DieWithParent(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
