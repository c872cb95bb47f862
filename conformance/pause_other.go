//go:build !unix

package conformance

import (
	"errors"
	"os"
)

// canPause reports whether this system can stop a process and resume it later.
const canPause = false

func pauseProcess(*os.Process) error  { return errors.ErrUnsupported }
func resumeProcess(*os.Process) error { return errors.ErrUnsupported }
