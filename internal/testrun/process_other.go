//go:build !linux

package main

import (
	"os"
	"syscall"
)

// dieWithParent does nothing: only Linux can kill a child when its parent ends.
func dieWithParent() *syscall.SysProcAttr { return nil }

// forwarded are the signals that go test sends to a test binary.
var forwarded = []os.Signal{os.Interrupt}
