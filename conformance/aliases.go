package conformance

import (
	"context"

	"github.com/tapestore/tapestore/conformance/harness"
)

// The names of package conformance/harness that a test of an adapter mentions. Fields and methods
// are documented there.

// Harness makes stores of one engine for the suite. It is [harness.Harness].
type Harness = harness.Harness

// Instance is one store under test. It is [harness.Instance].
type Instance = harness.Instance

// Server is the process that serves a store. It is [harness.Server].
type Server = harness.Server

// Aborts makes an engine abort transactions. It is [harness.Aborts].
type Aborts = harness.Aborts

// Network is a network in which a case can cause faults. It is [harness.Network].
type Network = harness.Network

// Faults injects faults into the connections of a network. It is [harness.Faults].
type Faults = harness.Faults

// T is what a case needs of a test. It is [harness.T].
type T = harness.T

// Case is one rule of the contract and the test that proves it. It is [harness.Case].
type Case = harness.Case

// Need is a feature that only some stores or harnesses offer. It is [harness.Need].
type Need = harness.Need

// Env is the environment of a case. It is [harness.Env].
type Env = harness.Env

// ProcessClock is the clock of one process, which a case can set wrong. It is
// [harness.ProcessClock].
type ProcessClock = harness.ProcessClock

// The needs that a case may list.
var (
	NeedSkew         = harness.NeedSkew
	NeedBlockWriters = harness.NeedBlockWriters
	NeedProcesses    = harness.NeedProcesses
	NeedNetwork      = harness.NeedNetwork
	NeedAborts       = harness.NeedAborts
	NeedServer       = harness.NeedServer
	NeedMulti        = harness.NeedMulti
	NeedIntent       = harness.NeedIntent
	NeedCheap        = harness.NeedCheap
	NeedEpoch        = harness.NeedEpoch
	NeedNotify       = harness.NeedNotify
	NeedRunNotify    = harness.NeedRunNotify
	NeedStale        = harness.NeedStale
)

// TTL is 5 minutes: long enough that no lease of a case expires unless the case makes it expire.
const TTL = harness.TTL

// SeedVariable is the environment variable whose value repeats a case's random choices.
const SeedVariable = harness.SeedVariable

// Refused fails the case unless err matches want.
func Refused(t T, what string, err, want error) {
	t.Helper()
	harness.Refused(t, what, err, want)
}

// RunPlain runs f as a case called name, outside go test, and returns whether it failed and its
// messages. A panic fails the case and does not end the program.
func RunPlain(ctx context.Context, name string, f func(T)) (failed bool, messages []string) {
	return harness.RunPlain(ctx, name, f)
}
