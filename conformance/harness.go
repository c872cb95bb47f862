package conformance

import (
	"context"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// Harness tells the suite how to make stores of one engine. Its author writes
// New; everything else in an [Instance] but Open is optional, and what is left
// out is reported, case by case, as not applicable with the reason.
type Harness struct {
	// New makes an empty store of the case's own. Cases run in parallel.
	New func(t T) Instance

	// NewOvertaking is New for cases in which a writer gets past another one that is held up
	// at the engine ([Case].Overtakes). Nil, which is right for most engines, means New. It is
	// for an engine that can be set up in several ways of which only one lets a writer by:
	// an emulator that keeps all others waiting behind a transaction that has begun, say.
	NewOvertaking func(t T) Instance

	// NewServed makes an empty store on a server of the case's own, for cases that
	// kill or stop the server. Nil where no server stands between a handle and its
	// store, or where it is not ours to kill.
	NewServed func(t T) (Instance, Server)

	// Costly says that a run costs much for what it can find: the engine spends milliseconds of
	// this machine's CPU on each operation, as an emulator may, or the adapter is another's behind
	// one more layer. Unless the run is full (see EffortVariable), steps over two runs are then made
	// as the store itself makes them only.
	Costly bool

	// Tier tells where the engine comes from, in the words of
	// runstore.Description, where the harness knows better than the store: a store
	// cannot tell a private server that was started for the suite from one that
	// others depend on. Empty leaves it to the store.
	Tier string
}

// Server is the process that serves a store. Handles stay open throughout.
type Server interface {
	// Kill ends the server at once, as kill -9 does.
	Kill() error
	// Restart starts it again on what it had stored, where the handles find it.
	Restart(ctx context.Context) error
	// Freeze stops the server without ending it; its connections stay open.
	Freeze() error
	// Thaw lets a frozen server go on.
	Thaw() error
}

// Instance is one store under test.
type Instance struct {
	// Open returns another handle on the store. Each stands for a process of its
	// own; the suite closes it.
	Open func(ctx context.Context) (runstore.RunStore, error)

	// OpenSkewed returns a handle of a process whose clock is wrong: the handle reads
	// the time of day by calling clock, wherever it would have called time.Now, and
	// in no other way. The suite sets that clock hours ahead, hours back and right
	// again while the handle is open; only the time of day steps, so durations are to
	// be measured by monotonic readings.
	//
	// The suite counts the calls. A handle that makes none while its clock is wrong
	// proves nothing, so that the case fails. Leave OpenSkewed nil where nothing in a
	// process can be set wrong: where no handle reads a clock of its process, or
	// where all handles share the store's. The cases are then not applicable.
	OpenSkewed func(ctx context.Context, clock func() time.Time) (runstore.RunStore, error)

	// FollowsClockAhead says that the engine has no clock but that of its host, and
	// follows a process that finds the host's clock ahead. The suite then sets clocks
	// back only.
	FollowsClockAhead bool

	// AdvanceClock moves the store clock forward. Nil means that cases which need time
	// to pass wait for it.
	AdvanceClock func(d time.Duration)

	// BlockWriters holds writers up at the engine, after they asked it and before it
	// committed (an open transaction that holds their lock, a delayed request),
	// until resume is called. Readers go on.
	BlockWriters func(t T) (resume func())

	// BlockPuts holds up writes that put a record in the middle, until resume is called:
	// the engine has locked their run and has not committed, as a transaction that is
	// left open. Writes without records go on. held waits until n writes are held up.
	// Nil, for an engine that keeps no lock while it applies a write, means that cases
	// use BlockWriters instead.
	BlockPuts func(t T) (held func(ctx context.Context, n int) error, resume func())

	// URL opens the same store by runstore.Open in another process. It makes the
	// cases possible that kill a process.
	URL string
	// Network makes a network between handles and the store that the case can harm:
	// handles opened by its Open go through it, those of the Instance's own Open do
	// not. The suite closes the handles, the harness ends the link.
	Network func(t T) Network
	// Aborts makes the engine abort transactions of the handles that Open returns. Nil
	// where no client makes transactions again. The case ends what it began.
	Aborts func(t T) Aborts
}

// Aborts makes an engine abort transactions. Each of its methods returns how to end it,
// and how many transactions were aborted by then.
type Aborts interface {
	// Next lets, from now on, so many requests of transactions pass, and aborts the
	// transaction of the following one, once.
	Next(after int) (end func() (aborted int))
	// AtRandom aborts the transaction of that fraction of requests, as chosen by the seed.
	AtRandom(fraction float64, seed uint64) (end func() (aborted int))
}

// Network is a network that a case can harm.
type Network struct {
	// Open returns another handle, whose connections all go through the network.
	Open   func(ctx context.Context) (runstore.RunStore, error)
	Faults Faults
}

// Faults does harm to the connections of a network: to those there are and to those
// to come, and until Reset, where nothing else is said. What a handle sends on a
// connection in one go is a request, what it gets in one go is an answer. The Network
// of package conformance/link implements it.
type Faults interface {
	// Delay holds up every request and every answer by d.
	Delay(d time.Duration)
	// Cut resets connections.
	Cut()
	// Blackhole keeps connections open and passes nothing. Reset resets them.
	Blackhole()
	// DropReplies lets, on each connection, so many answers pass, throws the next
	// one away and resets the connection. Requests pass.
	DropReplies(after int)
	// Hold lets, on each connection, so many requests pass and keeps the following
	// ones in flight. Reset delivers them, whether or not their sender still lives.
	Hold(after int)
	// DropClientSide resets the handles' side of all connections, once. What Hold has kept
	// stays in flight, new connections pass.
	DropClientSide()
	// Reset ends all harm.
	Reset()
	// AwaitDropped waits until n answers were dropped since DropReplies was called.
	AwaitDropped(ctx context.Context, n int) error
	// AwaitHeld waits until requests of n connections are held.
	AwaitHeld(ctx context.Context, n int) error
	// AwaitAnswered waits, after Reset, until the server answered or closed the
	// connections whose requests were held.
	AwaitAnswered(ctx context.Context) error
}
