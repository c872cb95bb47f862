package bench

import (
	"context"
	"time"
)

// Strategy is one way of competing for leases: that of a store or that of a peer.
type Strategy struct {
	System string // Name of a System
	Name   string // "keeper with hints"
	// New makes a contest for so many contenders and leases.
	New func(ctx context.Context, contenders, leases int) (Contest, error)
}

// Contest is a set of leases for which contenders compete, numbered from 0.
type Contest interface {
	// Turn is a contender's whole turn: it waits until it holds the lease, commits one
	// write under it, and releases it. Turns of different contenders run at once, turns of
	// one contender follow each other.
	//
	// A ctx that ends while the contender waits ends the turn, with an error that matches
	// that of ctx, and with the attempts, calls and losses until then. A contender that
	// holds the lease by then should finish its turn.
	Turn(ctx context.Context, contender, lease int) (Turn, error)
	// Committed counts the writes that the turns left in the store. The benchmark compares
	// the number with that of the turns.
	Committed(ctx context.Context) (int, error)
	Close() error
}

// Turn is what a turn took.
type Turn struct {
	Waited   time.Duration   // from the first attempt to the grant
	Attempts int             // requests for the lease, the successful one included
	Calls    int             // requests to the store of the whole turn
	Lost     []time.Duration // how long each refused attempt took; empty where the system reports no refusal
}

// Pauser is a Contest that can show what a paused holder does. It is the scenario behind every
// fencing token: a holder is paused beyond its lease, another contender takes the lease over and
// writes, then the first wakes and writes as if it still held the lease.
type Pauser interface {
	PauseAndWake(ctx context.Context) (Woke, error)
}

// Woke is what happened to the write of a holder that was paused beyond its lease.
type Woke struct {
	Stored bool   // the late write is in the store
	Answer string // what the system answered to the late write
	// Takeover is the time from the pause to the grant of the successor, and TTL that of the
	// lease.
	Takeover, TTL time.Duration
}
