// Package tapeclient is a Go client of Tape's wire protocol, the gRPC service tape.v1.Tape: a
// driver of runs, and loops for the work that the protocol leaves to clients.
//
// # Driver
//
// [Client.Begin] and [Client.Resume] acquire a run's lease, renew it by heartbeats ([lease.Keeper])
// and run the caller's work under it. They guarantee:
//
//   - Every write through [Run.Tape] that names the run, and every write to a session, presents the
//     fencing token of the grant. A server that checks fences, as package tapeserver does, applies
//     the write only while the grant is current.
//   - The work's context is cancelled, with a [lease.LostError] as its cause, as soon as a
//     heartbeat or a write is refused because the grant is not current, and before the lease
//     expires if no heartbeat succeeds.
//   - [Run.Act] calls the counterparty only after BeginEffect has recorded the effect as PENDING in
//     this run and INLINE, and only while the lease is trusted. It never calls after a refusal:
//     PERMISSION_DENIED from BeginEffect ([ErrDenied]) means that the client must not act.
//
// The protocol has no request that releases a lease. A run's lease ends with [Run.End] and with a
// gate that parks the run ([Run.Await]); otherwise it expires. If work returns without either, the
// recovery loop of another process takes the run after the TTL.
//
// # Errors
//
// A failed call returns an [*Error], which names the RPC, the run and the server's reason. With
// errors.Is it matches the kinds of package runstore and, if there is one, of package tape;
// errors.As finds the details (runstore.FencedError, runstore.LeaseHeldError), and status.FromError
// the gRPC status. runstore.OutcomeOf returns whether a failed write was applied, was not applied
// or has an unknown outcome.
//
// # Lost replies
//
// A call that was not applied for a transient reason, or whose outcome is unknown, is repeated with
// the same identity until Options.RetryTimeout has passed or its context has ended. The identity is
// the protocol's: a decision's index, an effect's key, a claim's generation. Writes whose repeat
// would be applied again (ChargeBudget, SendSignal, SetTimer and the others that [Client.Tape]
// lists) are repeated only if they were surely not applied. [Client.FireTimers] documents its
// SetTimer, which is an exception.
//
// # Loops
//
// [Client.RecoverRuns], [Client.DispatchEffects], [Client.ResolveObligations], [Client.FireTimers]
// and [Client.ReconcileEffects] each look for work at every tick and handle it under a claim, whose
// generation the report presents. So if two processes run the same loop, only one handles a piece
// of work at a time, and a late report under a lapsed claim changes nothing.
package tapeclient
