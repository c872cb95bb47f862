//go:build unix && !linux

package main

import "syscall"

// childAttributes isolates a child from the terminal's Ctrl-C: the demo ends its children itself.
// If the demo is killed, the bank and the workers detect it by the end of their input.
func childAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
