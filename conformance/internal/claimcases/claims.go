package claimcases

import (
	"time"

	"github.com/tapestore/tapestore/conformance/harness"
	"github.com/tapestore/tapestore/internal/claimload"
	"github.com/tapestore/tapestore/runstore"
)

// Cases returns the cases that prove, by the guarantees of package claim, those that it relies on.
func Cases() []harness.Case {
	return []harness.Case{
		{Guarantee: "I9", Name: "a-claimed-message-is-neither-shared-nor-lost", Run: messages, Doc: `
			Four consumers on two handles put messages into a queue of package claim and claim, extend and end them, or
			die, over connections that lose, delay and refuse requests. No message is claimed while a claim of it lives,
			none is lost, and each is acknowledged once. A store that returns entries before they are due, or forgets
			a guard or an entry, fails.`},
		{Guarantee: "I4", Name: "holds-never-exceed-a-capacity", Run: holds, Doc: `
			Four callers on two handles hold, commit, cancel and return parts of a capacity of package claim, or die,
			over connections that lose, delay and refuse requests. Holds and commitments never exceed the capacity, and
			after the last expiry all of it can be held. A store that applies half of a batch, or two batches on one
			version, exceeds it or leaks a part.`},
	}
}

// load returns a load of four workers on two handles. Claims last 200 ms of real time: some expire
// on every machine, and what the checks require does not depend on how many do.
func load(t harness.T, e *harness.Env) claimload.Load {
	return claimload.Load{
		Stores: []runstore.RunStore{e.Store, e.Reopen(t)}, Seed: uint64(time.Now().UnixNano()), Faults: 0.1,
		Workers: 4, Rounds: e.Scaled(t, "rounds", 5, 15), TTL: 200 * time.Millisecond,
	}
}

func messages(t harness.T, e *harness.Env) { claimload.Messages(t, load(t, e), 2) }

func holds(t harness.T, e *harness.Env) { claimload.Holds(t, load(t, e), 20) }
