//go:build (!unix && !windows) || solaris || aix

package host

import (
	"errors"
	"os"
)

// lockFile fails: this system has no lock that shows whether an owner lives, so no private server
// starts.
func lockFile(*os.File) error { return errors.ErrUnsupported }
