//go:build unix

package containers

import "syscall"

// ownSession isolates the reaper from signals to its owner's terminal and process group.
func ownSession() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setsid: true} }
