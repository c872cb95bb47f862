//go:build !unix

package containers

import "syscall"

func ownSession() *syscall.SysProcAttr { return nil }
