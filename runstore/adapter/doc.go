// Package adapter is the kit from which engines make stores. An engine implements [Core], whose
// methods may assume checked input and an open handle. [New] makes the runstore.RunStore of it and
// adds, in one place for all engines:
//
//   - the checks of the input (I12), before the engine is asked
//   - the life of the handle: ErrClosed after Close, which waits for the operations in flight
//   - the id of a grant that the caller left to the store
//   - the frame of an error: the operation, the run, the kind and the cause (I11); and an empty
//     result beside every error
//   - the wake-ups of callers in this process that wait for a run
//   - the name of the operation in the context, for interceptors: see [Operation]
//
// An optional capability is a small type of this package that the engine's store embeds beside
// [*Store]: [MultiCommitter], [EpochManager], [Notifier], [RunNotifier], [TermReader],
// [Mover].
//
// The other packages below this one hold what adapters share: rules (decisions on leases and
// guards), outcome (kinds of errors, retries), sqlfile (statements in files) and wakeup (waiters
// within a process).
package adapter
