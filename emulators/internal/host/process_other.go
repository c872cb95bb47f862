//go:build !unix

package host

import (
	"errors"
	"os"
	"os/exec"
)

// There is one way to end a process here, and none to stop it: what recovers at
// its next start survives that, and Freeze says that it cannot.
var (
	SignalFast      = os.Kill
	SignalImmediate = os.Kill
	SignalStop      = os.Kill
	SignalContinue  = os.Kill
)

// ParentDeathSignal does nothing here: a program that is not ended outlives this process, until the
// next start kills what runs in its directory.
type ParentDeathSignal struct{}

// The signals do nothing.
var WhenOrphanedKill, WhenOrphanedQuit ParentDeathSignal

func (ParentDeathSignal) atStart(*exec.Cmd) {}

func (ParentDeathSignal) afterStart(int) (*DeathWatch, error) { return nil, nil }

func ownGroup(*exec.Cmd) {}

// What works on other systems.
const (
	FindsAllProcesses = false
	CanFreeze         = false
)

// ProcessesIn finds nothing here.
func ProcessesIn(string) []int { return nil }

// IsStopped returns false.
func IsStopped(int) bool { return false }

// SignalAll fails if there are processes.
func SignalAll(pids []int, _ os.Signal) error {
	if len(pids) == 0 {
		return nil
	}
	return errors.ErrUnsupported
}

// DeathWatch is not used here.
type DeathWatch struct{}

// WatchDeath fails.
func WatchDeath(string, ...int) (*DeathWatch, error) { return nil, errors.ErrUnsupported }

// Stop does nothing.
func (*DeathWatch) Stop() {}
