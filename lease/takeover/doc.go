// Package takeover drives runs that have no driver. A [Worker] scans an index for runs that are due,
// acquires their leases and runs a piece of work under each lease. Any number of workers, in any
// number of processes, share the runs of one store without a coordinator.
//
// # What it guarantees
//
//   - Work runs only under a lease, which a [lease.Keeper] renews; the work's context ends when the
//     lease is lost. The store refuses the late writes of a worker that was replaced (I3).
//   - A step over two runs that the former holder left in progress is completed before the work
//     starts ([crossrun.Recover]).
//   - A claim is a compare-and-swap: it succeeds only if nobody has been granted the lease since the
//     scan. A worker therefore never repeats work that another worker has just completed.
//   - At most Options.MaxInFlight pieces of work run at a time.
//   - While a worker has a free slot, it scans at most Options.MaxBackoff after its last scan. A scan
//     that loses a race ends there; another worker has made progress then.
//
// # How contenders keep apart
//
// Workers that find the same runs would race for each of them. A worker begins at a random moment,
// shuffles the page that it has read, and after a lost race pauses with exponential backoff and
// jitter before it scans again. Between two claims it pauses 10 ms for each piece of work that it
// runs, up to 50 ms, so that workers with less to do come first.
//
// # What it does not guarantee
//
// A run may be driven more than once: by the successor of a worker that died, was paused or lost
// its connection. Work journals what it does, as every driver of a run does, and continues where
// the journal ends. Work that returns nil and leaves its run due is started again at once, by this
// worker or another: the release should end the run, or move its RunnableAt ([lease.Held.ReleaseWith]).
package takeover
