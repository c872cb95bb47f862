package tape

import (
	"context"

	"github.com/tapestore/tapestore/runstore"
)

// RunOf returns the run whose head a store returned, for those who list runs
// from its indexes. ErrNoSuchRun for a run of the store that is none of Tape's.
func RunOf(head runstore.Run) (Run, error) { return runOf(head) }

// Effects returns all effects of a run, ordered by key. One read a page.
//
// Errors: ErrNoSuchRun.
func (t *Tape) Effects(ctx context.Context, run runstore.RunID) ([]Effect, error) {
	var all []Effect
	for rec, err := range runstore.Records(ctx, t.store, run, effectPrefix) {
		if err != nil {
			return nil, noSuchRun(err)
		}
		e, err := effectOf(run, rec)
		if err != nil {
			return nil, err
		}
		all = append(all, e.Effect)
	}
	return all, nil
}
