//go:build (!unix && !windows) || solaris || aix

package filelock

import (
	"errors"
	"os"
)

// Try fails: this system has no lock that ends with its process.
func Try(*os.File) (bool, error) { return false, errors.ErrUnsupported }

// Release does nothing.
func Release(*os.File) {}
