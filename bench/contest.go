package bench

import (
	"context"
	"time"
)

// Strategy is one way of competing for leases, of a store or of a peer.
type Strategy struct {
	System string // Name of a System
	Name   string // "keeper with hints"
	// New makes a contest for the given numbers of contenders and leases.
	New func(ctx context.Context, contenders, leases int) (Contest, error)
}

// Contest is a set of leases for which contenders compete, numbered from 0.
type Contest interface {
	// Turn runs one turn of a contender: it waits until the contender holds the lease, commits one
	// write under the lease, and releases it. Turns of different contenders run concurrently; turns
	// of one contender follow each other.
	//
	// If ctx ends while the contender waits, Turn returns an error that matches that of ctx, with
	// the attempts, calls and losses so far. A contender that already holds the lease should finish
	// its turn.
	Turn(ctx context.Context, contender, lease int) (Turn, error)
	// Committed returns the number of writes that the turns left in the store. The benchmark
	// compares it with the number of turns.
	Committed(ctx context.Context) (int, error)
	Close() error
}

// Turn describes the cost of one turn.
type Turn struct {
	Waited   time.Duration   // from the first attempt to the grant
	Attempts int             // acquire requests, the successful one included
	Calls    int             // requests to the store during the whole turn
	Lost     []time.Duration // the duration of each refused attempt; empty where the system reports no refusal
}

// Pauser is a Contest that can show what happens to the late write of a paused holder, the scenario
// that fencing tokens exist for: a holder is paused beyond its lease, another contender takes the
// lease over and writes, and then the first holder wakes and writes as if it still held the lease.
type Pauser interface {
	PauseAndWake(ctx context.Context) (Woke, error)
}

// Woke describes the outcome of a late write by a holder that was paused beyond its lease.
type Woke struct {
	Stored bool   // the late write is in the store
	Answer string // the system's reply to the late write
	// Takeover is the time from the pause to the successor's grant, and TTL is the lease's time to
	// live.
	Takeover, TTL time.Duration
}
