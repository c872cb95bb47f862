//go:build !linux

package main

import (
	"os"
	"syscall"
)

// dieWithParent does nothing: only Linux can tie a child's life to its parent's.
func dieWithParent() *syscall.SysProcAttr { return nil }

// forwarded are the signals that go test sends to a test binary.
var forwarded = []os.Signal{os.Interrupt}
