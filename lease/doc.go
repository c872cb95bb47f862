// Package lease implements the holder's side of a lease. A [Keeper] acquires a lease, runs a piece
// of work under it, renews it by heartbeats, ends the work before the store could grant the run to
// another holder, and releases the lease when the work has returned.
//
// # What it guarantees, and what it does not
//
// A keeper is for progress, not for safety. Two processes may both believe that they hold a run: a
// process that was stopped learns of its takeover only when it runs again. What keeps its late
// writes out is the fencing token, checked by the store inside every write (guarantee I3 of package
// runstore). So give [Held.Fence] to every batch; the keeper makes sure that a holder finds out
// early, stops, and does not keep a run from being driven.
//
//   - Trust is counted on the monotonic clock from the moment a request was sent, for the TTL less
//     a margin. A slow reply never extends it, and no clock is ever compared with the store's.
//   - The work's context is cancelled, with a [LostError] as its cause, before the lease expires on
//     the store clock, even if the store hangs; Options.Grace relaxes that. It is cancelled at once
//     when the store reports that the holder is fenced.
//   - One failed renewal does not end the lease: it is retried, sooner and with jitter, as long as
//     the lease is trusted.
//   - Renewals have jitter: leases that were granted together spread over half a heartbeat at once,
//     and further from renewal to renewal. No interval exceeds Options.Heartbeat.
//   - A waiting contender requests the lease as soon as the store reports that it may be free
//     (runstore.RunNotifier). Without such a report it polls.
//   - A successor can ask the holder for the lease ([Keeper.RequestHandoff]), and the holder passes it
//     on without a moment in which a third process could acquire it.
//   - When the work ends, by return, error, cancellation or panic, the lease is ended on a context of
//     its own, within a bound. The next holder reads that it was released only if the work returned; a
//     lease whose work panicked or never ran is revoked, so the next holder recovers the run.
//
// [Break] is for operators: it takes a lease away from its holder.
//
// The margin covers what no clock shows: the drift between two machines within one TTL, and the
// time that work needs to notice that its context has ended. Work that must not act untrusted calls
// [Held.Trusted] right before it acts.
package lease
