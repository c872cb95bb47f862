//go:build !unix

package main

import (
	"errors"
	"os"
	"syscall"
)

func childAttributes() *syscall.SysProcAttr { return nil }

// freeze and thaw have no counterpart here.
func freeze(*os.Process) error { return errors.ErrUnsupported }
func thaw(*os.Process) error   { return errors.ErrUnsupported }
