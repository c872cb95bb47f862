// Package tapeclient is a Go client of Tape's wire protocol, gRPC service tape.v1.Tape: a driver of
// runs, and loops for the work that the protocol leaves to clients.
//
// # Driver
//
// [Client.Begin] and [Client.Resume] take a run's lease, renew it by heartbeats ([lease.Keeper]) and
// run the caller's work under it. They guarantee:
//
//   - Every write that names the run, and every write to a session, presents the fencing token of
//     the grant when it goes through [Run.Tape]. A server that checks fences, as package tapeserver does, applies it only while the
//     grant is current.
//   - The work's context is cancelled, with a [lease.LostError] as its cause, as soon as a heartbeat
//     or a write is refused because the grant is not current, and before the lease expires if no
//     heartbeat succeeds.
//   - [Run.Act] calls the counterparty only after BeginEffect has recorded the effect as PENDING in
//     this run and INLINE, and only while the lease is trusted. It never calls after a refusal: PERMISSION_DENIED from
//     BeginEffect ([ErrDenied]) means that the client must not act.
//
// The protocol has no request that releases a lease. A run's lease ends with [Run.End] and with a
// gate that parks the run ([Run.Await]), and else it expires: work that returns without either
// leaves its run to the recovery loop of another process, after the TTL.
//
// # Errors
//
// A failed call is an [*Error], which names the RPC, the run and the server's reason. It matches the
// kinds of package runstore and, where there is one, of package tape, with errors.Is; the details
// (runstore.FencedError, runstore.LeaseHeldError) are found with errors.As, and the gRPC status with
// status.FromError. runstore.OutcomeOf says what a failed write did: applied, not applied or unknown.
//
// # Lost replies
//
// A call that was not applied for a reason that passes, or whose outcome is unknown, is repeated with
// the same identity until Options.RetryTimeout has passed or its context has ended. The identity is
// the protocol's: a decision's index, an effect's key, a claim's generation. Writes whose
// repeat would be applied again (ChargeBudget, SendSignal, SetTimer and the others that [Client.Tape]
// lists) are repeated only if they were surely not applied.
//
// # Loops
//
// [Client.RecoverRuns], [Client.DispatchEffects], [Client.ResolveObligations], [Client.FireTimers] and
// [Client.ReconcileEffects] each look for work at every tick and handle it under a claim, whose
// generation the report presents. So of two processes that run the same loop one handles a piece
// of work at a time, and a late report of a claim that has lapsed changes nothing.
package tapeclient
