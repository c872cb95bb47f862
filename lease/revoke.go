package lease

import (
	"context"
	"errors"

	"github.com/tapestore/tapestore/runstore"
)

// committer is what a revocation needs of a store besides its lease methods. Every runstore.RunStore
// has it.
type committer interface {
	Commit(ctx context.Context, b runstore.Batch) (runstore.Committed, error)
}

// Abandon makes the end of this lease a revocation instead of a release, because the work leaves
// something unfinished: the next holder reads runstore.EndRevoked, and recovers the run. The writes of
// [Held.ReleaseWith] are not applied, and the lease is not handed off to a successor that has requested
// it, unless the grant is under way already. The lease ends once the work has returned. [Keeper.Hold]
// then reports a loss only if a heartbeat or a write of the work was refused before.
//
// A lease under which the work never ran, and one whose work panics, are abandoned without a call.
func (h *Held) Abandon() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.abandon, h.final = true, runstore.Writes{}
}

// revoke ends the grant without its fence, even if ctx has ended: the next holder must not conclude
// that this one left nothing unfinished, nor that the holder before did. A grant that has ended already
// is no error. On a store without Commit the lease is left to expire.
func (h *Held) revoke(ctx context.Context) error {
	store, ok := runstore.As[committer](h.keeper.store)
	if !ok {
		return nil
	}
	l := h.Lease()
	// The guard keeps a late copy from the grant of a later holder.
	b := runstore.NewBatch(l.Run, runstore.AtToken(l.Token))
	b.Release = true
	return h.end(ctx, func(ctx context.Context) error {
		_, err := store.Commit(ctx, b)
		if errors.Is(err, runstore.ErrConflict) || errors.Is(err, runstore.ErrNotFound) {
			return nil
		}
		return err
	})
}
