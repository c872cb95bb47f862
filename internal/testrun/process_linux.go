package main

import (
	"os"
	"syscall"
)

// dieWithParent makes the kernel kill a child when this process ends.
//
// The signal is tied to the thread that starts the child, so its caller locks the thread
// until the child has ended.
func dieWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }

// forwarded are the signals that go test sends to a test binary.
var forwarded = []os.Signal{syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM}
