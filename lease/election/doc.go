// Package election keeps one of many replicas active: leader election for a scheduler, a reconciler
// or any other singleton, on the lease of a run. Each replica runs a [Coordinator] of the same name.
//
// # What it guarantees
//
//   - The work runs under a lease, and its writes present the lease's fence ([lease.Held.Fence]). Of
//     two replicas that both believe to be active, the store accepts the writes of the later one only
//     (I3). Every write accepted under an earlier term comes before every write of a later one.
//   - The work's context ends, with a lease.LostError as its cause, before the store could grant the
//     lease to another replica, or as soon as the store reports that it has.
//   - A replica that lost its lease becomes a standby again; its process goes on.
//   - A replica that stops, or steps down, releases the lease once its work has returned. A standby
//     takes over at once where the store announces releases (runstore.RunNotifier), and otherwise
//     within Options.AcquireInterval.
//   - After the death of the active replica a standby takes over within the TTL and one
//     AcquireInterval: 35 s with the defaults.
//
// A single replica needs nothing special: it becomes active at once, and after a crash when the
// lease of its former process has expired.
//
// # What it does not guarantee
//
// The fence is checked by the store. What the work does elsewhere, such as calls of other services,
// is not fenced: a replica that is paused right before such a call makes it when it resumes. Pass
// the token on to services that can check it.
package election
