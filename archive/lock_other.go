//go:build (!unix && !windows) || solaris || aix

package archive

import (
	"errors"
	"os"
)

// lockFile does nothing: this system has no lock that ends with its process.
func lockFile(*os.File) error { return errors.ErrUnsupported }
