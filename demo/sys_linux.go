package main

import "syscall"

// childAttributes makes a child die with this process, however that ends, and isolates it from the
// terminal's Ctrl-C: the demo ends its children itself.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
}
