//go:build !unix

package emulators

import (
	"errors"
	"os"
	"os/exec"
)

// There is one way to end a process here, and none to stop it: what recovers at
// its next start survives that, and Freeze says that it cannot.
var (
	signalFast      = os.Kill
	signalImmediate = os.Kill
	signalStop      = os.Kill
	signalContinue  = os.Kill
)

// parentDeathSignal does nothing here: a program that is not ended outlives this process, until the
// next start kills what runs in its directory.
type parentDeathSignal struct{}

var whenOrphanedKill, whenOrphanedQuit parentDeathSignal

func (parentDeathSignal) atStart(*exec.Cmd) {}

func (parentDeathSignal) afterStart(int) (*deathWatch, error) { return nil, nil }

func ownGroup(*exec.Cmd) {}

const (
	findsAllProcesses = false
	canFreeze         = false
)

// processesIn finds nothing here.
func processesIn(string) []int { return nil }

func isStopped(int) bool { return false }

func signalAll(pids []int, _ os.Signal) error {
	if len(pids) == 0 {
		return nil
	}
	return errors.ErrUnsupported
}

// deathWatch is not used here.
type deathWatch struct{}

func watchDeath(string, ...int) (*deathWatch, error) { return nil, errors.ErrUnsupported }

func (*deathWatch) stop() {}
