//go:build !unix

package conformance

import (
	"errors"
	"os"
)

// canPause tells whether a process can be stopped in the middle of what it does.
const canPause = false

func pauseProcess(*os.Process) error  { return errors.ErrUnsupported }
func resumeProcess(*os.Process) error { return errors.ErrUnsupported }
