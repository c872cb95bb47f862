// Package history records what the holders and contenders of leases see, in the tests of the lease
// runtime, and checks that a lease that changes in one step at a time explains all of it.
//
// A [Log] contains the requests that processes send through [Log.Through], and what the runtime
// reports to its callers: that a lease is trusted, and how a holder's work ended. [Log.Check] checks
// each run's operations for linearizability.
//
// A request of unknown outcome was applied between its call and its return, or never: a test must not
// deliver copies later. Times are those of the process, so the store clock has to be the same, as in a
// bubble of testing/synctest.
package history
