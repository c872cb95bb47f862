//go:build unix

package containers

import "syscall"

// ownSession keeps the keeper out of what is done to its owner's terminal and
// process group.
func ownSession() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setsid: true} }
