//go:build !unix

package kit

import (
	"errors"
	"os"
)

// CanPause reports whether this system can stop a process and resume it later.
const CanPause = false

// PauseProcess stops a process until ResumeProcess.
func PauseProcess(*os.Process) error { return errors.ErrUnsupported }

// ResumeProcess resumes a process that PauseProcess stopped.
func ResumeProcess(*os.Process) error { return errors.ErrUnsupported }
