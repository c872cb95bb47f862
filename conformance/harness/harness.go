package harness

import (
	"context"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// Harness makes stores of one engine for the suite. Its author writes New. In an [Instance], every
// field but Open is optional; the cases that need a missing field are reported as not applicable,
// with the reason.
type Harness struct {
	// New makes an empty store for one case. Cases run in parallel.
	New func(t T) Instance

	// NewOvertaking makes the store of a case in which one writer is blocked at the engine and
	// another writer of the same run must get past it ([Case].Overtakes). Nil, which is right for
	// most engines, means New. Set it for an engine that can be set up in several ways of which
	// only one lets the second writer pass, such as an emulator that by default queues all
	// transactions behind an open one.
	NewOvertaking func(t T) Instance

	// NewServed makes an empty store on a server of the case's own, for cases that kill or freeze
	// the server. It is nil where no server stands between a handle and its store, or where the
	// suite may not kill the server.
	NewServed func(t T) (Instance, Server)

	// Costly reports that a run is expensive for what it can find: the engine takes milliseconds of
	// this machine's CPU for each operation, as an emulator may, or the adapter is another adapter
	// behind one more layer. Unless the run is full (see effort.Variable), steps over two runs are
	// then made in one way only: the store's own, and cases that need a cheap engine ([NeedCheap]) are
	// not applicable. Counts that such an engine cannot reach are
	// smaller in a full run too ([Env.Affordable]).
	Costly bool

	// Tier says where the engine comes from, in the words of runstore.Description, where the
	// harness knows better than the store: a store cannot tell a private server that was started
	// for the suite from a shared one. Empty means the store's own description.
	Tier string
}

// Server is the process that serves a store. Handles stay open while it is killed or frozen.
type Server interface {
	// Kill ends the server at once, as kill -9 does.
	Kill() error
	// Restart starts the server again on its stored data, at the address that the handles use.
	Restart(ctx context.Context) error
	// Freeze stops the server without ending it; its connections stay open.
	Freeze() error
	// Thaw resumes a frozen server.
	Thaw() error
}

// Instance is one store under test.
type Instance struct {
	// Open returns a further handle on the store, which stands for another process. The suite
	// closes it.
	Open func(ctx context.Context) (runstore.RunStore, error)

	// OpenSkewed returns a handle of a process whose clock is wrong. The handle reads the time of
	// day by calling clock wherever it would have called time.Now, and in no other way. The suite
	// sets that clock hours ahead, hours back and right again while the handle is open. Only the
	// time of day steps, so durations have to be measured by monotonic readings.
	//
	// The suite counts the calls. A handle that makes none while its clock is wrong proves nothing,
	// and the case fails. Leave OpenSkewed nil where no clock of a process can be set wrong: where
	// no handle reads its process's clock, or where all handles share the store's clock. The cases
	// are then not applicable.
	OpenSkewed func(ctx context.Context, clock func() time.Time) (runstore.RunStore, error)

	// FollowsClockAhead reports that the engine's only clock is its host's, and that the engine
	// follows a process that finds the host's clock ahead. The suite then sets clocks back only.
	FollowsClockAhead bool

	// AdvanceClock moves the store clock forward. Nil means that cases wait for time to pass.
	AdvanceClock func(d time.Duration)

	// BlockWriters blocks writers at the engine until resume is called: after the request reached
	// the engine and before the engine commits, as by an open transaction that holds a lock, or a
	// delayed request. Reads are not blocked. held waits until the engine has blocked n
	// writes. It is nil if the engine does not show blocked writers; a case then gives its writers
	// 20 ms to reach the engine.
	BlockWriters func(t T) (held func(ctx context.Context, n int) error, resume func())

	// BlockPuts blocks writes that put a record in the middle, until resume is called: the engine
	// has locked their run and has not committed, as in a transaction that was left open. Writes
	// without records are not blocked. held waits until n writes are blocked. Nil, for an engine
	// that keeps no lock while it applies a write, means that cases use BlockWriters instead.
	BlockPuts func(t T) (held func(ctx context.Context, n int) error, resume func())

	// URL opens the same store by runstore.Open in another process. Cases that kill a process need
	// it.
	URL string
	// Network makes a network between handles and the store, in which the case can cause faults.
	// Handles opened by the Network's Open go through it; handles opened by the Instance's Open do
	// not. The suite closes the handles, and the harness ends the network.
	Network func(t T) Network
	// Aborts makes the engine abort transactions of the handles that Open returns. Nil where no
	// client retries transactions. The case ends every fault that it begins.
	Aborts func(t T) Aborts
}

// Aborts makes an engine abort transactions. Each method returns a function that ends the fault and
// returns how many transactions were aborted.
type Aborts interface {
	// Next lets the next after requests of transactions pass and aborts, once, the transaction of
	// the request that follows them.
	Next(after int) (end func() (aborted int))
	// AtRandom aborts the transactions of this fraction of the requests, chosen by the seed.
	AtRandom(fraction float64, seed uint64) (end func() (aborted int))
}

// Network is a network in which a case can cause faults.
type Network struct {
	// Open returns a further handle, whose connections all go through the network.
	Open   func(ctx context.Context) (runstore.RunStore, error)
	Faults Faults
	// MayLeaveUnanswered reports that the server need not answer a held request that arrives late,
	// because the engine's protocol has requests without an answer. A case then waits 5 s for the
	// answers, and the report says which were missing: what such a request changes later is not
	// checked. By default a missing answer fails the case.
	MayLeaveUnanswered bool
}

// Faults injects faults into the connections of a network. Unless a method says otherwise, a fault
// affects open and future connections, and lasts until Reset. The bytes that a handle sends on a
// connection in one go are a request; the bytes that it receives in one go are an answer. The types
// Link and RPC of package conformance/faultynetwork implement Faults.
type Faults interface {
	// Delay delays every request and every answer by d.
	Delay(d time.Duration)
	// Cut resets all connections, and new ones at once.
	Cut()
	// Blackhole keeps connections open and passes nothing. Reset resets these connections.
	Blackhole()
	// DropReplies lets the first after answers on each connection pass, drops the next one and
	// resets the connection. Requests pass.
	DropReplies(after int)
	// Hold lets the first after requests on each connection pass and keeps the later ones in
	// flight. Reset delivers them, even if their sender has ended.
	Hold(after int)
	// DropClientSide resets the handles' side of all open connections, once. Requests that Hold
	// keeps stay in flight, and new connections pass.
	DropClientSide()
	// Reset ends all faults.
	Reset()
	// AwaitDropped waits until n answers were dropped since the last call of DropReplies.
	AwaitDropped(ctx context.Context, n int) error
	// AwaitHeld waits until requests of n connections are held.
	AwaitHeld(ctx context.Context, n int) error
	// AwaitAnswered waits, after Reset, until the server has answered or closed the connections
	// whose requests were held.
	AwaitAnswered(ctx context.Context) error
}
