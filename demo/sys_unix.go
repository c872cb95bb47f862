//go:build unix && !linux

package main

import "syscall"

// childAttributes keeps a child out of the terminal's Ctrl-C: the demo ends its
// children itself. If it cannot, the bank and the workers find their input closed.
func childAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
