package emulators

import (
	"errors"
	"fmt"
)

// Where an engine comes from: its tier.
const (
	// TierLocal is an engine of this machine: its programs, run as our processes.
	TierLocal = "local"
	// TierEmulator is a stand-in for an engine that only its vendor runs.
	TierEmulator = "emulator"
	// TierService is a server that the environment names.
	TierService = "service"
	// TierContainer is a container, started by the function that RegisterContainer was given.
	TierContainer = "container"
)

// ErrMissing reports that no tier of an engine is available on this machine. The error that wraps
// it names what was looked for, where, and what to install.
var ErrMissing = errors.New("engine not found")

// ErrNotOwned reports that a server cannot be killed, stopped or restarted because this process did
// not start it.
var ErrNotOwned = errors.New("the server is not ours")

// Engine describes a started engine. A test binary prints it once, so that a result can be read
// with the engine that produced it.
type Engine struct {
	Name    string // "postgres"
	Version string // "15.18"
	Tier    string // TierLocal, TierEmulator, TierService or TierContainer
}

// String returns a text such as "postgres 15.18 (local)".
func (e Engine) String() string { return fmt.Sprintf("%s %s (%s)", e.Name, e.Version, e.Tier) }
