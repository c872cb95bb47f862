package sqlite

import (
	"context"
	"slices"
)

// A run's entry in the index of runnable runs stands at the later of RunnableAt and the expiry
// of its grant as granted. A heartbeat changes no index, so the entry of a run whose lease was
// renewed becomes due while the lease is live. A scan passes over it, and moves it behind the
// lease in the background, so that the next scan does not meet it.
//
// moveEntry is correct whenever it runs: it derives the place from the row as it is then, so it
// never places a run behind the expiry of its current grant, and an entry that another handle
// moved, or whose grant ended, stays where it is.
const moveEntry = `UPDATE runs SET place = expires WHERE no = ? AND grant_state = 1 AND place < expires`

// movesPerCommit is how many entries one operation of the writer moves: 256. That takes the
// writing connection for 1 to 2 ms, about as long as a sync of the log.
const movesPerCommit = 256

// moveBehindLeases moves the entries of runs in the background, unless the handle is moving
// others already. A move that fails is left to a later scan, which meets the same entry.
func (s *Store) moveBehindLeases(runs []int64) {
	if len(runs) == 0 || s.opts.ReadOnly || !s.moving.CompareAndSwap(false, true) {
		return
	}
	s.background.start(func(ctx context.Context) {
		defer s.moving.Store(false)
		for batch := range slices.Chunk(runs, movesPerCommit) {
			err := s.writer.doBulk(ctx, func(tx *tx) error {
				for _, no := range batch {
					if _, err := tx.c.exec(tx.ctx, moveEntry, no); err != nil {
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
