package lease

import (
	"errors"

	"github.com/tapestore/tapestore/runstore"
)

// checkpoint is a set of writes that rides on a renewal.
type checkpoint struct {
	writes runstore.Writes
	id     runstore.BatchID // of the renewal that carries the writes, the same for every repeat
	done   chan error       // buffered: receives the outcome, once
	// doubt is the first renewal with the writes whose outcome is unknown. A repeat may return its
	// result, which extends nothing.
	doubt *renewal
}

// Checkpoint has the next renewal carry the writes: they are applied with it, in one atomic step and
// under this lease, without a request of their own. Work that stores its progress often, and needs
// no acknowledgement of each step, so pays nothing for it beyond the heartbeats. Applied writes of
// events or records are progress (I13).
//
// The channel receives the outcome once: nil when the writes are applied, or why they are not.
//
//   - [ErrReplaced]: a later call came before the next renewal. Writes that must all be applied need
//     a batch of their own, or one checkpoint that contains them.
//   - The store's refusal of the writes, such as runstore.ErrTooLarge. The next renewal then carries
//     no writes, so that the refusal does not cost the lease. It matches runstore.ErrUnknownOutcome
//     too where an earlier renewal had carried the writes and its outcome is unknown.
//   - runstore.ErrForgotten, an unknown outcome: the store no longer shows whether the writes were applied.
//   - [ErrEnded]: the work has returned. It matches runstore.ErrUnknownOutcome where a renewal had
//     carried the writes and its outcome is unknown. What belongs to the end of the work goes to
//     [Held.ReleaseWith].
//   - The [LostError] or, in an Overlap handoff, the [HandedOffError], if the lease was lost or handed off
//     while the work ran; at once, so that the work may wait for the outcome. It matches
//     runstore.ErrUnknownOutcome where a renewal had carried the writes, unless the store has refused
//     every renewal that did.
//
// The caller must not change the writes before it has received the outcome.
func (h *Held) Checkpoint(w runstore.Writes) <-chan error {
	c := &checkpoint{writes: w, id: runstore.NewBatchID(), done: make(chan error, 1)}
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case w.IsZero():
		c.done <- nil // nothing to apply
	case h.lost != nil:
		c.done <- h.lost
	case h.handing.done != nil:
		c.done <- h.handing.done
	case h.finished:
		c.done <- ErrEnded
	default:
		if h.next != nil {
			h.next.done <- ErrReplaced
		}
		h.next = c
	}
	return c.done
}

// nextCheckpoint returns the checkpoint for the next renewal, or nil: that of a renewal of unknown
// outcome first, under its id. After a refusal the lease is renewed without a checkpoint first.
func (h *Held) nextCheckpoint() *checkpoint {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.sending == nil && !h.bare {
		h.sending, h.next = h.next, nil
	}
	return h.sending
}

// settleCheckpoint is reportCheckpoint for a caller that holds mu.
func (h *Held) settleCheckpoint(c *checkpoint, err error) {
	if c == nil || h.sending != c {
		return
	}
	c.done <- c.outcome(err)
	h.sending = nil
}

// outcome returns err, the answer to a renewal with the checkpoint. It matches
// runstore.ErrUnknownOutcome too if an earlier renewal with the checkpoint is in doubt: no error resolves
// that (see unresolved).
func (c *checkpoint) outcome(err error) error {
	if err == nil || c.doubt == nil || runstore.OutcomeOf(err) == runstore.Unknown {
		return err
	}
	return errors.Join(err, runstore.ErrUnknownOutcome)
}

// reportCheckpoint reports the outcome of a checkpoint that a renewal carried: nil, or why the writes
// were not applied.
func (h *Held) reportCheckpoint(c *checkpoint, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.settleCheckpoint(c, err)
	h.bare = err != nil
}

// endCheckpoints reports the end of the lease or of the work, err, as the outcome of the checkpoints that
// no renewal has settled, for a caller that holds mu.
func (h *Held) endCheckpoints(err error) {
	if h.next != nil {
		h.next.done <- err
		h.next = nil
	}
	if h.sending != nil {
		h.sending.done <- errors.Join(err, runstore.ErrUnknownOutcome)
		h.sending = nil
	}
}

// endsLease reports whether the store's definite answer to a renewal ends the lease, with or
// without a checkpoint. Other answers say nothing about the grant.
func endsLease(err error) bool {
	return leaseGone(err) || errors.Is(err, runstore.ErrNoProgress) || errors.Is(err, runstore.ErrClosed)
}
