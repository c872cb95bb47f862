package sqlite

import "slices"

// A run's entry in the index of runnable runs is at the later of RunnableAt and the expiry of its
// grant as granted. A heartbeat changes no index, so the entry of a run whose lease was renewed
// becomes due while the lease is live. A scan skips such an entry and moves it, in the background,
// to the present expiry, so that the next scan does not meet it.
//
// The move is correct whenever it runs, because it computes the new time from the row as it is
// then. It never moves an entry beyond the expiry of the run's current grant, and does not change
// an entry that another handle has moved or whose grant has ended.

// movesPerCommit is how many entries one operation of the writer moves: 256. They occupy the
// writing connection for 1 to 2 ms, about as long as a sync of the log.
const movesPerCommit = 256

// moveBehindLeases moves the entries of runs in the background, unless the handle is already moving
// others. A move that fails is left to a later scan, which meets the same entry.
func (e *engine) moveBehindLeases(runs []int64) {
	if len(runs) == 0 || e.opts.ReadOnly || !e.moving.CompareAndSwap(false, true) {
		return
	}
	e.background.Go(func() {
		defer e.moving.Store(false)
		for batch := range slices.Chunk(runs, movesPerCommit) {
			if e.stopped.Err() != nil { // doBulk does not look at the context of an operation that leads at once
				return
			}
			err := e.writer.doBulk(e.stopped, func(tx *tx) error {
				for _, no := range batch {
					if _, err := tx.c.exec(tx.ctx, sqlRunnableMove, no); err != nil {
						return err
					}
				}
				return nil
			})
			if err != nil {
				return
			}
		}
	})
}
