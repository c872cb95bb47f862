package emulators

import (
	"errors"
	"fmt"
)

// Where an engine comes from: its tier.
const (
	// TierLocal is an engine of this machine: its programs, our processes.
	TierLocal = "local"
	// TierEmulator is what stands in for an engine that only its vendor runs.
	TierEmulator = "emulator"
	// TierService is a server that the environment names.
	TierService = "service"
	// TierContainer is a container, started by what RegisterContainer was given.
	TierContainer = "container"
)

// ErrMissing says that an engine was found nowhere on this machine, by no tier.
// The error that wraps it names what was looked for, where, and what to install.
var ErrMissing = errors.New("engine not found")

// ErrNotOwned says that a server cannot be killed, stopped or restarted because
// this process did not start it.
var ErrNotOwned = errors.New("the server is not ours")

// Engine says what a started engine is. A test binary prints it once, so that a
// result can be read together with what it was got on.
type Engine struct {
	Name    string // "postgres"
	Version string // "15.18"
	Tier    string // TierLocal, TierEmulator, TierService or TierContainer
}

// String is "postgres 15.18 (local)".
func (e Engine) String() string { return fmt.Sprintf("%s %s (%s)", e.Name, e.Version, e.Tier) }
